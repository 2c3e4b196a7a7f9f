"""Single fields of a request's body, read strictly from their JSON bytes; and how a value is shown to the client that
sent it.

Every reader takes the field's name and its bytes (empty where the field is absent) and raises ApiError for a value that
is not allowed.
"""

import re
from collections.abc import Iterable

import msgspec
from msgspec import Raw

from deployments.openai.errors import ApiError, ErrorCode

ABSENT = Raw(b"")
read_members = msgspec.json.Decoder(dict[str, Raw]).decode
"""The members of an object, each as its JSON."""
_INTEGER = re.compile(rb"-?[0-9]{1,18}")
_NULL = b"null"
_FLAGS = {b"": False, b"null": False, b"false": False, b"true": True}
_NOTHING = frozenset({b"null", b"false", b"[]", b"{}"})
_SHORT = 64
"""Bytes of a value that is copied to be looked at."""
_SHOWN_CHARS = 60
_LONGEST_SALT = 128
_LONGEST_CHAR = 12
"""Bytes of a character in JSON: of a pair of escaped surrogates."""
_SALT = re.compile(r"[^@/\\\0]+")
_LONGEST_NAME = 1 << 16
"""Bytes of a model's name that is read at all."""


def is_null(value: Raw) -> bool:
    return not value or (len(value) == len(_NULL) and bytes(value) == _NULL)


def is_nothing(value: Raw) -> bool:
    """Whether a field says no more than if it were not there: absent, null, false or empty."""
    return not value or (len(value) <= _SHORT and bytes(value).translate(None, b" \t\r\n") in _NOTHING)


def begins_with(value: Raw, char: bytes) -> bool:
    """Whether a value is one of those that begin so: a text with a quotation mark, a list with a bracket."""
    return len(value) > 0 and memoryview(value)[0] == char[0]


def name_of(field: str, value: Raw) -> str:
    """A text; empty where the field is absent or null."""
    if is_null(value):
        return ""
    if not begins_with(value, b'"'):
        raise not_allowed(field, value, "a text")
    if len(value) > _LONGEST_NAME:
        raise not_allowed(field, value, f"a text of at most {_LONGEST_NAME} bytes")
    return msgspec.json.decode(value, type=str)


def flag_of(field: str, value: Raw) -> bool:
    """True or false; absent and null are false."""
    found = _FLAGS.get(bytes(memoryview(value)[: len(_NULL) + 2]))
    if found is None:
        raise not_allowed(field, value, "true or false")
    return found


def count_of(field: str, value: Raw, maximum: int = 10**18 - 1, minimum: int = 1) -> int | None:
    """An integer from `minimum` to `maximum`, or None where the field is absent or null."""
    if is_null(value):
        return None
    digits = bytes(memoryview(value)[:20])
    if not _INTEGER.fullmatch(digits) or not minimum <= int(digits) <= maximum:
        raise not_allowed(field, value, f"an integer from {minimum} to {maximum}")
    return int(digits)


def salt_given(field: str, value: Raw) -> str | None:
    """A client's own salt, of the form that vLLM allows, or None."""
    if is_null(value):
        return None
    if begins_with(value, b'"') and len(value) <= _LONGEST_SALT * _LONGEST_CHAR + 2:
        salt = msgspec.json.decode(value, type=str)
        if 1 <= len(salt) <= _LONGEST_SALT and _SALT.fullmatch(salt):
            return salt
    raise not_allowed(field, value, f"a text of 1 to {_LONGEST_SALT} characters, without @ / \\ and NUL")


def with_member(body: bytes, name: str, value: object) -> bytes:
    """A JSON object that is not empty, with that for its last member.

    Of several members with one name, however they are written, JSON parsers keep the last. The rest of the body stays
    as it is, to the byte.
    """
    end = body.rindex(b"}")  # nothing but white space can follow
    return b"".join((memoryview(body)[:end], b',"', name.encode(), b'":', msgspec.json.encode(value), b"}"))


def not_served(name: str, served: Iterable[str]) -> ApiError:
    message = f"model = {shown(name)}: not served here; allowed: {', '.join(served)}"
    return ApiError(ErrorCode.MODEL_NOT_FOUND, message, param="model")


def missing(field: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_VALUE, f"{field}: missing, and it is required", param=field)


def not_allowed(field: str, value: Raw, allowed: str) -> ApiError:
    start = bytes(memoryview(value)[: 4 * _SHOWN_CHARS]).decode(errors="replace")
    return ApiError(ErrorCode.INVALID_VALUE, f"{field} = {_cut(start)}: allowed: {allowed}", param=field)


def shown(value: object) -> str:
    """A value of the client's, short enough for an error message."""
    return _cut(repr(value[:_SHOWN_CHARS] if isinstance(value, str) else value))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
