"""Bounds on what guides an answer: schemas, regular expressions, grammars, choices, stops, biases. An engine compiles
them or looks at them for each token, and a small one can take it minutes (decision 44 has what was measured).

A weight estimates the milliseconds that one core takes to compile a guide for a vocabulary of 131,000 tokens, or what
its ambiguity costs for each token. What repeats multiplies what it repeats: mildly where each turn shows by a literal
that it has, by more where a text can be divided into turns in many ways.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

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
_TOO_HEAVY = 10**9
_SATURATION = 200
"""xgrammar compiles more repetitions of one character into counters."""
_WIDE, _NARROW = 20, 3
"""A character that may be nearly any, or one of a class: so many tokens begin with it."""
_LENGTH = 4
"""A character of a text whose length is bounded: a fifth of what the first such text of a guide takes, and near what
each other one takes, since usual schemas have several, and no token waits for them."""
_LOOP = 180
_REPETITION = r"[*+?]\??|~\s*\d+(?:\.\.\d+)?|\{\s*(?:\d+\s*(?:,\s*\d*\s*)?|,\s*\d+\s*)\}\??"
_CLASS = r"\[\^?\]?(?:\\.|[^\]\\])*+(?:\]|\\?\Z)"  # what is never closed ends with the text: one scan, whatever it has
_EXPRESSION = re.compile(
    rf"(?P<times>{_REPETITION})|\(\?[:=!<>P]*|[()|]|(?P<class>{_CLASS}|\\.|\.)"
    r"|(?P<literal>[^\\\[\](){}|*+?.]+(?=[^\\\[\](){}|*+?.])|.)",
    re.S,
)
_GRAMMAR = (
    r"\#[^\n]*|//[^\n]*|\s+|(?P<head>[?!]?[\w.-]+\s*(?:::=|:))|(?P<times>{0})|[()|{2}]|(?P<class>{1})|(?P<empty>\"\")"
    r'|(?P<literal>"(?:\\.|[^"\\])*+(?:"|\\?\Z)|/(?:\\.|[^/\\])*+(?:/|\\?\Z))|(?P<rule>[\w.-]+)|(?P<other>.)'
)
_EBNF = re.compile(_GRAMMAR.format(_REPETITION, _CLASS, ""), re.S)
_LARK = re.compile(_GRAMMAR.format(_REPETITION, "(?!)", r"\[\]"), re.S)
_ALMOST_ANY = re.compile(r"\.|\\[SWDpP]|\[\^.*|\[.*\\[SWDxuUpP].*|\[(?=.*(?:[ !]|\\s))(?=.*(?:-|\\w)).*", re.S)
_LOOPS = ("star", "plus", "repeat")
"""Formats of structural tags that repeat their content."""


def check_guide(field: str, value: Raw, limits: RequestLimits) -> None:
    """Raises ApiError that names the field, what it has, and the limit."""
    more = _TOOLS if field == "tools" else 1
    text = bytes(value)
    _check_size(field, text, more, limits)
    if field in LISTS:
        return
    weights: dict[tuple[str, Any], int] = {}  # the same bounds are compiled once
    total = 0
    for name, key, weight in _weights(field, msgspec.json.decode(text), limits):
        total += 0 if (name, key) in weights else min(weight, _TOO_HEAVY)
        weights[name, key] = weight
        if total > limits.max_guide_weight:
            has = f"a weight of {total} or more, most by {max(weights, key=weights.__getitem__)[0]}"
            raise _too_much(field, has, f"max_guide_weight = {limits.max_guide_weight}")


def _check_size(field: str, text: bytes, more: int, limits: RequestLimits) -> None:
    if len(text) > (allowed := more * limits.max_guide_bytes):
        raise _too_much(field, f"{len(text)} bytes", f"max_guide_bytes = {allowed}")
    allowed = more * limits.max_guide_values
    structure = structure_of(text, allowed, _MAX_DEPTH)
    if structure.values > allowed:
        raise _too_much(field, f"{structure.values} or more values", f"max_guide_values = {allowed}")
    if structure.depth > _MAX_DEPTH:
        message = f"{field}: {structure.depth} or more levels; allowed: at most {_MAX_DEPTH}"
        raise ApiError(ErrorCode.INVALID_VALUE, message, param=field)


def _weights(field: str, value: Any, limits: RequestLimits) -> Iterator[tuple[str, Any, int]]:
    """What weighs anything at any depth: its name, a key that the same bounds share, and its weight."""
    if isinstance(value, list):
        for one in value:
            yield from _weights(field, one, limits)
        return
    if not isinstance(value, dict):
        return
    yield from _of_schema(value)
    for name, one in value.items():
        if name in ("json", "structural_tag") and isinstance(one, str):
            _check_size(field, one.encode(), 1, limits)
            try:
                one = msgspec.json.decode(one)
            except msgspec.DecodeError:
                continue  # vLLM says what it lacks
        if name in _WEIGHED and isinstance(one, str):
            yield name, object(), _WEIGHED[name](one, limits.max_guide_weight)
        elif name == "patternProperties" and isinstance(one, dict):
            yield from ((name, object(), weight_of(pattern, limits.max_guide_weight)) for pattern in one)
        inner = patterns = 0
        loop = name == "content" and value.get("type") in _LOOPS
        for part, key, weight in _weights(field, one, limits):
            inner += weight
            patterns += weight if part.startswith("pattern") else 0
            if not loop or inner > limits.max_guide_weight:
                yield part, key, weight
        if loop:
            yield name, object(), 10 * max(1, inner)
        elif name == "allOf" and isinstance(one, list) and len(one) > 1:  # all patterns at once
            yield name, object(), patterns**2 // 100


def _of_schema(schema: dict[str, Any]) -> Iterator[tuple[str, Any, int]]:
    shortest, longest, *items = (
        max(int(bound), 0) if isinstance(bound := schema.get(name), int | float) else None
        for name in ("minLength", "maxLength", "minItems", "maxItems")
    )
    if (length := shortest if longest is None else longest) is not None:
        yield "maxLength", (shortest, longest), _LENGTH * min(length, _SATURATION)
    yield "maxItems", tuple(items), sum(filter(None, items)) // 25
    properties, patterns, required = (schema.get(name) for name in ("properties", "patternProperties", "required"))
    if isinstance(properties, dict):
        optional = len(properties.keys() - (set(map(str, required)) if isinstance(required, list) else ()))
        several = len(patterns) if isinstance(patterns, dict) else 0
        yield "properties", object(), optional**2 // 100 + 50 * len(properties) * several**2
        if "minProperties" in schema or "maxProperties" in schema:
            yield "maxProperties", object(), len(properties) ** 3 // 200  # each subset is a state


class _Part(NamedTuple):
    """A part of an expression. `width`: how many tokens may begin it. `single`: it is one character. `nullable`: it may
    be empty. `varies`: it repeats something, so that a text may match it in several ways. `literal`: all that it
    matches has a literal. `rules`: those that it may come to before any literal."""

    weight: int = 0
    width: int = 0
    single: bool = False
    nullable: bool = False
    varies: bool = False
    literal: bool = False
    rules: frozenset[str] = frozenset()

    def repeated(self, low: int, high: int | None) -> "_Part":
        ambiguous = self.varies and not self.literal
        if self.single:
            times = 2 if high is None else min(high, _SATURATION)
        elif high is None:
            times = _LOOP if ambiguous else 2
        else:
            times = 3 * high**2 if ambiguous and high > 1 else high
        weight = self.weight * max(times, 1) + (1 if low == high or high == 1 else min(3 * self.weight, 10))
        return self._replace(
            weight=min(weight, _TOO_HEAVY),
            width=self.width * (high or 1) if low == 0 else self.width,
            single=False,
            nullable=self.nullable or low == 0,
            varies=self.varies or low != high,
            literal=self.literal and low > 0,
        )


def weight_of(expression: str, allowed: int = _TOO_HEAVY) -> int:
    """The weight of a regular expression; of its beginning, where that has more than is allowed."""
    return _weigh(_EXPRESSION.finditer(expression), _character, allowed).weight


def weight_of_grammar(grammar: str, allowed: int = _TOO_HEAVY) -> int:
    """The weight of a grammar in EBNF or Lark: of its text, and of its rules with all that they refer to.

    Ambiguous recursion cannot be bounded: a rule that comes back to itself before any literal is too heavy.
    """
    rules: dict[str, list[re.Match[str]]] = {}
    tokens: list[re.Match[str]] = []
    for count, token in enumerate((_EBNF if "::=" in grammar else _LARK).finditer(grammar)):
        if count > 2 * allowed:
            return count
        if head := token["head"]:
            tokens = rules.setdefault(head.rstrip(":= \t\r\n").lstrip("?!"), [])
        elif token.lastgroup or token.group()[0] in "()|[]":
            tokens.append(token)
    flat = {name: _weigh(body, _symbol, allowed) for name, body in rules.items()}
    if (weight := sum(part.weight for part in flat.values())) > allowed:
        return weight
    try:
        TopologicalSorter({name: part.rules for name, part in flat.items()}).prepare()
    except CycleError:
        return _TOO_HEAVY
    whole = {}

    def expanded(token: re.Match[str], depth: int = 0) -> _Part:
        name = token.group()
        if token.lastgroup != "rule" or name not in rules:
            return _symbol(token)._replace(weight=0 if token["literal"] else 1, rules=frozenset())
        if depth > _MAX_DEPTH:
            return _Part(_TOO_HEAVY)
        if name not in whole:
            whole[name] = _Part(10, varies=True)  # if it comes back to itself
            whole[name] = _weigh(rules[name], lambda token: expanded(token, depth + 1), allowed)
        return whole[name]

    return max([weight, *(expanded(token).weight for body in rules.values() for token in body if token["rule"])])


def _weigh(tokens: Iterable[re.Match[str]], element: Callable[[re.Match[str]], _Part], allowed: int) -> _Part:
    groups: list[list[list[_Part]]] = [[[]]]  # those that are open, their alternatives, and the parts of these
    for count, token in enumerate(tokens):
        text, parts = token.group(), groups[-1][-1]
        if token.lastgroup == "times":
            parts.append((parts.pop() if parts else _Part()).repeated(*_times(text)))
        elif token.lastgroup:
            parts.append(element(token))
        elif text == "|":
            groups[-1].append([])
        elif text[0] in "([":
            groups.append([[]])
        else:
            _close(groups, optional=text == "]")
        if count > allowed:
            return _Part(count)
    while len(groups) > 1:
        _close(groups)
    return _either(groups[0])


def _close(groups: list[list[list[_Part]]], *, optional: bool = False) -> None:
    group = _either(groups.pop())
    if not groups:  # it was never opened: an engine refuses that
        groups.append([[]])
    groups[-1][-1].append(group.repeated(0, 1) if optional else group)


def _either(alternatives: list[list[_Part]]) -> _Part:
    unseen = [alternative for alternative in alternatives if not any(part.literal for part in alternative)]
    return _Part(
        weight=min(sum(map(_weight_in_row, alternatives)), _TOO_HEAVY),
        width=max(max((part.width for part in _first(alternative)), default=0) for alternative in alternatives),
        nullable=any(all(part.nullable for part in alternative) for alternative in alternatives),
        varies=any(part.varies for alternative in alternatives for part in alternative),
        literal=not unseen,
        rules=frozenset().union(*(part.rules for alternative in unseen for part in alternative)),
    )


def _first(parts: list[_Part]) -> Iterator[_Part]:
    """Those that may come first."""
    for part in parts:
        yield part
        if not part.nullable:
            return


def _weight_in_row(parts: list[_Part]) -> int:
    """What may be missing adds its width for each other such part in the same row: an engine is at all of them at
    once."""
    weight = 1
    for nullable, row in groupby(parts, key=attrgetter("nullable")):
        several = [*row]
        weight += sum(part.weight for part in several)
        weight += len(several) * sum(part.width for part in several) if nullable else 0
    return weight


def _character(token: re.Match[str]) -> _Part:
    text = token.group()
    if token["class"] is None:
        return _Part(1 + len(text) // 16, 1, single=len(text) == 1, literal=True)
    width = _WIDE if _ALMOST_ANY.fullmatch(text) else 1 if text[0] == "\\" and text[1:] not in "wdsb" else _NARROW
    return _Part(width, width, single=True, literal=width == 1)


def _symbol(token: re.Match[str]) -> _Part:
    text = token.group()
    if token["rule"]:
        return _Part(1, 1, varies=True, rules=frozenset((text,)))
    if token["class"]:
        return _character(token)
    if text[0] == "/":  # a regular expression of Lark's
        return _Part(weight_of(text), _WIDE, nullable=True, varies=True)
    return _Part(1 + len(text) // 16, 1, single=True, nullable=bool(token["empty"]), literal=bool(token["literal"]))


def _times(text: str) -> tuple[int, int | None]:
    if text[0] in "*+?":
        return int(text[0] == "+"), 1 if text[0] == "?" else None
    low, _, high = text.strip("{}~? ").replace("..", ",").partition(",")
    fewest = int(low.strip()[:9] or 0)
    if not high.strip():
        return fewest, None if "," in text else fewest
    return fewest, max(int(high.strip()[:9]), fewest)


_WEIGHED = {"pattern": weight_of, "regex": weight_of, "grammar": weight_of_grammar}


def _too_much(field: str, has: str, limit: str) -> ApiError:
    message = f"{field}: {has}; allowed: at most gateway.limits.{limit}"
    return ApiError(ErrorCode.INVALID_VALUE, message, param=field)
