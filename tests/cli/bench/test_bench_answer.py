"""Reading answers, without a network: whatever the cuts, the same tokens, usage and verdict."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.bench.answer import FailureKind, StreamedAnswer, TokenUsage, read_usage, read_whole

USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}}


def event(body: dict[str, Any], spacing: tuple[str, str] = (",", ":")) -> bytes:
    return f"data: {json.dumps(body, separators=spacing)}\n\n".encode()


def fed(*chunks: bytes) -> StreamedAnswer:
    answer = StreamedAnswer()
    for position, chunk in enumerate(chunks):
        answer.feed(chunk, float(position))
    return answer


@pytest.mark.whole
@given(
    texts=st.lists(st.text(max_size=8), min_size=1, max_size=20),
    cuts=st.lists(st.integers(min_value=0, max_value=4_000), max_size=30),
    newline=st.sampled_from([b"\n", b"\r\n"]),
    spacing=st.sampled_from([(",", ":"), (", ", ": ")]),
)
def test_every_cut_of_a_stream_reads_the_same(
    texts: list[str], cuts: list[int], newline: bytes, spacing: tuple[str, str]
) -> None:
    events = [event({"choices": [{"text": text}]}, spacing) for text in texts]
    stream = (b": ping\n\n" + b"".join(events) + event({"choices": [], "usage": USAGE}) + b"data: [DONE]\n\n").replace(
        b"\n", newline
    )
    borders = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    answer = fed(*(stream[start:end] for start, end in itertools.pairwise(borders)))
    assert answer.end() is None
    assert len(answer.token_times) == len(texts)
    assert answer.usage == TokenUsage(7, 2, 5)
    assert (answer.gaps() >= 0).all()


def test_a_chats_opening_event_is_no_token() -> None:
    opening = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    answer = fed(
        opening, event({"choices": [{"delta": {"content": "a"}}]}), event({"choices": [{"delta": {"content": "b"}}]})
    )
    assert answer.token_times == [1.0, 2.0]


def test_usage_may_come_with_the_last_choice() -> None:
    answer = fed(
        event({"choices": [{"text": "a"}], "usage": None}),
        event({"choices": [{"text": "b"}], "usage": USAGE}),
        b"data: [DONE]\n\n",
    )
    assert answer.end() is None
    assert answer.usage == TokenUsage(7, 2, 5)


def test_an_error_before_done_wins_and_the_first_one_is_kept() -> None:
    answer = fed(
        event({"choices": [{"text": "a"}]}),
        event({"error": {"message": "m", "type": "t"}}),
        event({"error": {"message": "n"}}),
        b"data: [DONE]\n\n",
    )
    failure = answer.end()
    assert failure is not None
    assert (failure.kind, failure.detail, failure.message) == (FailureKind.STREAM_ERROR, "t", "m")


def test_a_text_that_looks_like_an_error_is_a_token() -> None:
    answer = fed(event({"choices": [{"text": '{"error": {"message": "no"}} "choices":[]'}]}), b"data: [DONE]\n\n")
    assert answer.end() is None
    assert len(answer.token_times) == 1


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"<html>", b'{"choices": []}', b'{"object": "error"}'])
def test_a_whole_answer_without_choices_is_a_failure(data: bytes) -> None:
    _, failure = read_whole(data)
    assert failure is not None
    assert failure.kind is FailureKind.BAD_ANSWER


def test_usage_without_details_leaves_the_cache_unknown() -> None:
    assert read_usage({"usage": {"prompt_tokens": 1, "completion_tokens": 2}}) == TokenUsage(1, None, 2)
    assert read_usage({"usage": None}) is None


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_garbage_never_raises(chunks: list[bytes]) -> None:
    answer = fed(*chunks, b"\n\n")
    assert answer.end() is not None or b"[DONE]" in b"".join(chunks)
