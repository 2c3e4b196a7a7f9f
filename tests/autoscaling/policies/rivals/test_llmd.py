"""llm-d's SLO policy: the formula of its guide, its credit and its rates."""

from itertools import pairwise

import pytest

from autoscaling.policies.rivals.llmd import Llmd, LlmdSettings, desired_replicas
from tests.autoscaling.policies.moments import latencies, moment

GUIDE = LlmdSettings()


@pytest.mark.parametrize(
    ("provisioned", "ready", "saturation", "desired"),
    [
        pytest.param(3, 3, 1.1, 6, id="in proportion to the saturation"),
        pytest.param(3, 3, 2.0, 11, id="at the clamp"),
        pytest.param(6, 3, 1.1, 6, id="those that start are enough"),
        pytest.param(6, 3, 1.65, 9, id="those that start are not enough"),
        pytest.param(8, 3, 0.6, 8, id="over the threshold nothing goes, whatever the credit"),
        pytest.param(5, 5, 0.5, 5, id="hysteresis band"),
        pytest.param(6, 6, 0.2, 3, id="down in proportion"),
        pytest.param(6, 3, 0.39, 6, id="the signal without credit has no room for a whole replica"),
        pytest.param(6, 6, 0.0, 0, id="idle"),
        pytest.param(3, 0, 1.1, 6, id="none ready: no credit"),
    ],
)
def test_the_formula(provisioned: int, ready: int, saturation: float, desired: int) -> None:
    assert desired_replicas(GUIDE, provisioned, ready, saturation) == desired


def test_the_worse_of_both_latencies_over_its_slo_counts_clamped_and_smoothed() -> None:
    policy = Llmd(GUIDE)
    assert policy.decide(moment(0.0, ready=3, latencies=latencies(1.2, 0.05))).terms["saturation"] == pytest.approx(0.5)
    assert policy.decide(moment(15.0, ready=3, latencies=latencies(30.0, 0.05))).terms["saturation"] == pytest.approx(
        (0.5 + 2.0) / 2
    )
    assert policy.decide(moment(30.0, ready=3, latencies=None)).terms["saturation"] == pytest.approx(2.5 / 3)


def test_up_by_the_larger_of_a_double_and_four_a_minute_after_half_a_minute() -> None:
    policy = Llmd(GUIDE)
    slow = latencies(6.0)
    assert policy.decide(moment(0.0, ready=3, latencies=latencies(1.4))).replicas == 3
    assert [policy.decide(moment(15.0 * step, ready=3, latencies=slow)).replicas for step in (1, 2)] == [3, 7]
    assert policy.decide(moment(45.0, ready=3, starting=4, latencies=slow)).replicas == 7, "four in a minute"
    assert policy.decide(moment(90.0, ready=7, latencies=slow)).replicas == 14


def test_down_by_one_every_two_minutes() -> None:
    policy, ready, times = Llmd(GUIDE), 8, []
    for step in range(60):
        number = policy.decide(moment(15.0 * step, ready=ready, latencies=latencies(0.3))).replicas
        if number < ready:
            times.append(15.0 * step)
            ready = number
    assert times[0] == 180
    assert {later - earlier for earlier, later in pairwise(times)} == {120}
    assert ready == 8 - len(times)


def test_one_of_ten_is_within_the_tolerance_behind_it() -> None:
    """The computed number is a metric of the HorizontalPodAutoscaler."""
    policy = Llmd(LlmdSettings(up_stabilisation_s=0.0))
    assert policy.decide(moment(0.0, ready=20, latencies=latencies(3.0 * 0.57))).replicas == 20
    assert policy.decide(moment(15.0, ready=5, latencies=latencies(3.0 * 0.57))).replicas == 6
