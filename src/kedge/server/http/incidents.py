"""`/kedge/incidents/...`: processes send their records of an incident, and `kedge incident` fetches them.

POST   /kedge/incidents/NAME/PROCESS            the process takes part, and gets the key to hide values with;
                                                `?done=true`: it has sent everything
POST   /kedge/incidents/NAME/PROCESS/PART?at=N  a slice of a part, N bytes after its begin
GET    /kedge/incidents, /kedge/incidents/NAME  what this server has
GET    /kedge/incidents/NAME/PROCESS/PART?at=N  a slice of a part
DELETE /kedge/incidents/NAME                    remove the records

A component sends records of processes of its own alone: PROCESS is its name, `-` and the run.
"""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

from kedge.api.access import CONTROLLERS, MASTERS, SCHEDULERS, Caller, node_of
from kedge.api.wellknown import KEDGE_API_VERSION
from kedge.env import Env
from kedge.errors import BadRequest, Forbidden, MethodNotAllowed, NotFound
from kedge.keys import AGENT_PREFIX
from kedge.server.http.exchange import Exchange, HttpRequest
from kedge.server.http.parameters import parse_query
from kedge.server.incidents import IncidentFolder, IncidentListing

INCIDENTS_PATH: Final = "/kedge/incidents"
INCIDENTS_PREFIX: Final = INCIDENTS_PATH.encode()
INCIDENT_KIND: Final = "IncidentRecords"
PART_TYPE: Final = b"application/vnd.kedge.kept"
_COMPONENTS: Final = {SCHEDULERS: "scheduler", CONTROLLERS: "controllers"}
"""By group: the name of a component's processes. The processes of an agent have the name of its node."""
_encode = msgspec.json.Encoder().encode


def serve_incidents(
    folder: IncidentFolder | None, request: HttpRequest, exchange: Exchange, env: Env, caller: Caller
) -> None:
    """Answer one request whose caller may make it.

    Raises:
        Forbidden: a component sends records of a process of another one.
        NotFound: there is no such incident, process or part, or this server keeps none.
        BadRequest: a name or a parameter is malformed.
        TooManyRequests: the folder is full.
    """
    if folder is None:
        raise NotFound("this server keeps no records of incidents")
    names = [each for each in request.path.decode("latin-1").removeprefix(INCIDENTS_PATH).split("/") if each]
    query = parse_query(request.query)
    match request.method, names:
        case "GET" | "HEAD", []:
            found = {"items": [_document(each) for each in folder.listing()]}
            exchange.respond(200, _encode({"apiVersion": KEDGE_API_VERSION, "kind": f"{INCIDENT_KIND}List", **found}))
        case "GET" | "HEAD", [incident]:
            exchange.respond(200, _encode(_document(folder.find(incident))))
        case "GET" | "HEAD", [incident, process, part]:
            data = folder.read(incident, process, part, _place(query.get("at", "0")), env.limits.incident_slice_bytes)
            exchange.respond(200, data, content_type=PART_TYPE)
        case "POST", [incident, process]:
            _check_process(caller, process)
            (folder.end if query.get("done") == "true" else folder.begin)(incident, process)
            key = base64.b64encode(folder.hiding_key(incident)).decode()
            exchange.respond(200, _encode({**_document(folder.find(incident)), "hidingKey": key}))
        case "POST", [incident, process, part]:
            _check_process(caller, process)
            size = folder.append(incident, process, part, _place(query.get("at", "0")), request.body)
            exchange.respond(200, _encode({"size": size}))
        case "DELETE", [incident]:
            folder.delete(incident)
            exchange.respond(200, _encode({"apiVersion": "v1", "kind": "Status", "status": "Success"}))
        case _, names if len(names) <= 3:
            raise MethodNotAllowed(f"{request.method} is not for {request.path.decode('latin-1')[:200]}")
        case _:
            raise NotFound("no incident has this path: it is /kedge/incidents/NAME/PROCESS/PART")


def _check_process(caller: Caller, process: str) -> None:
    """Raises `Forbidden` for a process of another component. Administrators, and users with a role of their own that
    allows it, send records of any."""
    if MASTERS in caller.groups:
        return
    node = node_of(caller.user, caller.groups)
    own = [f"{AGENT_PREFIX}{node}"] if node else []
    own += [component for group, component in _COMPONENTS.items() if group in caller.groups]
    # Up to the last hyphen: the agent of the node `a` does not send records of that of `a-b`.
    if own and process.rpartition("-")[0] not in own:
        shown = " or ".join(f"{each}-RUN" for each in own)
        raise Forbidden(
            f'process "{process[:253]}" is forbidden: user "{caller.user}" sends records of its own processes alone:'
            f" {shown}"
        )


def _document(found: IncidentListing) -> dict[str, Any]:
    return {
        "apiVersion": KEDGE_API_VERSION,
        "kind": INCIDENT_KIND,
        "name": found.name,
        "bytes": found.bytes,
        "processes": [
            {
                "name": process.name,
                "done": process.done,
                "parts": [{"name": part.name, "bytes": part.bytes} for part in process.parts],
            }
            for process in found.processes
        ],
    }


def _place(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise BadRequest(f"at={text[:40]}: the place of a slice is a number of bytes")
    return int(text)
