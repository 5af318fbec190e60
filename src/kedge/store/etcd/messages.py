"""The part of etcd's v3 wire protocol that a store needs, declared as data: field names, numbers, types.

`transport` sends these. Names are etcd's own; only numbers and types go over the wire. Leases, administration of
users and cluster membership are left out on purpose.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_SCALARS = {"bytes": 12, "string": 9, "bool": 8, "int64": 3, "uint64": 4, "int32": 5}
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3
_PACKAGE = "kedge.etcd"

# A field is `name number type`, with `*` for repeated and `|` for a member of the message's one union.
# Enumerations are int32: the constants below name their values.
_DECLARATIONS = {
    "Header": "cluster_id 1 uint64, member_id 2 uint64, revision 3 int64, raft_term 4 uint64",
    "KeyValue": "key 1 bytes, create_revision 2 int64, mod_revision 3 int64, version 4 int64, value 5 bytes",
    "Event": "type 1 int32, kv 2 KeyValue, prev_kv 3 KeyValue",
    "RangeRequest": (
        "key 1 bytes, range_end 2 bytes, limit 3 int64, revision 4 int64, keys_only 8 bool, count_only 9 bool"
    ),
    "RangeResponse": "header 1 Header, kvs 2 *KeyValue, more 3 bool, count 4 int64",
    "PutRequest": "key 1 bytes, value 2 bytes",
    "PutResponse": "header 1 Header",
    "DeleteRangeRequest": "key 1 bytes, range_end 2 bytes",
    "DeleteRangeResponse": "header 1 Header, deleted 2 int64",
    "RequestOp": "request_range 1 |RangeRequest, request_put 2 |PutRequest, request_delete_range 3 |DeleteRangeRequest",
    "ResponseOp": (
        "response_range 1 |RangeResponse, response_put 2 |PutResponse, response_delete_range 3 |DeleteRangeResponse"
    ),
    "Compare": "result 1 int32, target 2 int32, key 3 bytes, create_revision 5 |int64, mod_revision 6 |int64",
    "TxnRequest": "compare 1 *Compare, success 2 *RequestOp, failure 3 *RequestOp",
    "TxnResponse": "header 1 Header, succeeded 2 bool, responses 3 *ResponseOp",
    "CompactionRequest": "revision 1 int64",
    "CompactionResponse": "header 1 Header",
    "WatchCreateRequest": ("key 1 bytes, range_end 2 bytes, start_revision 3 int64, prev_kv 6 bool"),
    "WatchRequest": "create_request 1 |WatchCreateRequest",
    "WatchResponse": (
        "header 1 Header, watch_id 2 int64, created 3 bool, canceled 4 bool, compact_revision 5 int64,"
        " cancel_reason 6 string, fragment 7 bool, events 11 *Event"
    ),
    "AuthenticateRequest": "name 1 string, password 2 string",
    "AuthenticateResponse": "header 1 Header, token 2 string",
    "StatusRequest": "",
    "StatusResponse": "header 1 Header, version 2 string, db_size 3 int64, leader 4 uint64",
}

EVENT_DELETE = 1
COMPARE_EQUAL, COMPARE_GREATER = 0, 1
TARGET_CREATE, TARGET_MOD = 1, 2


def _declare() -> dict[str, Any]:
    file: Any = descriptor_pb2.FileDescriptorProto(name="kedge_etcd.proto", package=_PACKAGE, syntax="proto3")
    for name, declaration in _DECLARATIONS.items():
        message = file.message_type.add(name=name)
        for part in filter(None, declaration.split(", ")):
            field_name, number, type_name = part.split()
            bare = type_name.lstrip("*|")
            field = message.field.add(name=field_name, number=int(number))
            field.label = _REPEATED if type_name.startswith("*") else _OPTIONAL
            if bare in _SCALARS:
                field.type = _SCALARS[bare]
            else:
                field.type, field.type_name = _MESSAGE, f".{_PACKAGE}.{bare}"
            if type_name.startswith("|"):
                if not message.oneof_decl:
                    message.oneof_decl.add(name="union")
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()  # private: the process may also hold another client's declarations
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _DECLARATIONS
    }


_classes = _declare()
KeyValue: Any = _classes["KeyValue"]
Event: Any = _classes["Event"]
RangeRequest: Any = _classes["RangeRequest"]
RangeResponse: Any = _classes["RangeResponse"]
PutRequest: Any = _classes["PutRequest"]
DeleteRangeRequest: Any = _classes["DeleteRangeRequest"]
RequestOp: Any = _classes["RequestOp"]
Compare: Any = _classes["Compare"]
TxnRequest: Any = _classes["TxnRequest"]
TxnResponse: Any = _classes["TxnResponse"]
CompactionRequest: Any = _classes["CompactionRequest"]
CompactionResponse: Any = _classes["CompactionResponse"]
WatchCreateRequest: Any = _classes["WatchCreateRequest"]
WatchRequest: Any = _classes["WatchRequest"]
WatchResponse: Any = _classes["WatchResponse"]
AuthenticateRequest: Any = _classes["AuthenticateRequest"]
AuthenticateResponse: Any = _classes["AuthenticateResponse"]
StatusRequest: Any = _classes["StatusRequest"]
StatusResponse: Any = _classes["StatusResponse"]
