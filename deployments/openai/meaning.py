"""When two requests mean the same, so that the answer to one answers the other: all members of their bodies are equal
to the byte, but for those that shape no answer (`census.py`). What the census does not know may shape it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from deployments.openai.census import CENSUS
from deployments.openai.endpoints import CONVERSATIONS, BodyKind, Endpoint
from deployments.openai.fields import ABSENT, begins_with, read_members

_ASIDE = {
    kind: frozenset(field.name for field in CENSUS if kind in field.kinds and not field.shapes) for kind in BodyKind
}
_LONGEST_NUMBER = 32
_MESSAGES = msgspec.json.Decoder(list[dict[str, Raw]])
_INSTRUCTIONS = frozenset({b'"system"', b'"developer"'})


@dataclass(frozen=True, slots=True)
class Meaning:
    """`digest`: of what shapes the answer, and of what it must not be shared across. `repeats`: the same request would
    get the same answer, since it writes `temperature: 0`."""

    digest: bytes
    repeats: bool


@dataclass(frozen=True, slots=True)
class FirstTurn:
    """A conversation that begins: the `text` of its only user's message, and the digest of all else that shapes the
    answer, or that it must not be shared across."""

    text: str
    rest: bytes


def meaning_of(endpoint: Endpoint, body: bytes, *apart: str) -> Meaning:
    """That of a request to `endpoint` with a valid body; `apart`: what sets it apart beside that. Raises
    UnicodeDecodeError for a member whose name is no text."""
    members = read_members(body)
    digest = _digest(endpoint.path, *apart, **_shaping(endpoint, members))
    return Meaning(digest, _is_zero(members.get("temperature", ABSENT)))


def first_turn_of(endpoint: Endpoint, body: bytes, *apart: str) -> FirstTurn | None:
    """That of a request with a valid body. None: it is no conversation, a later turn, or more than a text."""
    members = read_members(body)
    field = CONVERSATIONS.get(endpoint.body, "")
    content = members.pop(field, ABSENT)
    if begins_with(content, b"["):
        try:
            *before, last = _MESSAGES.decode(content)
        except (msgspec.DecodeError, ValueError):  # not as expected, or empty
            return None
        content = last.pop("content", ABSENT)
        *instructions, role = (bytes(one.get("role", b"")) for one in (*before, last))
        if role != b'"user"' or not _INSTRUCTIONS.issuperset(instructions):
            return None
        members[field] = Raw(msgspec.json.encode([*before, last]))
    if not begins_with(content, b'"'):
        return None
    digest = _digest("first turn", endpoint.path, *apart, **_shaping(endpoint, members))
    return FirstTurn(msgspec.json.decode(content, type=str), digest)


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
