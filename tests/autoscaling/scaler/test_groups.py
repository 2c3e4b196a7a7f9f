"""What of a model's demand each of its groups carries: all of it once, by the first group that can."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import Bounds, Limit, ScalingDecision
from autoscaling.scaler.groups import LATE, GroupDemand, GroupOverflow, offered
from autoscaling.signals.signals import Signals, signals_of
from deployments.scheduling import ReplicaStats, Snapshot
from deployments.scheduling.replica import ReplicaStatus
from deployments.scheduling.snapshot import DemandStats, FlowStats, GroupStats
from tests.autoscaling.facts import lane_like
from tests.autoscaling.scaler.moments import moment
from tests.autoscaling.scaler.test_autoscaler import Says

NAMES = ("a", "b", "c")
orders = st.permutations(NAMES).flatmap(lambda order: st.integers(1, 3).map(lambda count: tuple(order[:count])))
shares = st.sampled_from((0.0, 0.25, 0.5, 1.0))


@given(orders, st.fixed_dictionaries(dict.fromkeys(NAMES, shares)))
def test_what_is_offered_and_carried_is_everything_once(order: tuple[str, ...], overflow: Mapping[str, float]) -> None:
    carried = [offered(order, name, overflow) * (1.0 - overflow[name]) for name in NAMES]
    left = math.prod(overflow[name] for name in order)
    assert sum(carried) + left == pytest.approx(1.0)
    assert offered(order, order[0], overflow) == 1.0
    assert all(offered(order, name, {}) == 0.0 for name in order[1:])


def replica(name: str, group: str, sequences: int = 10) -> ReplicaStats:
    one = moment(ready=1).replicas[0]
    return replace(one, replica_id=name, group=group, sequences=sequences, kv_tokens=1_000 * sequences)


def snapshot(
    *rows: DemandStats, flows: tuple[FlowStats, ...] = (), groups: tuple[GroupStats, ...] = (), waiting: int = 0
) -> Snapshot:
    """Two lanes, and a replica in each of two groups."""
    lanes = tuple(lane_like(name, waiting, 1_000.0 * waiting, float(waiting)) for name in ("short", "long"))
    replicas = (replica("s", "small"), replica("l", "large"))
    return replace(moment().snapshot, lanes=lanes, replicas=replicas, flows=flows, demands=rows, groups=groups)


def row(lane: str, groups: tuple[str, ...], arrived: int, waiting: int = 0, **running: int) -> DemandStats:
    return DemandStats(
        lane, groups, waiting, 1_000.0 * waiting, arrived, 1_000.0 * arrived, 500 * arrived, tuple(running.items())
    )


def flow(lane: str, arrived: int, met: int = 0, missed: int = 0) -> FlowStats:
    return FlowStats(lane, "interactive", arrived, 1_000.0 * arrived, 500 * arrived, met, missed, 2.0)


BOTH, ALONE = ("small", "large"), ("large",)


def seen(demand: GroupDemand, overflow: Mapping[str, float], *shown: Snapshot) -> Snapshot:
    for one in shown:
        found, _ = demand.of(one, 1, overflow)
    return found


@pytest.mark.parametrize(("overflow", "small", "large"), [(0.0, 40, 10), (0.25, 40, 20), (1.0, 40, 50)])
def test_the_next_group_sees_what_the_first_leaves(overflow: float, small: int, large: int) -> None:
    before = snapshot(row("short", BOTH, 100), row("long", ALONE, 10), flows=(flow("short", 100), flow("long", 10)))
    after = snapshot(
        row("short", BOTH, 140, waiting=8),
        row("long", ALONE, 20, waiting=2),
        flows=(flow("short", 140, met=30, missed=10), flow("long", 20)),
        waiting=8,
    )
    mine = seen(GroupDemand("small"), {"small": overflow}, before, after)
    assert (sum(one.arrived for one in mine.flows), [lane.waiting for lane in mine.lanes]) == (small, [8, 0])
    other = seen(GroupDemand("large"), {"small": overflow}, before, after)
    assert sum(one.arrived for one in other.flows) == large
    assert [lane.waiting for lane in other.lanes] == [math.ceil(8 * overflow), 2]
    assert [lane.work_tokens for lane in other.lanes] == [8_000 * overflow, 2_000]
    assert [(one.replica_id, one.sequences) for one in mine.replicas + other.replicas] == [("s", 10), ("l", 10)]
    assert (mine.demands, mine.groups) == ((), ())


def test_a_lane_with_requests_of_several_kinds_is_shared_by_their_work() -> None:
    """Of the long lane three quarters fit the small group."""
    rows = (row("long", BOTH, 30), row("long", ALONE, 10))
    before, after = snapshot(flows=()), snapshot(*rows, flows=(flow("long", 40, met=20),))
    mine, other = (seen(GroupDemand(name), {}, before, after) for name in ("small", "large"))
    assert [(one.arrived, one.met) for one in mine.flows] == [(30, 15)]
    assert [(one.arrived, one.met) for one in other.flows] == [(10, 5)]


def test_what_runs_for_another_group_is_no_load() -> None:
    """While the small group starts, its requests run on the large one."""
    served = (GroupStats("large", None, 100, 1e5, 1_000, 100),)
    rows = (row("short", BOTH, 10, large=8), row("long", ALONE, 10, large=2))
    lent = seen(GroupDemand("large"), {}, snapshot(*rows), snapshot(*rows, groups=served))
    assert (lent.replicas[0].sequences, lent.replicas[0].kv_tokens, lent.finished) == (2, 2_000, 20)
    full = seen(GroupDemand("large"), {"small": 0.1}, snapshot(*rows), snapshot(*rows, groups=served))
    assert (full.replicas[0].sequences, full.finished, full.finished_work) == (10, 100, 1e5)


def test_a_new_owner_and_a_restart_begin_a_new_epoch() -> None:
    demand = GroupDemand("large", born=1_700_000_000)
    counted = snapshot(row("long", ALONE, 90), flows=(flow("long", 90),))
    first, epoch = demand.of(counted, 5, {})
    assert [one.arrived for one in first.flows] == [0]
    again, later = demand.of(snapshot(row("long", ALONE, 4), flows=(flow("long", 4),)), 6, {})
    assert [one.arrived for one in again.flows] == [4]
    assert later == epoch + 1
    assert GroupDemand("large", born=1_700_000_100).of(counted, 5, {})[1] not in (epoch, later)


@pytest.mark.whole
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), shares), min_size=1, max_size=20))
def test_the_counts_of_all_groups_never_fall_and_add_up_to_what_is_offered(moves: list[tuple[int, int, float]]) -> None:
    small, large = GroupDemand("small"), GroupDemand("large")
    short = long = 0
    expected, last = [0.0, 0.0], [0, 0]
    for demand in (small, large):
        demand.of(snapshot(), 1, {})
    for more_short, more_long, share in moves:
        short, long = short + more_short, long + more_long
        now = snapshot(
            row("short", BOTH, short), row("long", ALONE, long), flows=(flow("short", short), flow("long", long))
        )
        found = [sum(one.arrived for one in demand.of(now, 1, {"small": share})[0].flows) for demand in (small, large)]
        expected = [expected[0] + more_short, expected[1] + more_long + share * more_short]
        assert found == pytest.approx(expected, abs=1.0)
        assert all(one >= before for one, before in zip(found, last, strict=True))
        last = found


def decided(signals: Signals, wanted: int, **bounds: int) -> ScalingDecision:
    return Autoscaler(Says(wanted), replace(Bounds(1, 10), **bounds)).decide(signals)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "shown", "share"), [(8, {}, 0.0), (20, {}, 0.5), (8, {"schedulable": 2}, 0.75), (0, {}, 0.0)]
)
def test_what_limits_keep_back_is_left_to_the_next_group(wanted: int, shown: dict[str, int], share: float) -> None:
    signals = moment(ready=2, **shown)
    assert GroupOverflow(60.0).decided(signals, decided(signals, wanted)) == share


def test_a_start_in_time_leaves_nothing_and_one_that_does_not_end_leaves_all() -> None:
    overflow, found = GroupOverflow(60.0), {}
    for second in range(200):
        signals = moment(float(second), ready=0, applied=4)
        found[second] = overflow.decided(signals, decided(signals, 4))
    assert {found[second] for second in range(int(LATE * 60.0))} == {0.0}
    assert found[199] == 1.0
    there = moment(200.0, ready=4)
    assert overflow.decided(there, decided(there, 4)) == 0.0


def test_a_decision_without_a_policy_leaves_it_as_it_was() -> None:
    overflow, signals = GroupOverflow(60.0), moment(ready=2)
    assert overflow.decided(signals, decided(signals, 20)) == 0.5
    failing = replace(decided(signals, 20), desired=None, limit=Limit.POLICY_FAILED)
    assert overflow.decided(signals, failing) == 0.5


def test_a_fixed_number_leaves_what_it_cannot_carry() -> None:
    signals = moment(ready=2)
    assert GroupOverflow(60.0, Says(8)).decided(signals, decided(signals, 2)) == 0.75


def test_only_the_groups_own_replicas_count_as_there() -> None:
    mine = seen(GroupDemand("large"), {}, snapshot())
    signals = signals_of(mine, 0.0, 0.0, 3, {})
    assert (signals.ready, signals.starting) == (1, 2)
    assert signals.count(ReplicaStatus.READY) == 1
