"""When a rejected caller is told to come back, worked by hand."""

import zlib

import pytest

from deployments.scheduling.admission import MAX_RETRY_S, RetryQueue, jittered_s


def name_with_jitter(minimum: float, maximum: float) -> str:
    """A request's id whose jitter lies there."""
    return next(
        name
        for name in map(str, range(100_000))
        if minimum <= 0.9 + 0.2 * zlib.crc32(name.encode()) / 0xFFFFFFFF <= maximum
    )


MIDDLE = name_with_jitter(0.9999, 1.0)
LOW = name_with_jitter(0.9, 0.9001)
HIGH = name_with_jitter(1.0999, 1.1)


def test_the_jitter_is_a_tenth_either_way_in_whole_seconds() -> None:
    assert [jittered_s(name, 100.0) for name in (LOW, MIDDLE, HIGH)] == [91.0, 100.0, 110.0]
    assert [jittered_s(name, 0.1) for name in (LOW, MIDDLE, HIGH)] == [1.0, 1.0, 1.0]
    assert [jittered_s(name, 10_000.0) for name in (LOW, HIGH)] == [600.0, 600.0]


def test_nobody_stands_in_a_queue_that_has_just_begun() -> None:
    assert RetryQueue().retry_after_s(HIGH, 1.0, 0.0, 10.0, 0.0) == 1.0


def test_without_a_rate_it_is_five_seconds_or_the_start() -> None:
    assert RetryQueue().retry_after_s(MIDDLE, 10.0, 100.0, None, 7.0) == 5.0
    assert RetryQueue().retry_after_s(MIDDLE, 10.0, 100.0, None, 7.0, 42.0) == 42.0


def test_each_books_its_cost_behind_those_before_it() -> None:
    queue = RetryQueue()
    reported = [queue.retry_after_s(MIDDLE, 100.0, 300.0, 10.0, 7.0) for _ in range(3)]
    assert reported == [30.0, 40.0, 50.0]
    assert queue.retry_after_s(MIDDLE, 100.0, 300.0, 10.0, 17.0) == 50.0, "bookings drain as time passes"
    assert queue.retry_after_s(MIDDLE, 100.0, 300.0, 10.0, 100.0) == 30.0, "and are over some day"


def test_nobody_is_told_to_come_before_the_start_nor_after_ten_minutes() -> None:
    queue = RetryQueue()
    assert queue.retry_after_s(LOW, 100.0, 0.0, 10.0, 0.0, 60.0) == 60.0, "whatever the jitter"
    assert queue.retry_after_s(MIDDLE, 100.0, 200.0, 10.0, 0.0, 60.0) == 80.0
    assert queue.retry_after_s(LOW, 100.0, 0.0, 10.0, 0.0, 10_000.0) == MAX_RETRY_S


@pytest.mark.parametrize("cost", [1e6])
def test_bookings_reach_no_further_than_ten_minutes(cost: float) -> None:
    queue = RetryQueue()
    queue.retry_after_s(MIDDLE, cost, 0.0, 10.0, 0.0)
    assert queue.retry_after_s(MIDDLE, 10.0, 0.0, 10.0, 500.0) == 100.0
