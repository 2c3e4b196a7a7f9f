"""How fast SLOs are missed, and how long those requests waited."""

import pytest

from autoscaling.policies.backlog.burn import Burn
from autoscaling.signals.signals import Signals
from deployments.scheduling.snapshot import FlowStats
from tests.autoscaling.facts import lane_like
from tests.autoscaling.scaler.moments import moment


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
