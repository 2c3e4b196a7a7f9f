import numpy as np
import pytest

from deployments.traffic.counts import LengthCounts
from planning.drift.expected import Clock, ExpectedLengths, ExpectedStream, Tolerance, lengths_of
from tests.planning.drift.drawn import CHAT, MONDAY_S

DAY = tuple(float(hour) for hour in range(24))
LENGTHS = ExpectedLengths(100)


def test_hours_are_those_of_the_time_zone() -> None:
    begins = np.array([MONDAY_S + 60 * minute for minute in range(0, 48 * 60, 30)])
    low, high = Clock(begins, "UTC").range_of(DAY)
    assert ((low <= begins % 86_400 // 3_600) & (high >= begins % 86_400 // 3_600)).all()
    assert Clock(begins, "Europe/Berlin").hours[0] == 1
    assert Clock(begins, "Asia/Kolkata").hours[0] == 5.5
    assert Clock(begins, "UTC").hours[-1] == 47.5


def test_a_rate_between_two_hours_is_expected_too() -> None:
    begins = np.array([MONDAY_S + 60 * minute for minute in (10 * 60 + 1, 10 * 60 + 30, 10 * 60 + 59)])
    low, high = Clock(begins, "UTC").range_of(DAY)
    assert low == pytest.approx([9.5, 10, 10], abs=0.02)
    assert high == pytest.approx([10, 10, 10.5], abs=0.02)


def test_shares_and_tails_of_lengths() -> None:
    counts = LengthCounts()
    for tokens in (*[100] * 90, *[1_000] * 10):
        counts.add(tokens)
    lengths = lengths_of(counts)
    tail = lengths.tail_tokens
    assert tail is not None
    assert lengths.above(200) == pytest.approx(0.1)
    assert lengths.above(1_500, 2.0) == pytest.approx(0.1)
    assert lengths.above(tail) == 0  # all long ones share a bucket
    assert lengths.spread == pytest.approx(90 * 100**2 / 190**2 / 100 + 10 * 1_000**2 / 190**2 / 100 - 1, rel=0.1)
    assert LENGTHS.tail_tokens is None
    with pytest.raises(ValueError, match="no length was recorded"):
        lengths_of(LengthCounts())


@pytest.mark.parametrize("hourly", [(1.0,) * 23, (-1.0,) * 24, (float("nan"),) * 24])
def test_rates_that_are_none_are_refused(hourly: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="hourly"):
        ExpectedStream(CHAT, hourly, LENGTHS, LENGTHS)


def test_a_tolerance_is_a_share() -> None:
    with pytest.raises(ValueError, match="lengths = 1: allowed: 0 to below 1"):
        Tolerance(lengths=1)
