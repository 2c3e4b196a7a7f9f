"""The answer of a peer that has taken a hop, in frames: the client's answer as it comes, and what home must know of it.

    kind (1 byte) | bytes of the content (4, big-endian) | signature (16, `auth.py`) | content

A frame's signature covers its number within the answer, so that none can be changed, left out, repeated or moved. The
content of DATA is whole events of a stream, so that home can end it between two events when the peer is lost.
"""

import hmac
import json
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from deployments.gateway.peers.auth import MAC_BYTES

BEAT_S = 0.5
"""While nothing else is sent, BEAT is, so often."""
MAX_CONTENT = 16 << 20
"""A longer content is cut into several frames."""
_HEAD_BYTES = 1 + 4 + MAC_BYTES


class FrameKind(IntEnum):
    """What a frame holds."""

    HEAD = 1
    """JSON: `status`, and `headers` as pairs."""
    DATA = 2
    FIRST_TOKEN = 3
    """Nothing: the first token is there, of an answer that is not streamed."""
    BEAT = 4
    """Nothing: a sign of life."""
    ERROR = 5
    """JSON: the error that ends the answer (`code`, `message`, `param`, `headers`)."""
    END = 6
    """JSON: the answer is whole. `error`: the code of an error event that is a part of it."""
    USAGE = 7
    """JSON: what the engine counted (`deployments/protocol.py`, `Finished`). The last one, where it comes at all."""


class Frame(NamedTuple):
    """One frame."""

    kind: FrameKind
    content: bytes

    def read(self) -> dict[str, Any]:
        """The JSON object in it. Raises ValueError."""
        found = json.loads(self.content)
        if not isinstance(found, dict):
            raise ValueError(f"a {self.kind.name} frame that holds no object")
        return found


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
        self._rest = b""

    def feed(self, piece: bytes) -> list[Frame]:
        """The frames that are whole now. Raises ValueError for what is no frame of this answer."""
        data, at, frames = self._rest + piece, 0, []
        while len(data) - at >= _HEAD_BYTES:
            size = int.from_bytes(data[at + 1 : at + 5], "big")
            if size > MAX_CONTENT:
                raise ValueError(f"a frame of {size} bytes; allowed: at most {MAX_CONTENT}")
            end = at + _HEAD_BYTES + size
            if len(data) < end:
                break
            frames.append(self._frame(data[at:end]))
            at = end
        self._rest = data[at:]
        return frames

    def _frame(self, data: bytes) -> Frame:
        kind, content = FrameKind(data[0]), data[_HEAD_BYTES:]
        if not hmac.compare_digest(_mac(self._key, self._number, kind, content), data[5:_HEAD_BYTES]):
            raise ValueError(f"frame {self._number} has a wrong signature")
        self._number += 1
        return Frame(kind, content)


def _mac(key: bytes, number: int, kind: FrameKind, content: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + bytes((kind,)) + content, "sha256")[:MAC_BYTES]
