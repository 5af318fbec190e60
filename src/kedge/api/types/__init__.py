"""The fact table of the Kubernetes types that kedge serves: fields, protobuf numbers, list types, merge keys, texts.

Strategic merge patch, field validation, protobuf bodies, OpenAPI and `explain` read it. It holds facts and no rules:
validation is in `api.validation`, defaults are in `api.defaults`.
"""

from __future__ import annotations

from kedge.api.types.table import FieldFacts, FieldShape, TypeFacts, TypeTable, type_table

__all__ = ["FieldFacts", "FieldShape", "TypeFacts", "TypeTable", "type_table"]
