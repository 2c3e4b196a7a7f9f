"""The answer of a peer that has taken a hop, in frames: the client's answer as it comes, and what home must know of it.

    kind (1 byte) | bytes of the content (4, big-endian) | signature (16, `auth.py`) | content

A frame's signature covers its number within the answer, so that none can be changed, left out, repeated or moved. The
content of DATA is whole events of a stream, so that home can end it between two events when the peer is lost.
"""

import hmac
import json
from collections.abc import Mapping
from enum import IntEnum
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from deployments.gateway.peers.auth import MAC_BYTES
from deployments.protocol import Finished

BEAT_S = 0.5
"""While nothing else is sent, BEAT is, so often."""
MAX_CONTENT = 16 << 20
"""A longer content is cut into several frames."""
_HEAD_BYTES = 1 + 4 + MAC_BYTES


class FrameKind(IntEnum):
    """What a frame holds."""

    HEAD = 1
    """`HeadFrame`."""
    DATA = 2
    FIRST_TOKEN = 3
    """Nothing: the first token is there, of an answer that is not streamed."""
    BEAT = 4
    """Nothing: a sign of life."""
    ERROR = 5
    """`ErrorFrame`: it ends the answer."""
    END = 6
    """`EndFrame`: the answer is whole."""
    USAGE = 7
    """`UsageFrame`: the last one, where it comes at all."""


class _Content(BaseModel):
    """What a frame holds as JSON. A peer of a later version may say more."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


Content = TypeVar("Content", bound=_Content)
_Count = Annotated[int, Field(ge=0, lt=1 << 40)]
_Span = Annotated[float, Field(ge=0, le=1e9)]


class HeadFrame(_Content):
    """The head of the answer. A status without a body (204) is none."""

    status: Annotated[int, Field(ge=200, lt=204)]
    headers: Annotated[list[tuple[str, str]], Field(max_length=100)]


class ErrorFrame(_Content):
    """As `ApiError`."""

    code: str
    message: str
    param: str | None
    headers: dict[str, str]


class EndFrame(_Content):
    """`error`: the code of an error event that is a part of the answer."""

    error: str | None


class UsageFrame(_Content):
    """What the engine counted: `Finished`, but for its id and booking."""

    status: _Count
    sequences: _Count
    prompt_tokens: _Count
    cached_tokens: _Count
    output_tokens: _Count
    preemptions: _Count
    queued_s: _Span
    prefill_s: _Span
    decode_s: _Span
    first_byte_s: _Span | None
    wall_s: _Span

    def finished(self, attempt_id: str) -> Finished:
        """Under the id that the request has at home."""
        return Finished(attempt_id, **self.model_dump())


class Frame(NamedTuple):
    """One frame."""

    kind: FrameKind
    content: bytes

    def read(self, form: type[Content]) -> Content:
        """Its content, by that form. Raises ValueError, which says nothing of the content."""
        try:
            return form.model_validate_json(self.content)
        except ValueError:
            raise ValueError(f"no {self.kind.name} frame") from None


class FrameWriter:
    """Encodes the frames of one answer."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def encode(self, kind: FrameKind, content: bytes = b"") -> bytes:
        """One frame; several where the content is longer than one may hold."""
        if len(content) <= MAX_CONTENT:
            return self._encode(kind, content)
        parts = (content[start : start + MAX_CONTENT] for start in range(0, len(content), MAX_CONTENT))
        return b"".join(self._encode(kind, part) for part in parts)

    def encode_json(self, kind: FrameKind, content: Mapping[str, Any]) -> bytes:
        return self._encode(kind, json.dumps(content, separators=(",", ":")).encode())

    def _encode(self, kind: FrameKind, content: bytes) -> bytes:
        mac = _mac(self._key, self._number, kind, content)
        self._number += 1
        return b"".join((bytes((kind,)), len(content).to_bytes(4, "big"), mac, content))


class FrameReader:
    """Decodes the frames of one answer, from pieces of any size."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[Frame]:
        """The frames that are whole now. Raises ValueError for what is no frame of this answer."""
        data, at, frames = self._rest, 0, []
        data += piece  # in place: a long frame comes in thousands of pieces
        while len(data) - at >= _HEAD_BYTES:
            size = int.from_bytes(data[at + 1 : at + 5], "big")
            if size > MAX_CONTENT:
                raise ValueError(f"a frame of {size} bytes; allowed: at most {MAX_CONTENT}")
            end = at + _HEAD_BYTES + size
            if len(data) < end:
                break
            frames.append(self._frame(bytes(data[at:end])))
            at = end
        del data[:at]
        return frames

    def _frame(self, data: bytes) -> Frame:
        kind, content = FrameKind(data[0]), data[_HEAD_BYTES:]
        if not hmac.compare_digest(_mac(self._key, self._number, kind, content), data[5:_HEAD_BYTES]):
            raise ValueError(f"frame {self._number} has a wrong signature")
        self._number += 1
        return Frame(kind, content)


def _mac(key: bytes, number: int, kind: FrameKind, content: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + bytes((kind,)) + content, "sha256")[:MAC_BYTES]
