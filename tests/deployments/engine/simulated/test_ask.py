"""What is read from a body, and how long the answer will be; the text; the costs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.spec import Model, Simulated
from deployments.engine.simulated.answer import words
from deployments.engine.simulated.ask import Ask, answer_tokens, read_ask
from deployments.engine.simulated.costs import read_costs
from deployments.engine_model.cost_file import CostFileError
from deployments.openai.endpoints import BodyKind
from deployments.openai.inquiry import read_inquiry
from deployments.openai.prompt import TokenRatio

SIMULATED = Simulated(costs="c")


@given(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(0, 500))
def test_the_words_of_an_answer_are_its_tokens_however_it_is_cut(start: int, more: int, again: int) -> None:
    assert len(words(start, start + more).split()) == more
    assert words(start, start + more) + words(start + more, start + more + again) == words(start, start + more + again)
    text = words(start, start + more)
    assert json.loads(f'"{text}"') == text


@given(st.lists(st.text(max_size=50), min_size=1, max_size=5))
def test_prompts_are_counted_as_the_gateway_expects_them(contents: list[str]) -> None:
    messages = [{"role": "user", "content": text} for text in contents]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    inquiry = read_inquiry(BodyKind.CHAT, body)
    assert read_ask(BodyKind.CHAT, body, "m", "id").prompts == (
        TokenRatio().tokens(inquiry.prompt_chars, inquiry.prompt_ids),
    )


def ask(max_tokens: int | None = None, min_tokens: int = 0, ignore_eos: bool = False, seed: str = "s") -> Ask:
    return Ask(False, False, (10,), 1, max_tokens, min_tokens, ignore_eos, seed)


@given(
    st.builds(ask, st.none() | st.integers(1, 500), st.integers(0, 500), st.booleans(), st.text(max_size=3)),
    st.integers(1, 300),
)
def test_an_answer_keeps_its_bounds(given: Ask, room: int) -> None:
    tokens, by_itself = answer_tokens(given, 0, room, SIMULATED)
    maximum = room if given.max_tokens is None else min(room, given.max_tokens)
    assert 1 <= tokens <= maximum
    assert by_itself == (tokens < maximum)


def test_where_answers_end() -> None:
    assert answer_tokens(ask(50), 0, 100, SIMULATED) == (50, False)
    assert answer_tokens(ask(50, min_tokens=20), 0, 100, SIMULATED) == (20, True)
    assert answer_tokens(ask(min_tokens=20), 0, 100, SIMULATED) == (20, True)
    assert answer_tokens(ask(50, min_tokens=20, ignore_eos=True), 0, 100, SIMULATED) == (50, False)
    fixed = Simulated(costs="c", answer_tokens=33, answer_sigma=0)
    assert answer_tokens(ask(), 0, 100, fixed) == (33, True)
    assert [answer_tokens(ask(), number, 10_000, SIMULATED) for number in range(3)] == [
        answer_tokens(ask(), number, 10_000, SIMULATED) for number in range(3)
    ]


def test_costs_of_another_engine_are_refused(make_model: Callable[..., Model], tmp_path: Path) -> None:
    model = make_model()
    assert read_costs(model).engine.max_num_seqs == 8
    other = model.model_copy(update={"settings": model.settings.model_copy(update={"max_num_seqs": 9})})
    with pytest.raises(CostFileError, match=r"models\.m-simulated\.settings\.max_num_seqs = 9: allowed: 8"):
        read_costs(other)
    long = model.model_copy(update={"settings": model.settings.model_copy(update={"max_model_len": 99_999})})
    with pytest.raises(CostFileError, match="at most the 16384 KV tokens"):
        read_costs(long)
    (tmp_path / "costs.json").unlink()
    with pytest.raises(CostFileError, match="cannot be read"):
        read_costs(model)
