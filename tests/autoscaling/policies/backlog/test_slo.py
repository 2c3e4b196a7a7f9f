"""Waits against their targets, the burn of SLOs, and when one more replica may help."""

from dataclasses import replace

import pytest

from autoscaling.policies.backlog.slo import AGAIN_S, JUDGED_S, Burn, Burning, LaneTargets, Relief, worst
from autoscaling.policies.policy import Concern
from autoscaling.signals.signals import Signals
from cluster.spec import Backlog
from deployments.scheduling.snapshot import FlowStats
from tests.autoscaling.facts import lane_like
from tests.autoscaling.scaler.moments import moment


def waiting(**work: float) -> Signals:
    base = moment(arrived_work=50_000.0)
    flows = (base.flows[0], replace(base.flows[0], lane="long", slo_s=4.0))
    return base.showing(lanes=tuple(lane_like(name, 1, amount, 0.0) for name, amount in work.items()), flows=flows)


def targets(signals: Signals, **settings: float) -> dict[str, float]:
    known = LaneTargets(Backlog(**settings))  # type: ignore[arg-type]
    known.look(signals)
    return {wait.name: wait.target_s for wait in known.waits(signals)}


def test_a_lane_may_wait_a_share_of_its_tightest_slo_and_the_last_one_longer() -> None:
    assert targets(waiting(short=1.0, long=1.0, promoted=1.0)) == {"short": 1.0, "long": 5.0, "promoted": 1.0}
    assert targets(waiting(short=1.0, long=1.0), long_wait_s=1.0, target_wait=1.0) == {"short": 2.0, "long": 4.0}


def test_lanes_with_tighter_slos_are_ahead() -> None:
    signals = waiting(short=100.0, long=900.0)
    known = LaneTargets(Backlog())
    known.look(signals)
    assert [(wait.name, wait.work_ahead) for wait in known.waits(signals)] == [("short", 100.0), ("long", 1_000.0)]
    found = worst(known.waits(signals), 50.0)
    assert found is not None
    assert (found[1].name, found[0]) == ("long", 4.0)
    assert worst(known.waits(signals), 0.0) is not None
    assert worst((), 0.0) is None


def second(at_s: float, missed: int, waiting: dict[str, int], arrived: int | None = None) -> Signals:
    """Interactive requests of an SLO of 2 s in the short lane; documents that are always in time in the long one."""
    came = int(at_s) if arrived is None else arrived
    flows = (
        FlowStats("short", "interactive", came, 0.0, 0, came - missed, missed, 2.0),
        FlowStats("long", "document", came, 0.0, 0, came, 0, 10.0),
    )
    lanes = tuple(
        lane_like(name, waiting.get(name, 0), 1_000.0 * waiting.get(name, 0), 0.0)
        for name in ("short", "long", "promoted")
    )
    return moment(at_s).showing(flows=flows, lanes=lanes)


@pytest.mark.parametrize(("lane", "share"), [("short", 0.5), ("promoted", 0.5), ("long", 0.0)])
def test_how_long_requests_of_the_class_waited_is_known_by_littles_policy(lane: str, share: float) -> None:
    burn = Burn()
    for at_s in range(200):
        burn.look(
            second(at_s, at_s // 2, {lane: 1})
        )  # one in the lane at all times, one a second: each waits for a second
    assert burn.worst.traffic_class == "interactive"
    assert burn.worst.rate == pytest.approx(50.0, rel=0.1)
    assert burn.worst.wait_share == pytest.approx(share, rel=0.1)


def test_it_begins_anew_when_a_replica_becomes_ready() -> None:
    burn = Burn()
    for at_s in range(100):
        burn.look(second(at_s, at_s, {"short": 1}))
    assert (burn.worst.rate, burn.seen_s) == (pytest.approx(100.0), 95.0)
    burn.look(second(100, 100, {}).showing(replicas=moment(ready=3).replicas))
    assert (burn.worst.rate, burn.seen_s) == (0.0, 0.0)


def test_a_few_misses_are_none() -> None:
    burn = Burn()
    for at_s in range(100):
        burn.look(second(at_s, min(4, at_s), {"short": 1}))
    assert burn.worst.rate == 0.0


def test_counts_that_begin_anew_miss_nothing() -> None:
    burn = Burn()
    for at_s in range(100):
        burn.look(second(at_s, at_s, {"short": 1}))
    burn.look(second(100, 0, {"short": 1}, arrived=3))
    assert burn.worst.rate == 0.0


FAST = Burning("interactive", 50.0, 1.0)


def in_vain(relief: Relief) -> None:
    """A step from two to three replicas at second 0, and SLOs are missed as before."""
    relief.stepped(0.0, 2, FAST, 100.0)
    assert relief.concern(60.0 + JUDGED_S, 3, FAST, JUDGED_S, 100.0) is Concern.HELPED_NOTHING


def test_where_nothing_waits_no_replica_helps() -> None:
    assert Relief().concern(0.0, 2, Burning("interactive", 50.0, 0.05), 300.0, 100.0) is Concern.NOTHING_WAITS
    assert Relief().concern(0.0, 2, FAST, 300.0, 100.0) is None


def test_a_step_that_changed_nothing_is_not_repeated_for_an_hour() -> None:
    relief = Relief()
    in_vain(relief)
    assert relief.concern(AGAIN_S, 2, FAST, 300.0, 100.0) is Concern.HELPED_NOTHING
    assert relief.concern(200.0 + AGAIN_S, 2, FAST, 300.0, 100.0) is None


def test_more_work_is_another_matter() -> None:
    relief = Relief()
    in_vain(relief)
    assert relief.concern(1_000.0, 2, FAST, 300.0, 130.0) is None


def test_a_step_is_judged_once_its_replica_has_worked_for_a_while() -> None:
    relief = Relief()
    assert relief.open(0.0, 2, 0.0)
    relief.stepped(0.0, 2, FAST, 100.0)
    assert relief.open(10.0, 2, 0.0)
    assert not relief.open(70.0, 3, 10.0)
    assert relief.concern(70.0, 3, FAST, 10.0, 100.0) is None
    assert relief.open(60.0 + JUDGED_S, 3, JUDGED_S)


def test_a_step_that_helped_a_little_or_met_more_load_or_was_for_another_class_was_not_in_vain() -> None:
    for burning, work in (
        (Burning("interactive", 30.0, 1.0), 100.0),
        (FAST, 160.0),
        (Burning("batch", 50.0, 1.0), 100.0),
    ):
        relief = Relief()
        relief.stepped(0.0, 2, FAST, 100.0)
        assert relief.concern(60.0 + JUDGED_S, 3, burning, JUDGED_S, work) is None


def test_a_replica_that_never_came_is_judged_by_nobody() -> None:
    relief = Relief()
    relief.stepped(0.0, 2, FAST, 100.0)
    assert relief.concern(600.0, 2, FAST, 300.0, 100.0) is None
