"""The estimate of a prompt's tokens."""

from hypothesis import given
from hypothesis import strategies as st

from deployments.openai.prompt import TokenRatio


def test_it_learns() -> None:
    ratio = TokenRatio()
    assert ratio.tokens(300, 0) == 100
    for _ in range(200):
        ratio.observe(1_000, 200)
    assert ratio.tokens(300, 0) == 60


def test_what_is_no_ratio_of_text_teaches_little() -> None:
    """A prompt of 8 MB that is cut off to one token, and a picture."""
    for chars, tokens in ((8_000_000, 1), (16, 8_000)):
        ratio = TokenRatio()
        ratio.observe(chars, tokens)
        assert 0.75 * 1_000 < ratio.tokens(3_000, 0) < 1.25 * 1_000


def test_ids_are_exact() -> None:
    assert TokenRatio().tokens(0, 17) == 17


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**6))), st.integers(0, 10**8))
def test_it_stays_usable(observed: list[tuple[int, int]], chars: int) -> None:
    ratio = TokenRatio()
    for seen, tokens in observed:
        ratio.observe(seen, tokens)
    assert ratio.chars_per_token > 0
    assert ratio.tokens(chars, 0) >= 1
