"""vLLM's error answers (as it gave them) in OpenAI's form."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.openai.endpoints import BodyKind
from deployments.openai.engine_errors import engine_error

CASES = [
    (
        {"error": {"message": "1 validation error: ...", "type": "Bad Request", "param": "body.temperature", "code": 400}},
        BodyKind.CHAT, {"temperature": "hot"}, "invalid_value", "temperature",
    ),
    (
        {"error": {"message": "...", "type": "Bad Request", "param": "body.tools.0.function", "code": 400}},
        BodyKind.CHAT, {"tools": [{}]}, "invalid_value", "tools",
    ),
    (
        {"error": {"message": "This model's maximum context length ...", "type": "BadRequestError", "param": "input_tokens", "code": 400}},
        BodyKind.CHAT, {"messages": []}, "context_length_exceeded", "messages",
    ),
    (
        {"error": {"message": "This model's maximum context length ...", "type": "BadRequestError", "param": "input_tokens", "code": 400}},
        BodyKind.COMPLETION, {"prompt": "x"}, "context_length_exceeded", "prompt",
    ),
    (
        {"error": {"message": "frequency_penalty must be in [-2, 2], got 9.0.", "type": "BadRequestError", "param": None, "code": 400}},
        BodyKind.COMPLETION, {"model": "demo", "frequency_penalty": 9}, "invalid_value", "frequency_penalty",
    ),
    (
        {"error": {"message": "The decoder prompt cannot be empty", "type": "BadRequestError", "param": None, "code": 400}},
        BodyKind.COMPLETION, {"model": "demo", "prompt": [[]]}, "invalid_value", "prompt",
    ),
    (
        {"error": {"message": "demo is not a multimodal model", "type": "BadRequestError", "param": None, "code": 400}},
        BodyKind.CHAT, {"model": "demo", "messages": []}, "invalid_value", None,
    ),
    ({"detail": "Unprocessable"}, BodyKind.CHAT, {}, "invalid_value", None),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "kind", "body", "code", "param"), CASES)
def test_what_vllm_answers(answer: Any, kind: BodyKind, body: Any, code: str, param: str | None) -> None:
    error = engine_error(400, json.dumps(answer).encode(), kind, json.dumps(body).encode())
    assert (error.error.code, error.error.kind, error.param) == (code, "invalid_request_error", param)
    if "error" in answer:
        assert error.message == answer["error"]["message"]


def test_servers_errors() -> None:
    error = engine_error(500, b"Internal Server Error", BodyKind.CHAT, b"{}")
    assert (error.error.code, error.message) == ("engine_error", "Internal Server Error")
    assert engine_error(500, b"", BodyKind.CHAT, b"{}").message == "the engine answered 500"


ANYTHING = st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
ERRORS = st.dictionaries(st.sampled_from(["message", "type", "param", "code"]), ANYTHING)
ANSWERS = st.binary() | ANYTHING.map(json.dumps).map(str.encode) | ERRORS.map(lambda error: json.dumps({"error": error}).encode())


@given(st.integers(400, 599), ANSWERS, st.sampled_from(BodyKind), st.binary() | ANYTHING.map(json.dumps).map(str.encode))
def test_any_answer_becomes_an_error_in_form(status: int, payload: bytes, kind: BodyKind, body: bytes) -> None:
    error = json.loads(engine_error(status, payload, kind, body).payload())["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error["param"] is None or isinstance(error["param"], str)
    assert isinstance(error["code"], str)
