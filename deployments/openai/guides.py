"""Bounds on what guides an answer: schemas, regular expressions, grammars, choices, stops, biases. An engine compiles
them or looks at them for each token, and a small one can take it minutes (measured with vLLM 0.32 and xgrammar).

The weight of a regular expression estimates the states that it is compiled to: each repetition multiplies what it
repeats. An unbounded one, or one with a lower bound that differs, counts as `_UNBOUNDED` at least.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw

from cluster.spec import RequestLimits
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.structure import structure_of

LISTS = frozenset(
    {"stop", "stop_sequences", "stop_token_ids", "bad_words", "logit_bias", "allowed_token_ids", "logprob_token_ids"}
)
"""Fields that are one list or map; the others hold schemas, or texts that are compiled."""
_TOOLS = 8
"""Tools are compiled only where one of them is required: they may have so many times as much."""
_MAX_DEPTH = 64
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?[:=!<>P]*|[()|]|\{(\d*)(,?)(\d*)\}|[*+?]|.", re.S)
_UNBOUNDED, _OPTIONAL = 30, 10
_PATTERNS = frozenset({"pattern", "regex", "grammar"})
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_PROPERTIES = 64
"""Of an object whose number of properties is bounded: each subset is a state."""


def check_guide(field: str, value: Raw, limits: RequestLimits) -> None:
    """Raises ApiError that names the field, what it has, and the limit."""
    more = _TOOLS if field == "tools" else 1
    text, allowed = bytes(value), more * limits.max_guide_bytes
    if len(text) > allowed:
        raise _too_much(field, f"{len(text)} bytes", f"max_guide_bytes = {allowed}")
    allowed = more * limits.max_guide_values
    structure = structure_of(text, allowed, _MAX_DEPTH)
    if structure.values > allowed:
        raise _too_much(field, f"{structure.values} or more values", f"max_guide_values = {allowed}")
    if structure.depth > _MAX_DEPTH:
        message = f"{field}: {structure.depth} or more levels; allowed: at most {_MAX_DEPTH}"
        raise ApiError(ErrorCode.INVALID_VALUE, message, param=field)
    if field not in LISTS:
        for name, found in _members(msgspec.json.decode(text)):
            _check_member(field, name, found, limits.max_guide_weight)


def _check_member(field: str, name: str, value: Any, allowed: int) -> None:
    if name in _COUNTS and isinstance(value, int | float) and value > allowed:
        raise _too_much(f"{field}: {name}", f"{value}", f"max_guide_weight = {allowed}")
    if name in _PATTERNS and isinstance(value, str) and (weight := weight_of(value)) > allowed:
        raise _too_much(f"{field}: {name}", f"a weight of {weight}", f"max_guide_weight = {allowed}")


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """All members of objects at any depth; the names of `patternProperties` as patterns."""
    if isinstance(value, list):
        for one in value:
            yield from _members(one)
    elif isinstance(value, dict):
        properties = value.get("properties")
        if isinstance(properties, dict) and ("minProperties" in value or "maxProperties" in value):
            yield "maxProperties", 0 if len(properties) <= _PROPERTIES else float("inf")
        for name, one in value.items():
            yield name, one
            if name == "patternProperties" and isinstance(one, dict):
                yield from (("pattern", pattern) for pattern in one)
            yield from _members(one)


def weight_of(pattern: str) -> int:
    """About how many states a regular expression, or a grammar with repetitions, is compiled to."""
    outer: list[int] = []
    before = last = 0
    for token in _TOKEN.finditer(pattern):
        text = token.group()
        if text[0] == "(":
            outer.append(before + last)
            before = last = 0
        elif text == ")":
            before, last = outer.pop() if outer else 0, before + last
        elif text in "*+?" or (text[0] == "{" and len(text) > 2 and text != "{,}"):
            last = _times(token) * max(last, 1)
        else:
            before, last = before + last, 1
    return sum(outer) + before + last


def _times(token: re.Match[str]) -> int:
    low, comma, high = token.groups()
    if low is None:
        return _OPTIONAL if token.group() == "?" else _UNBOUNDED
    if not comma:
        return min(int(low[:9] or 0), 10**9)
    return max(int(high[:9]) if high else _UNBOUNDED, int(low[:9] or 0))


def _too_much(field: str, has: str, limit: str) -> ApiError:
    message = f"{field}: {has}; allowed: at most gateway.limits.{limit}"
    return ApiError(ErrorCode.INVALID_VALUE, message, param=field.partition(":")[0])
