"""What the gateway changes in an engine's answer."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.openai.endpoints import BodyKind, EventSplitter, engine_error

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


ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
ERRORS = st.dictionaries(st.sampled_from(["message", "type", "param", "code"]), ANYTHING)
ANSWERS = (
    st.binary()
    | ANYTHING.map(json.dumps).map(str.encode)
    | ERRORS.map(lambda error: json.dumps({"error": error}).encode())
)


@pytest.mark.whole
@given(
    st.integers(400, 599), ANSWERS, st.sampled_from(BodyKind), st.binary() | ANYTHING.map(json.dumps).map(str.encode)
)
def test_any_answer_becomes_an_error_in_form(status: int, payload: bytes, kind: BodyKind, body: bytes) -> None:
    error = json.loads(engine_error(status, payload, kind, body).payload())["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error["param"] is None or isinstance(error["param"], str)
    assert isinstance(error["code"], str)


LINES = st.lists(
    st.sampled_from([b"data: {}", b"event: x", b": note", b"data: a\xc3\xa4", b"id"]), min_size=1, max_size=3
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, bytes, list[bytes]]:
    """A stream, its ends of lines, and the pieces in which it comes."""
    newline = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    events = draw(st.lists(LINES, max_size=5))
    stream = b"".join(newline.join(lines) + newline * 2 for lines in events) + draw(
        st.sampled_from([b"", b"data: half", b"d"])
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return stream, newline, [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


@given(streams())
def test_any_split_passes_the_same_bytes_and_each_whole_event_at_once(case: tuple[bytes, bytes, list[bytes]]) -> None:
    stream, newline, pieces = case
    events, passed, came = EventSplitter(), b"", b""
    for piece in pieces:
        came += piece
        passed += events.feed(piece)
        assert stream.startswith(passed)
        assert newline * 2 not in came[len(passed) :], "held back"
        assert not passed or passed.endswith(newline * 2)
    assert passed + events.rest() == stream
    assert events.rest() == b""


@pytest.mark.parametrize("piece", [b"data: x\n\n", b"data: x\n\ndata: y\n\n"])
def test_whole_events_are_passed_as_they_are(piece: bytes) -> None:
    assert EventSplitter().feed(piece) is piece
