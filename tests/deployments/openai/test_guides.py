"""What guides an answer is bounded: by bytes, values, depth, and by the states that it is compiled to."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from cluster.spec import RequestLimits
from deployments.openai.endpoints import BodyKind
from deployments.openai.errors import ApiError
from deployments.openai.guides import check_guide, weight_of
from deployments.openai.inquiry import read_inquiry

LIMITS = RequestLimits()
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
FORMS = {
    "date": r"\d{4}-\d{2}-\d{2}",
    "email": r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}",
    "uuid": r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}",
    "name": r"[A-Z][a-z]{1,80}( [A-Z][a-z]{1,80})?",
}


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": properties}}}


def read(field: str, value: Any, kind: BodyKind = BodyKind.CHAT) -> None:
    more = {"input": "Hi"} if kind is BodyKind.RESPONSE else {"max_tokens": 9} if kind is BodyKind.MESSAGES else {}
    read_inquiry(kind, json.dumps({**CHAT, **more, field: value}).encode())


@pytest.mark.parametrize("pattern", FORMS.values(), ids=FORMS)
def test_usual_patterns_pass(pattern: str) -> None:
    read("structured_outputs", {"regex": pattern})
    read("response_format", schema(a={"type": "string", "pattern": pattern, "maxLength": 200}))


def test_usual_schemas_tools_and_lists_pass() -> None:
    read("response_format", schema(**{f"field_{n}": {"type": "string", "description": "text"} for n in range(100)}))
    tool = {"type": "function", "function": {"name": "f", "parameters": schema(a={"enum": ["x", "y"]})}}
    read("tools", [tool] * 60)
    read("stop", ["\n", "###"])
    read("logit_bias", {str(n): 1.0 for n in range(300)})


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("structured_outputs", {"regex": "(a|b){1,1000}" * 40_000}, "max_guide_bytes = 32768"),
        ("structured_outputs", {"regex": "(a|b){1,1000}" * 3}, "max_guide_weight = 1000"),
        ("structured_outputs", {"regex": "((a{1,99}){1,99}){1,99}"}, "a weight of 970299"),
        ("structured_outputs", {"regex": "(((a*)*)*)*"}, "max_guide_weight"),
        ("structured_outputs", {"choice": [str(n) for n in range(2_000)]}, "max_guide_values = 1024"),
        ("structured_outputs", {"grammar": 'root ::= (("a"{1,99}){1,99}){1,99}'}, "max_guide_weight"),
        ("response_format", schema(a={"enum": [f"v{n}" for n in range(43_000)]}), "max_guide_bytes"),
        ("response_format", schema(a={"enum": list(range(5_000))}), "max_guide_values"),
        ("response_format", schema(a={"type": "string", "maxLength": 100_000}), "maxLength: 100000"),
        ("response_format", schema(a={"type": "string", "pattern": "(a{1,99}){1,99}"}), "pattern: a weight of 9801"),
        ("response_format", schema(a={"patternProperties": {"(x{1,99}){1,99}": {}}}), "pattern: a weight of"),
        (
            "response_format",
            schema(a={"properties": {str(n): {} for n in range(200)}, "minProperties": 50}),
            "maxProperties: inf",
        ),
        ("tools", [{"function": {"name": "f", "parameters": {"pattern": "(a{1,99}){1,99}"}}}], "tools: pattern"),
        ("stop", [str(n) for n in range(5_000)], "stop: "),
        ("logit_bias", {str(n): 1 for n in range(3_000)}, "logit_bias: "),
        ("bad_words", ["x" * 40_000], "bad_words: 40004 bytes"),
    ],
)
def test_what_would_stall_an_engine_is_refused_by_its_name(field: str, value: Any, says: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(field, value)
    assert refused.value.param == field
    assert says in refused.value.message
    assert "allowed: at most" in refused.value.message


def test_every_dialect_is_bounded() -> None:
    deep = {"pattern": "(a{1,99}){1,99}"}
    for kind, field, value in (
        (BodyKind.RESPONSE, "text", {"format": {"type": "json_schema", "schema": deep}}),
        (BodyKind.MESSAGES, "tools", [{"name": "f", "input_schema": deep}]),
        (BodyKind.MESSAGES, "output_config", {"format": {"schema": deep}}),
    ):
        with pytest.raises(ApiError, match="a weight of 9801"):
            read(field, value, kind)


def test_too_many_levels_are_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(70):
        nested = {"items": nested}
    with pytest.raises(ApiError, match="levels; allowed: at most 64"):
        read("response_format", nested)


def test_an_operator_may_allow_more() -> None:
    value = Raw(json.dumps({"regex": "(a{1,99}){1,99}"}).encode())
    check_guide("structured_outputs", value, RequestLimits(max_guide_weight=10_000))
    with pytest.raises(ApiError):
        check_guide("structured_outputs", value, LIMITS)


@given(st.text(max_size=60))
def test_any_text_has_a_weight_that_grows_with_repetition(pattern: str) -> None:
    weight = weight_of(pattern)
    assert weight >= 0
    assert weight_of(f"({pattern})" + "{7}") >= weight
