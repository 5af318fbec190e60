"""Collects every field error of an object, with the messages and types of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterable

from kedge.api.quantity import Quantity
from kedge.api.views.schema import quote
from kedge.errors import FieldError


class ErrorList:
    """Field errors in the order they were found. Falsy while there are none."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found: list[FieldError] = []

    def __bool__(self) -> bool:
        return bool(self.found)

    def required(self, path: str, detail: str = "") -> None:
        self._add(path, "FieldValueRequired", f"Required value: {detail}" if detail else "Required value")

    def invalid(self, path: str, value: object, detail: str) -> None:
        self._add(path, "FieldValueInvalid", f"Invalid value: {quote(value)}: {detail}")

    def unsupported(self, path: str, value: object, supported: Iterable[str]) -> None:
        listed = ", ".join(f'"{each}"' for each in supported)
        self._add(path, "FieldValueNotSupported", f"Unsupported value: {quote(value)}: supported values: {listed}")

    def duplicate(self, path: str, value: object) -> None:
        self._add(path, "FieldValueDuplicate", f"Duplicate value: {quote(value)}")

    def forbidden(self, path: str, detail: str) -> None:
        self._add(path, "FieldValueForbidden", f"Forbidden: {detail}")

    def too_long(self, path: str, bytes_max: int) -> None:
        self._add(path, "FieldValueTooLong", f"Too long: may not be more than {bytes_max} bytes")

    def too_many(self, path: str, found: int, most: int) -> None:
        self._add(path, "FieldValueTooMany", f"Too many: {found}: must have at most {most} items")

    def _add(self, path: str, kind: str, message: str) -> None:
        self.found.append(FieldError(path, kind, message))

    # -- rules that many fields share --------------------------------------------------------------

    def name(self, path: str, value: str, problem: str) -> None:
        """Add an error for a name whose `problem` is not empty."""
        if problem:
            self.invalid(path, value, problem)

    def at_least(self, path: str, value: int | None, least: int) -> None:
        if value is not None and value < least:
            self.invalid(path, value, f"must be greater than or equal to {least}")

    def between(self, path: str, value: int | None, least: int, most: int) -> None:
        if value is not None and not least <= value <= most:
            self.invalid(path, value, f"must be between {least} and {most}, inclusive")

    def one_of(self, path: str, value: str, supported: tuple[str, ...]) -> None:
        if value not in supported:
            if value:
                self.unsupported(path, value, supported)
            else:
                self.required(path)

    def not_negative(self, path: str, value: Quantity) -> None:
        if value.nano < 0:
            self.invalid(path, value, "must be greater than or equal to 0")
