"""Hides the values of Secrets in records: each is replaced by a keyed hash, before anything is written. Pure.

Equal values of one stream have equal hashes, so that a reader sees a change; the key of the hash is never written, so
that a short value cannot be guessed from it. Names of keys, labels and other fields of a Secret stay.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from kedge.api.codec import encode_object
from kedge.api.objects import Object
from kedge.api.wellknown import LAST_APPLIED, SECRET_KIND
from kedge.keys import Key
from kedge.observe.records.redaction import RedactedField, Redaction

_HIDDEN_FIELDS: Final = ("data", "stringData")
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


class HiddenValues:
    """Hides with one key. Without a key every value is replaced by the same text: a simulated run has no secrets."""

    def __init__(self, key: bytes = b"", redact: Iterable[RedactedField] = ()) -> None:
        """`redact` names fields that are hidden too."""
        self._key = key
        rules = tuple(redact)
        self._redaction = Redaction(rules, self._text) if rules else None

    def object(self, found: Object) -> Object:
        """The object with hidden values, if it is a Secret or has fields that are to be hidden."""
        document: dict[str, Any] | None = None
        if found.key.kind == SECRET_KIND:
            document = self._document(_decode(found.value))
        elif self._redaction is not None and (paths := self._redaction.paths_of(found.key.kind)):
            document = self._redaction.apply(_decode(found.value), paths)
        if document is None:
            return found
        value = encode_object(document)
        return Object(found.kind, found.key, value, revision=found.revision, created=found.created, origin=found.origin)

    def intent(self, key: Key | None, intent_json: bytes) -> bytes:
        """The body of a recorded request with hidden values, if it may be about a Secret or a field to hide."""
        if self._redaction is not None and (paths := self._redaction.of_request(key)):
            return self._secret_intent(key, _encode(self._redaction.apply(_decode(intent_json), paths)))
        return self._secret_intent(key, intent_json)

    def _secret_intent(self, key: Key | None, intent_json: bytes) -> bytes:
        if key is not None and key.kind != SECRET_KIND:
            return intent_json
        body = _decode(intent_json)
        if isinstance(body, list):  # a JSON patch
            return _encode([self._operation(each) for each in body])
        if not isinstance(body, dict) or (key is None and body.get("kind") != SECRET_KIND):
            return intent_json
        return _encode(self._document(body))

    def _document(self, document: dict[str, Any]) -> dict[str, Any]:
        hidden = {
            name: {each: self._encoded(value) for each, value in found.items()}
            for name in _HIDDEN_FIELDS
            if isinstance(found := document.get(name), Mapping)
        }
        made = {**document, **hidden}
        metadata = document.get("metadata")
        annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
        if isinstance(metadata, Mapping) and isinstance(annotations, Mapping) and LAST_APPLIED in annotations:
            # kubectl apply keeps the whole manifest there.
            shown = {**annotations, LAST_APPLIED: self._text(annotations[LAST_APPLIED])}
            made["metadata"] = {**metadata, "annotations": shown}
        return made

    def _operation(self, operation: Any) -> Any:
        if not isinstance(operation, Mapping) or "value" not in operation:
            return operation
        return {**operation, "value": _each(operation["value"], self._text)}

    def _encoded(self, value: Any) -> str:
        """In base64, as `data` has its values, so that the object stays valid."""
        return base64.b64encode(self._text(value).encode()).decode()

    def _text(self, value: Any) -> str:
        if not self._key:
            return "hidden"
        return f"hidden-{hmac.digest(self._key, _encode(value), 'sha256')[:12].hex()}"


def _each(value: Any, change: Callable[[Any], str]) -> Any:
    """Replace the values of a mapping, or the value itself."""
    return {name: change(found) for name, found in value.items()} if isinstance(value, Mapping) else change(value)
