"""Hashes of a prompt's leading chunks, each chained to the one before, so that one hash names a whole prefix; and
the salts that keep tenants apart.

`Text` gathers a prompt of text in one form (roles and contents in order, tools before them, as chat templates put
them), so that two bodies with the same prompt hash alike whatever their other fields. What a chat template adds is
not seen here; `PrefixIndex.trust` learns what a credit is worth.

Who shares an engine's prefix cache can tell by the time to a prompt's first token whether somebody else sent its
beginning (CVE-2025-46570). vLLM's `cache_salt` is a part of the hash of a prompt's first block, and so of all: equal
prompts of other salts share nothing. A tenant's salt is a digest that only the cell can make, since its key is the
cell's secret, or that of all cells (`peering.secret`).
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import msgspec

from cluster.spec import ClusterSpec, Tenant

CHUNK_CHARS = 256
"""About 64 tokens of English, four of vLLM's blocks: short enough to see a system prompt, long enough to be cheap."""
CHUNK_IDS = 64
_CHUNK_OF_IDS = re.compile(rb"[^,]++(?:,[^,]++){%d}" % (CHUNK_IDS - 1))
_MAX_CHUNKS = 1_024
_DIGEST_BYTES = 8
_HASHED_CHARS = CHUNK_CHARS * _MAX_CHUNKS
_DECODED_BYTES = 1 << 20
"""A longer text is decoded in parts, since decoded it may take four bytes a character."""
_LONGEST_CHAR = 12
"""Bytes of a character in JSON: of a pair of escaped surrogates."""


@dataclass(frozen=True, slots=True)
class Hashing:
    """How a prompt is hashed: of another `salt`, all hashes are others. `chunk_chars`: of how many characters of text a
    chunk is."""

    salt: bytes = b""
    chunk_chars: int = CHUNK_CHARS


PLAIN = Hashing()


class Text:
    """The text of one prompt: its characters, and its beginning."""

    def __init__(self) -> None:
        self.chars = 0
        self._pieces: list[str] = []
        self._room = _HASHED_CHARS

    def add(self, value: msgspec.Raw) -> None:
        """A JSON string follows; any other value says nothing. Raises msgspec.DecodeError and UnicodeDecodeError."""
        if value and memoryview(value)[0] == 0x22:
            for piece in _decoded(value):
                self.chars += len(piece)
                self._keep(piece)

    def add_json(self, value: msgspec.Raw) -> None:
        """A value follows that the prompt has as JSON. Its characters are taken to be its bytes."""
        self.chars += len(value)
        self.mark_json(value)

    def mark_json(self, value: msgspec.Raw) -> None:
        """What follows belongs to the prompt's identity, but its characters are counted otherwise, or not."""
        self._keep(bytes(memoryview(value)[: self._room]).decode(errors="replace"))

    def mark(self, separator: str) -> None:
        """A part of the prompt ends here, or begins."""
        self._keep(separator)

    def prefix(self, hashing: Hashing) -> tuple[int, ...]:
        """The hashes of its whole chunks, at most `_MAX_CHUNKS`."""
        return text_prefix("".join(self._pieces), hashing)

    def _keep(self, piece: str) -> None:
        if self._room and piece:
            self._pieces.append(piece[: self._room])
            self._room -= len(self._pieces[-1])


def text_prefix(text: str, hashing: Hashing) -> tuple[int, ...]:
    """The hashes of the whole chunks of a text, at most `_MAX_CHUNKS`."""
    size = hashing.chunk_chars
    whole = min(len(text) // size, _MAX_CHUNKS)
    return _chained((text[at * size : (at + 1) * size].encode() for at in range(whole)), hashing.salt)


def ids_prefix(ids: bytes, hashing: Hashing) -> tuple[int, ...]:
    """The hashes of the whole chunks of a prompt given as token ids: a JSON list's inside without white space."""
    return _chained(islice(_chunks_of(ids), _MAX_CHUNKS), hashing.salt)


def _chunks_of(ids: bytes) -> Iterator[bytes]:
    """Each matched where the one before ended: a search would try every byte of what is no whole chunk, for a time that
    grows with its square."""
    at = 0
    while found := _CHUNK_OF_IDS.match(ids, at):
        yield found[0]
        at = found.end() + 1


def _decoded(value: msgspec.Raw) -> Iterator[str]:
    """The parts of a JSON string. None must be cut within a character."""
    at = 1
    while len(value) - at > _DECODED_BYTES:
        text, read = _head(bytes(memoryview(value)[at : at + _DECODED_BYTES]))
        yield text
        at += read
    yield msgspec.json.decode(value if at == 1 else b'"' + memoryview(value)[at:], type=str)


def _head(start: bytes) -> tuple[str, int]:
    """The whole characters at the start of a JSON string, and of how many bytes they are made."""
    for end in range(len(start), len(start) - _LONGEST_CHAR, -1):
        try:
            return msgspec.json.decode(b'"' + start[:end] + b'"', type=str), end
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    raise msgspec.DecodeError("a text holds a character that is not valid")


def _chained(chunks: Iterable[bytes], salt: bytes) -> tuple[int, ...]:
    hashes: list[int] = []
    before = salt
    for chunk in chunks:
        before = hashlib.blake2b(before + chunk, digest_size=_DIGEST_BYTES).digest()
        hashes.append(int.from_bytes(before, "big"))
    return tuple(hashes)


SaltOf = Callable[[str | None], str]
"""The salt of a request, by the client's own `cache_salt` (None: it has none)."""


class Salts:
    """The salts of a spec's tenants. `secret`: the cell's own; with peers that of all cells, so that a prefix has the
    same hashes in all of them."""

    def __init__(self, spec: ClusterSpec, secret: str) -> None:
        self._apart = bool(spec.tenants) and spec.prefix_sharing == "tenant"
        self._key = hmac.digest(secret.encode(), b"raylane cache_salt", "sha256")

    def of(self, tenant: Tenant | None) -> SaltOf | None:
        """How a tenant's requests are salted. None: not at all, they go to the engine as they came."""
        return None if tenant is None or not self._apart else partial(_digest, self._key, tenant.name)


def _digest(key: bytes, tenant: str, given: str | None) -> str:
    """The client's own salt sets its requests apart from others of its tenant, and never leads out of the tenant. 64
    hexadecimal digits.

    The names of tenants hold no zero byte, so that no two pairs have one text.
    """
    asked = tenant.encode() if given is None else tenant.encode() + b"\0" + given.encode()
    return hmac.new(key, asked, hashlib.sha256).hexdigest()
