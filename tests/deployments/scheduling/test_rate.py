"""The decayed rate, worked by hand, and which of the two rates speaks."""

import pytest

from deployments.scheduling.learned_state import Meter, ServiceRate

HALF_LIFE_S = 20.0


def test_nothing_is_known_until_a_tenth_of_a_second_counted() -> None:
    meter = Meter()
    meter.run(True, 5.0)
    meter.add(10.0, 5.05)
    assert meter.per_s is None
    meter.add(0.0, 5.2)
    assert meter.per_s == pytest.approx(50.0, rel=0.01)


def test_time_without_work_is_no_rate() -> None:
    meter = Meter()
    meter.run(True, 0.0)
    meter.run(False, 10.0)
    assert meter.per_s is None


def test_work_and_time_decay_by_half_in_twenty_seconds() -> None:
    meter = Meter()
    meter.run(True, 100.0)
    meter.add(60.0, 100.0)
    meter.add(60.0, 100.0 + HALF_LIFE_S)
    seconds = 0.5 * HALF_LIFE_S / 0.6931471805599453  # the integral of 2 ** (-t / 20) over them
    assert meter.per_s == pytest.approx((30.0 + 60.0) / seconds)


def test_what_is_done_while_it_does_not_run_counts_not() -> None:
    meter = Meter()
    meter.add(1_000.0, 1.0)
    meter.run(True, 10.0)
    meter.run(True, 11.0)  # as it was
    meter.add(20.0, 12.0)
    meter.run(False, 12.0)
    meter.add(1_000.0, 13.0)
    meter.run(False, 20.0)
    decay = 2 ** (-2.0 / HALF_LIFE_S)
    assert meter.per_s == pytest.approx(20.0 / ((1 - decay) * HALF_LIFE_S / 0.6931471805599453))


def test_what_is_placed_under_load_speaks_before_what_was_finished() -> None:
    rate = ServiceRate()
    assert rate.per_s is None
    for meter, work in ((rate.finished, 10.0), (rate.placed, 30.0)):
        meter.run(True, 0.0)
        meter.add(work, 1.0)
    assert rate.per_s == rate.placed.per_s == pytest.approx(30.0, rel=0.02)
    placed = ServiceRate()
    placed.finished = rate.finished
    assert placed.per_s == rate.finished.per_s
    placed.forget_idle()
    assert placed.per_s is None
