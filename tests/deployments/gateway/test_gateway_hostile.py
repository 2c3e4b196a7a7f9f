"""Bodies that mean harm: refused or read, with little memory, and with nothing built of what is too much."""

import asyncio
import json
import random
import tracemalloc
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.hostile.bodies import body_of, size_of
from cluster.spec import RequestLimits
from deployments.gateway.connection import Reader
from deployments.openai import prefix
from deployments.openai.endpoints import ENDPOINTS, BodyKind, engine_error
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.inquiry import MAX_DEPTH, MAX_VALUES, Inquiry, read_inquiry
from deployments.openai.prompt import MAX_MESSAGES, MAX_OTHER_VALUES

KINDS = {endpoint.path: endpoint.body for endpoint in ENDPOINTS}
FIXED_BYTES = 6 << 20
"""What a reading may take whatever the body's size: for the messages and texts that it looks at one by one, of which
there is a bounded number."""


def peak_of(kind: BodyKind, body: bytes) -> tuple[Inquiry | ApiError, int]:
    """What came of a body, and the most memory that reading it took."""
    found: Inquiry | ApiError
    tracemalloc.start()
    try:
        found = read_inquiry(kind, body)
    except ApiError as error:
        found = error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return found, peak


def refusal(kind: BodyKind, body: bytes) -> ApiError:
    """The error of a body that must be refused."""
    with pytest.raises(ApiError) as caught:
        read_inquiry(kind, body)
    return caught.value


@given(st.integers(0, 1 << 32))
def test_any_hostile_body_is_read_or_refused(seed: int) -> None:
    draw = random.Random(seed)
    path, body = body_of(draw, size_of(draw, 1 << 16))
    refused = None
    try:
        inquiry = read_inquiry(KINDS[path], body)
        assert inquiry.prompt_chars <= len(body)
        assert inquiry.prompt_ids <= len(body)
        assert len(inquiry.prefix) <= 1_024
        # What is read is JSON for every other parser too, but for the encoding of texts that nobody here looks at.
        assert isinstance(json.loads(body.decode(errors="replace"), parse_int=len), dict)
    except ApiError as error:
        refused = error
    if refused is not None:
        assert refused.error.status in (400, 413)
        assert len(refused.message) < 400
        assert refused.payload()


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(30))
def test_a_reading_takes_little_memory(seed: int) -> None:
    draw = random.Random(seed)
    path, body = body_of(draw, 1 << 19)
    _, peak = peak_of(KINDS[path], body)
    assert peak <= 3 * len(body) + FIXED_BYTES


@pytest.mark.whole
@pytest.mark.parametrize("unit", [b"1", b"[1]", b"{}", b'"a"', b"[]", b"[1,2]"])
@pytest.mark.parametrize("field", [b"prompt", b"messages", b"input", b"stop"])
def test_too_many_values_are_counted_and_not_built(unit: bytes, field: bytes) -> None:
    """The 512 KiB of `[1, 1, ..., "a"]` that took a second and half a gigabyte, and its like."""
    body = b'{"model":"m","%s":[%s"a"]}' % (field, (unit + b",") * (MAX_VALUES + 1))
    for kind in BodyKind:
        found, peak = peak_of(kind, body)
        assert isinstance(found, ApiError)
        assert found.error is ErrorCode.BODY_TOO_LARGE
        assert "allowed: at most" in found.message
        assert peak <= 3 * len(body) + FIXED_BYTES


def test_a_mixed_prompt_builds_one_error_and_no_list() -> None:
    body = b'{"model":"m","prompt":[%s"a"]}' % (b"1," * (MAX_OTHER_VALUES - 10))
    found, peak = peak_of(BodyKind.COMPLETION, body)
    assert isinstance(found, ApiError)
    assert (found.error, found.param) == (ErrorCode.INVALID_VALUE, "prompt")
    assert peak <= 3 * len(body) + FIXED_BYTES


def test_long_prompts_pass() -> None:
    ids = list(range(131_072))
    assert read_inquiry(BodyKind.COMPLETION, json.dumps({"model": "m", "prompt": ids}).encode()).prompt_ids == 131_072
    embedding = {"model": "m", "input": [ids[at : at + 512] for at in range(0, len(ids), 512)]}
    assert read_inquiry(BodyKind.EMBEDDING, json.dumps(embedding).encode()).sequences == 256
    for text in ('1,"a,b",[x],{y}\n' * 60_000, 'if (a[1] == "\\\\") { b = [c, {d}]; }\n' * 20_000):
        assert read_inquiry(
            BodyKind.COMPLETION, json.dumps({"model": "m", "prompt": text}).encode()
        ).prompt_chars == pytest.approx(len(text), rel=1e-4)
        chat = {"model": "m", "messages": [{"role": "user", "content": text}]}
        assert read_inquiry(BodyKind.CHAT, json.dumps(chat).encode()).prompt_chars == pytest.approx(len(text), rel=1e-4)


@pytest.mark.whole
@pytest.mark.parametrize("unit", ["a", "中", "😀", "\n", '"', "\\"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_very_long_texts_are_counted_to_the_character(unit: str, ascii_only: bool) -> None:
    unit_bytes = len(json.dumps(unit, ensure_ascii=ascii_only).encode()) - 2
    for shift in range(13):  # a part may end anywhere within a character
        text = "a" * shift + unit * (1_200_000 // unit_bytes) + "and another text"
        body = json.dumps({"model": "m", "prompt": text}, ensure_ascii=ascii_only).encode()
        assert read_inquiry(BodyKind.COMPLETION, body).prompt_chars == len(text)


def test_how_a_long_text_begins_says_nothing_of_the_rest() -> None:
    """Escaped surrogates have twelve bytes a character: the four MB behind them counted for a tenth of themselves."""
    parts = [{"type": "text", "text": text} for text in ("😀" * 75_000, "word " * 800_000)]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]}).encode()
    assert read_inquiry(BodyKind.CHAT, body).prompt_chars == len("user") + 75_000 + 4_000_000


def test_what_is_no_whole_chunk_of_ids_is_looked_at_once() -> None:
    """A search from every one of its bytes took six seconds for three MiB of digits."""
    tried = []

    class Counting:
        def match(self, ids: bytes, at: int) -> Any:
            tried.append(at)
            return chunk.match(ids, at)

    chunk = prefix._CHUNK_OF_IDS
    with mock.patch.object(prefix, "_CHUNK_OF_IDS", Counting()):
        assert prefix.ids_prefix(b"1" * 1_000, prefix.PLAIN) == ()
        assert tried == [0]
        assert len(prefix.ids_prefix(b"7," * 130 + b"1" * 1_000, prefix.PLAIN)) == 2
    assert tried == [0, 0, 128, 256]
    assert read_inquiry(BodyKind.COMPLETION, b'{"model":"m","prompt":[%s]}' % (b"1" * (1 << 20))).prompt_ids == 1


def test_the_bounds_are_named() -> None:
    deep = b'{"model":"m","prompt":"x","a":%s%s}' % (b"[" * 200, b"]" * 200)
    assert f"allowed: at most {MAX_DEPTH}" in refusal(BodyKind.COMPLETION, deep).message
    ids = b'{"model":"m","prompt":[%s1]}' % (b"1," * MAX_VALUES)
    assert f"gateway.limits.max_values = {MAX_VALUES}" in refusal(BodyKind.COMPLETION, ids).message
    assert read_inquiry(BodyKind.COMPLETION, ids, 2 * MAX_VALUES).prompt_ids == MAX_VALUES + 1
    with pytest.raises(ApiError, match=r"gateway\.limits\.max_values = 1024"):
        read_inquiry(BodyKind.COMPLETION, b'{"model":"m","prompt":[%s1]}' % (b"1," * 1_024), 1_024)
    other = b'{"model":"m","prompt":"x","stop":[%s1]}' % (b"1," * MAX_OTHER_VALUES)
    assert (
        f"not token ids of a prompt; allowed: at most {MAX_OTHER_VALUES}" in refusal(BodyKind.COMPLETION, other).message
    )
    chat = b'{"model":"m","messages":[%s{}]}' % (b"{}," * MAX_MESSAGES)
    assert f"allowed: at most {MAX_MESSAGES}" in refusal(BodyKind.CHAT, chat).message
    parts = b'{"model":"m","messages":[{"content":[%s{}]}]}' % (b"{}," * MAX_MESSAGES)
    assert f"allowed: at most {MAX_MESSAGES}" in refusal(BodyKind.CHAT, parts).message
    system = b'{"model":"m","max_tokens":1,"messages":[{}],"system":[%s{}]}' % (b"{}," * MAX_MESSAGES)
    for kind in (BodyKind.MESSAGES, BodyKind.COUNT):
        assert f"allowed: at most {MAX_MESSAGES}" in refusal(kind, system).message


def test_of_two_equal_fields_the_last_counts() -> None:
    """As with the engine's parser, however the name is written."""
    body = rb'{"model":"a","prompt":"x","n":2,"mod\u0065l":"b","n":3,"m\u006fdel":"c"}'
    inquiry = read_inquiry(BodyKind.COMPLETION, body)
    assert (inquiry.model, inquiry.sequences) == (json.loads(body)["model"], json.loads(body)["n"]) == ("c", 3)


def test_an_engines_error_names_a_field_and_nothing_is_built() -> None:
    message = json.dumps({"error": {"message": "the stop words of prompt are too many", "code": 400}}).encode()
    body = b'{"model":"m","nested":{"stop":1},"prompt":[%s1]}' % (b"[1]," * 100_000)
    tracemalloc.start()
    try:
        assert engine_error(400, message, BodyKind.COMPLETION, body).param == "prompt"
        assert tracemalloc.get_traced_memory()[1] <= len(body)
    finally:
        tracemalloc.stop()
    assert engine_error(400, message, BodyKind.COMPLETION, b"no json").param is None


async def test_the_loop_turns_while_a_large_body_is_read() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    body: Any = json.dumps({"model": "m", "prompt": "\n" * 1_000_000}).encode()
    other = asyncio.create_task(turn())
    reading = await Reader().read(BodyKind.COMPLETION, body, RequestLimits(), None, lambda whole: "")
    other.cancel()
    assert reading.inquiry.prompt_chars == 1_000_000
    assert turns > 1
