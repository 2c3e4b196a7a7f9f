"""How many experts a step reaches, against drawing them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.costs.experts import Mixture

QWEN = Mixture(128, 8)


def drawn(tokens: int, draws: int = 80) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Which experts are reached, by draw."""
    rng = np.random.default_rng(1)
    reached = np.zeros((draws, QWEN.experts), dtype=bool)
    for row in reached:
        for _ in range(tokens):
            row[rng.permutation(QWEN.experts)[: QWEN.a_token]] = True
    return reached


@pytest.mark.parametrize("tokens", [1, 4, 16, 64])
def test_the_expected_experts_are_those_of_a_draw(tokens: int) -> None:
    assert QWEN.distinct(tokens) == pytest.approx(drawn(tokens).sum(axis=1).mean(), rel=0.02)


@given(st.integers(1, 512), st.data(), st.floats(0, 10_000), st.floats(0, 10_000))
def test_more_tokens_reach_no_fewer_experts_and_never_more_than_there_are(
    experts: int, data: st.DataObject, tokens: float, more: float
) -> None:
    mixture = Mixture(experts, data.draw(st.integers(1, experts)))
    assert 0 <= mixture.distinct(tokens) <= mixture.distinct(tokens + more) * (1 + 1e-12) <= experts * (1 + 1e-9)


@given(st.floats(1, 10_000), st.integers(1, 64))
def test_the_fullest_gpu_has_at_least_its_share_and_at_most_all(tokens: float, ranks: int) -> None:
    fullest = QWEN.fullest(tokens, ranks)
    assert min(tokens, tokens / ranks) * (1 - 1e-9) <= fullest <= tokens


def test_the_fullest_gpu_of_a_draw_waits_for_no_more() -> None:
    rng = np.random.default_rng(2)
    tokens, ranks = 256, 8
    loads = rng.multinomial(tokens * QWEN.a_token, [1 / ranks] * ranks, size=2_000).max(axis=1) / QWEN.a_token
    assert loads.mean() <= QWEN.fullest(tokens, ranks) <= 1.1 * loads.mean()


@pytest.mark.parametrize("a_token", [0, 9])
def test_a_token_uses_some_of_the_experts(a_token: int) -> None:
    with pytest.raises(ValueError, match="1 to 8"):
        Mixture(8, a_token)
