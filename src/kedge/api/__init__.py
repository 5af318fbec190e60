"""Objects, kinds, selectors, codec and validation, with the conventions of Kubernetes.

The views of single kinds are in `kedge.api.views`; times, durations, owners and conditions in modules of those names.
"""

from kedge.api.codec import (
    OBJECT_DEPTH_MAX,
    Draft,
    Versioned,
    decode_json,
    encode_json,
    encode_object,
    parse_object,
    same_content,
    same_json,
    splice,
    splice_list,
)
from kedge.api.defaults import apply_defaults, apply_draft_defaults
from kedge.api.kinds import KINDS, Kind, PrinterColumn, Registry
from kedge.api.patch import apply_json_patch, apply_merge_patch
from kedge.api.quantity import Quantity, format_units, parse_quantity, units
from kedge.api.selectors import (
    FieldSelector,
    LabelSelector,
    NodeSelector,
    label_selector,
    node_selector,
    parse_field_selector,
    parse_label_selector,
)
from kedge.api.validation import Checked, check_object, check_update
from kedge.api.views import FrozenMap, ObjectMeta, View, decode_as, decode_metadata, decode_view

__all__ = [
    "KINDS",
    "OBJECT_DEPTH_MAX",
    "Checked",
    "Draft",
    "FieldSelector",
    "FrozenMap",
    "Kind",
    "LabelSelector",
    "NodeSelector",
    "ObjectMeta",
    "PrinterColumn",
    "Quantity",
    "Registry",
    "Versioned",
    "View",
    "apply_defaults",
    "apply_draft_defaults",
    "apply_json_patch",
    "apply_merge_patch",
    "check_object",
    "check_update",
    "decode_as",
    "decode_json",
    "decode_metadata",
    "decode_view",
    "encode_json",
    "encode_object",
    "format_units",
    "label_selector",
    "node_selector",
    "parse_field_selector",
    "parse_label_selector",
    "parse_object",
    "parse_quantity",
    "same_content",
    "same_json",
    "splice",
    "splice_list",
    "units",
]
