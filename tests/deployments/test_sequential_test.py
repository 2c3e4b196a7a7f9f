"""The sequential test keeps its rate of false alarms, and finds what is beyond its bound."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.sequential_test import SHIFTS, SequentialTest, rate_evidence, share_evidence

LOOKS = 1_000


def first_alarm(test: SequentialTest, draws: "np.ndarray[tuple[int], np.dtype[np.int64]]", bound: float) -> int:
    found = (number for number, events in enumerate(draws.tolist()) if test.look(rate_evidence(events, 60.0, bound)))
    return next(found, len(draws))


@pytest.mark.whole
def test_at_its_bound_a_false_alarm_is_as_rare_as_was_asked_for() -> None:
    rng = np.random.default_rng(1)
    waits = [first_alarm(SequentialTest(LOOKS), rng.poisson(3.0, 4 * LOOKS), 3.0 / 60) for _ in range(60)]
    assert np.mean(waits) >= LOOKS


def test_several_tests_share_the_rate() -> None:
    rng = np.random.default_rng(2)
    waits = [first_alarm(SequentialTest(LOOKS, 10), rng.poisson(3.0, 2 * LOOKS), 3.0 / 60) for _ in range(20)]
    assert np.mean(waits) > LOOKS


def test_what_doubles_is_found_soon_and_what_stays_below_is_not() -> None:
    rng = np.random.default_rng(3)
    late = [first_alarm(SequentialTest(LOOKS), rng.poisson(6.0, 200), 3.0 / 60) for _ in range(50)]
    assert max(late) < 50
    assert first_alarm(SequentialTest(LOOKS), rng.poisson(2.0, 4 * LOOKS), 3.0 / 60) == 4 * LOOKS


@given(st.floats(0.01, 0.99), st.integers(0, 50), st.integers(0, 50))
def test_hits_speak_for_a_higher_share_and_misses_against_it(bound: float, hits: int, missed: int) -> None:
    some = share_evidence(hits, hits + missed, bound)
    assert all(more > one for more, one in zip(share_evidence(hits + 1, hits + missed + 1, bound), some, strict=True))
    assert all(less < one for less, one in zip(share_evidence(hits, hits + missed + 1, bound), some, strict=True))


def test_evidence_without_end_is_no_overflow() -> None:
    test = SequentialTest(LOOKS)
    assert test.look([1e6] * len(SHIFTS))
    assert test.look([1e6] * len(SHIFTS))


def test_a_bound_that_is_no_share_is_refused() -> None:
    with pytest.raises(ValueError, match="bound = 1: allowed: above 0 and below 1"):
        share_evidence(1, 2, 1.0)
