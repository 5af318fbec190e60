"""Several writes in one HTTP request, between kedge's own clients and servers: `POST /kedge/batch`.

The body is an array of calls; each line of the reply is the answer to one call, in the order in which they end. Each
call is authorised, proved and committed alone: a batch saves bytes and turns of the loop, and promises nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

BATCH_PATH: Final = "/kedge/batch"
BATCH_TYPE: Final = b"application/json"


class BatchCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request of a batch, as it would be sent alone."""

    method: str
    target: str
    headers: dict[str, str]
    body: msgspec.Raw


class BatchAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The reply to the call at `index`, as it would be received alone."""

    index: int
    code: int
    headers: dict[str, str]
    body: msgspec.Raw


encode_batch = msgspec.json.Encoder().encode
decode_calls = msgspec.json.Decoder(list[BatchCall]).decode
decode_answer = msgspec.json.Decoder(BatchAnswer).decode
