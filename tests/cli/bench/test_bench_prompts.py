"""Prompts of a wanted length, and the measuring of what words cost."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cli.bench.client import BenchClient
from cli.bench.prompts import WORDS, Prompts, RequestOptions, TokenIds, Words, measure_vocabulary

IDS = TokenIds(tuple(range(100, 400)))


def bodies(vocabulary: TokenIds | Words, options: RequestOptions, seed: int, *lengths: int) -> list[dict[str, Any]]:
    prompts = Prompts(vocabulary, options, seed)
    return [json.loads(prompts.body(length, 9)) for length in lengths]


@given(st.integers(1, 3_000), st.integers(0, 5))
def test_token_prompts_have_exactly_the_wanted_length(length: int, seed: int) -> None:
    (first,) = bodies(IDS, RequestOptions("m", "completions"), seed, length)
    assert len(first["prompt"]) == length
    assert set(first["prompt"]) <= set(IDS.ids)


def test_prompts_follow_the_seed_and_differ_from_one_another() -> None:
    options = RequestOptions("m", "completions")
    first, second = bodies(IDS, options, 1, 200, 200)
    assert [first, second] == bodies(IDS, options, 1, 200, 200)
    assert first["prompt"] != second["prompt"]
    assert first["prompt"] != bodies(IDS, options, 2, 200)[0]["prompt"]


def test_a_body_says_what_the_options_say() -> None:
    (plain,) = bodies(IDS, RequestOptions("m", "completions", stream=False), 0, 4)
    assert plain == {"model": "m", "stream": False, "temperature": 0, "prompt": plain["prompt"], "max_tokens": 9}
    (chat,) = bodies(Words(("a", "b"), 2.0, 1.0, ""), RequestOptions('odd "name"', "chat", ignore_eos=True), 0, 6)
    assert chat["model"] == 'odd "name"'
    assert chat["stream_options"] == {"include_usage": True}
    assert chat["ignore_eos"] is True
    assert len(chat["messages"][0]["content"].split()) == 4


@given(st.floats(0, 50), st.floats(0.5, 3), st.integers(1, 5_000))
def test_words_come_within_one_word_of_the_wanted_tokens(base: float, slope: float, desired: int) -> None:
    count = Words(WORDS, base, slope, "").count_for(desired)
    assert count >= 1
    assert count == 1 or abs(base + count * slope - desired) <= slope


async def test_completions_are_made_of_token_ids(server: Any) -> None:
    async with BenchClient(server.url, "completions") as client:
        vocabulary = await measure_vocabulary(client, "good")
    assert isinstance(vocabulary, TokenIds)
    assert len(vocabulary.ids) == len(WORDS)
    assert server.tokenized == 1


async def test_chat_words_are_measured_with_the_template(server: Any) -> None:
    async with BenchClient(server.url, "chat") as client:
        vocabulary = await measure_vocabulary(client, "good")
    assert isinstance(vocabulary, Words)
    assert (vocabulary.base_tokens, vocabulary.tokens_per_word) == (5.0, 1.0)
    assert vocabulary.count_for(128) == 123


async def test_without_tokenize_the_lengths_are_estimates(server: Any) -> None:
    server.has_tokenize = False
    async with BenchClient(server.url, "completions") as client:
        vocabulary = await measure_vocabulary(client, "good")
    assert isinstance(vocabulary, Words)
    assert "estimated" in vocabulary.how
