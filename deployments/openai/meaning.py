"""When two requests mean the same, so that the answer to one answers the other: all members of their bodies are equal
to the byte, but for those that shape no answer (`census.py`). What the census does not know may shape it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from deployments.openai.census import CENSUS
from deployments.openai.endpoints import BodyKind, Endpoint
from deployments.openai.fields import ABSENT

_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_ASIDE = {
    kind: frozenset(field.name for field in CENSUS if kind in field.kinds and not field.shapes) for kind in BodyKind
}
_LONGEST_NUMBER = 32


@dataclass(frozen=True, slots=True)
class Meaning:
    """`digest`: of what shapes the answer, and of what it must not be shared across. `repeats`: the same request would
    get the same answer, since it writes `temperature: 0`."""

    digest: bytes
    repeats: bool


def meaning_of(endpoint: Endpoint, body: bytes, *apart: str) -> Meaning:
    """That of a request to `endpoint` with a valid body; `apart`: what sets it apart beside that. Raises
    UnicodeDecodeError for a member whose name is no text."""
    members = _MEMBERS.decode(body)
    digest = _digest(endpoint.path, *apart, **_shaping(endpoint, members))
    return Meaning(digest, _is_zero(members.get("temperature", ABSENT)))


def _shaping(endpoint: Endpoint, members: Mapping[str, Raw]) -> dict[str, bytes]:
    """The members that may shape the answer, in one order."""
    return {name: bytes(members[name]) for name in sorted(members.keys() - _ASIDE[endpoint.body])}


def _digest(*parts: str, **members: bytes) -> bytes:
    """Each part after its length, so that no two lists of parts have one text."""
    found = hashlib.blake2b(digest_size=32)
    for part in (*map(str.encode, parts), *_flat(members)):
        found.update(len(part).to_bytes(8) + part)
    return found.digest()


def _flat(members: Mapping[str, bytes]) -> list[bytes]:
    return [part for name, value in members.items() for part in (name.encode(), value)]


def _is_zero(value: Raw) -> bool:
    number = bytes(memoryview(value)[:_LONGEST_NUMBER])
    return number[:1] in (b"0", b"-") and len(value) < _LONGEST_NUMBER and float(number) == 0
