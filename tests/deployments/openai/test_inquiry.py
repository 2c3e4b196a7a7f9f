"""What routing reads of a body: exact for good ones, and nothing but ApiError for any other."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.openai.endpoints import BodyKind
from deployments.openai.errors import ApiError
from deployments.openai.inquiry import Inquiry, read_inquiry

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = "model prompt messages input instructions max_tokens max_completion_tokens max_output_tokens n stream"
KEYS = st.sampled_from([*FIELDS.split(), "store", "background", "previous_response_id"])
LIKELY = ANYTHING | st.sampled_from(
    ["demo", 1, 5, "text", ["a", "b"], [1, 2], [[1], [2, 3]], [{"role": "user", "content": "x"}], True, False]
)


def read(kind: BodyKind, body: Any) -> Inquiry:
    return read_inquiry(kind, body if isinstance(body, bytes) else json.dumps(body).encode())


def holds(kind: BodyKind, body: bytes) -> None:
    """Reads, and checks what came of it."""
    refused = None
    try:
        inquiry = read_inquiry(kind, body)
        assert inquiry.sequences >= 1
        assert inquiry.prompt_chars >= 0
        assert inquiry.max_tokens is None or inquiry.max_tokens >= 0
    except ApiError as error:
        refused = error
    if refused is not None:
        assert 400 <= refused.error.status < 500
        assert len(refused.message) < 400
        assert refused.payload()


@given(st.sampled_from(BodyKind), ANYTHING)
def test_any_json_is_read_or_refused(kind: BodyKind, body: Any) -> None:
    holds(kind, json.dumps(body).encode())


@pytest.mark.whole
@given(st.sampled_from(BodyKind), st.dictionaries(KEYS, LIKELY))
def test_any_json_that_looks_like_a_request_is_read_or_refused(kind: BodyKind, body: dict[str, Any]) -> None:
    holds(kind, json.dumps({"model": "demo", **body}).encode())


@given(st.sampled_from(BodyKind), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(kind: BodyKind, body: bytes) -> None:
    holds(kind, body)


@pytest.mark.parametrize("kind", BodyKind)
@pytest.mark.parametrize(
    "deep", [b"[" * 100_000, b'{"a":' * 100_000, b'{"model":"demo","prompt":' + b"[" * 5_000, b"1" * 10_000]
)
def test_depth_and_size_break_nothing(kind: BodyKind, deep: bytes) -> None:
    holds(kind, deep)


def test_what_is_read_of_completions() -> None:
    ask, kind = {"model": "demo", "prompt": "four"}, BodyKind.COMPLETION
    assert read(kind, ask) == Inquiry(kind, "demo", False, 4, 0, 16, "max_tokens", "prompt", 1)
    assert read(kind, {**ask, "stream": True, "n": 2, "max_tokens": 5}) == Inquiry(
        BodyKind.COMPLETION, "demo", True, 4, 0, 5, "max_tokens", "prompt", 2
    )
    assert read(kind, {**ask, "prompt": ["a", "bcd"], "n": 3}) == Inquiry(
        BodyKind.COMPLETION, "demo", False, 3, 0, 16, "max_tokens", "prompt", 6
    )
    assert read(kind, {**ask, "prompt": [1, 2, 3]}) == Inquiry(kind, "demo", False, 0, 3, 16, "max_tokens", "prompt", 1)
    assert read(kind, {**ask, "prompt": [[1], [2, 3]]}) == Inquiry(
        BodyKind.COMPLETION, "demo", False, 0, 2, 16, "max_tokens", "prompt", 2
    )


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.booleans()), min_size=1))
def test_of_several_texts_the_one_of_most_characters_counts(texts: list[tuple[str, bool]]) -> None:
    """However many bytes each has in the body."""
    written = ",".join(json.dumps(text, ensure_ascii=escaped) for text, escaped in texts)
    inquiry = read(BodyKind.COMPLETION, f'{{"model":"demo","prompt":[{written}]}}'.encode())
    assert (inquiry.prompt_chars, inquiry.sequences) == (max(len(text) for text, _ in texts), len(texts))


def test_what_is_read_of_chats() -> None:
    parts = [{"type": "text", "text": "abc"}, {"type": "image_url", "image_url": {"url": "data:" + "x" * 1_000}}]
    chat = {
        "model": "demo",
        "messages": [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "12"}]},
        ],
    }
    inquiry = read(BodyKind.CHAT, chat)
    assert (inquiry.prompt_chars, inquiry.max_tokens) == (len("userabcassistant" + '[{"id": "12"}]'), None)
    assert read(BodyKind.CHAT, {**chat, "max_tokens": 3, "max_completion_tokens": 4}).max_tokens == 4
    assert read(BodyKind.CHAT, {**chat, "max_tokens": 3}).max_tokens_field == "max_tokens"


def test_a_prompt_cache_key_is_a_part_of_the_prefix() -> None:
    chat = {"model": "demo", "messages": [{"role": "user", "content": "one two three " * 100}]}

    def prefix(**hints: Any) -> set[int]:
        return set(read(BodyKind.CHAT, {**chat, **hints}).prefix)

    assert prefix() == prefix(prompt_cache_key=None)
    assert prefix(prompt_cache_key="a") == prefix(prompt_cache_key="a")
    for other in (prefix(), prefix(prompt_cache_key="b"), prefix(cache_salt="a")):
        assert not prefix(prompt_cache_key="a") & other
    assert not prefix(prompt_cache_key="a", cache_salt="x") & prefix(prompt_cache_key="a")


def test_what_is_read_of_the_others() -> None:
    assert read(BodyKind.EMBEDDING, {"model": "demo", "input": ["ab", "c"]}) == Inquiry(
        BodyKind.EMBEDDING, "demo", False, 2, 0, 0, "", "input", 2
    )
    response = {
        "model": "demo",
        "input": "abc",
        "instructions": "de",
        "store": False,
        "background": None,
        "max_output_tokens": 9,
    }
    assert read(BodyKind.RESPONSE, response) == Inquiry(
        BodyKind.RESPONSE, "demo", False, 5, 0, 9, "max_output_tokens", "input", 1
    )
    assert read(BodyKind.TOKENIZER, {"prompt": "x"}).model == ""
    assert read(BodyKind.TOKENIZER, {"model": None}).model == ""


@pytest.mark.parametrize(
    ("kind", "more", "each"),
    [
        (BodyKind.COMPLETION, {"prompt_logprobs": 0}, 1),
        (BodyKind.COMPLETION, {"echo": True, "logprobs": 20}, 21),
        (BodyKind.COMPLETION, {"echo": True, "logprobs": 20, "prompt_logprobs": 1}, 2),
        (BodyKind.COMPLETION, {"logprobs": 20}, 0),
        (BodyKind.COMPLETION, {"echo": True}, 0),
        (BodyKind.CHAT, {"echo": 1, "logprobs": True, "top_logprobs": 5}, 6),
        (BodyKind.CHATS, {"prompt_logprobs": 5}, 6),
    ],
)
def test_the_log_probabilities_of_a_prompt_are_bounded(kind: BodyKind, more: dict[str, Any], each: int) -> None:
    prompts = {"prompt": [[1] * 99] * 2, "messages": [[{"role": "user", "content": "x"}]] * 2}
    prompts |= {"messages": [{"role": "user", "content": "x"}]} if kind is BodyKind.CHAT else {}
    inquiry = read(kind, {"model": "demo", **prompts, **more})
    asked = each * 99 * (1 if kind is BodyKind.CHAT else 2)
    inquiry.check_prompt_logprobs(99, asked)
    if asked:
        with pytest.raises(ApiError, match=rf"about {asked} .*gateway\.limits\.max_prompt_logprobs = {asked - 1}$"):
            inquiry.check_prompt_logprobs(99, asked - 1)


@pytest.mark.parametrize("value", ["20", 20.0, -2, True, [1]])
def test_log_probabilities_that_are_no_count_are_refused(value: Any) -> None:
    for more in ({"prompt_logprobs": value}, {"echo": True, "logprobs": value}):
        with pytest.raises(ApiError, match="logprobs = "):
            read(BodyKind.COMPLETION, {"prompt": "hi", **more})


def test_all_log_probabilities_are_as_many_as_a_large_vocabulary() -> None:
    with pytest.raises(ApiError, match="about 131072 "):
        read(BodyKind.COMPLETION, {"prompt": "hi", "prompt_logprobs": -1}).check_prompt_logprobs(1, 8_192)
