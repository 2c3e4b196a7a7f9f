"""What every pick and every rejection rule must hold, and a pick of a test's own beside them."""

import dataclasses
import pickle
from typing import get_args
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.spec import Scheduling, SpecError, parse_spec
from deployments.scheduling import Capacity, Ending, Lease, PickReason, Scheduler, SchedulingPolicy
from deployments.scheduling.admission import REJECTION_RULES, RejectionRule
from deployments.scheduling.fleet import PROBES, Fleet
from deployments.scheduling.learned_state import PrefixIndex
from deployments.scheduling.pick import PICKS, Candidates, MinTtft
from deployments.scheduling.replica import Replica
from deployments.scheduling.request import Job
from tests.deployments.scheduling.world import POLICY, make_job, make_request, make_scheduler


class MaxFreeKv:
    """A pick that looks at nothing but the KV cache."""

    def load(self, replica: Replica) -> tuple[float, ...]:
        """The fuller, the more."""
        return (-replica.free_kv_tokens,)

    def choose(self, candidates: Candidates) -> tuple[Replica, PickReason]:
        """The first."""
        return candidates.fitting[0], PickReason.ONLY_FIT


ALL_PICKS = {**PICKS, "max_free_kv": MaxFreeKv()}
CAPACITIES = st.builds(
    Capacity,
    st.integers(1, 6),
    ahead=st.integers(0, 2),
    kv_tokens=st.integers(1_000, 20_000),
    step_tokens=st.sampled_from((100, 500, 4_000)),
    prefill_steps=st.sampled_from((1.0, 2.0)),
)
LOADS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3_000), st.integers(1, 3_000)), max_size=4)
"""Of leases: sequences, tokens to prefill, KV tokens."""


@st.composite
def loaded(draw: st.DrawFn, name: str) -> Replica:
    """A replica of any size, with any leases."""
    replica = Replica(name, draw(CAPACITIES))
    for number, (sequences, prefill, kv) in enumerate(draw(LOADS)):
        replica.bind(
            Lease(number, make_request(f"{name}-{number}", sequences=sequences), name, 0.0, 1, prefill, kv, 5, 0)
        )
    return replica


@st.composite
def fleets(draw: st.DrawFn, maximum: int) -> list[Replica]:
    """Unequal replicas."""
    return [draw(loaded(f"r{number}")) for number in range(draw(st.integers(1, maximum)))]


@pytest.mark.whole
@pytest.mark.parametrize("name", ALL_PICKS)
@given(replicas=fleets(5), cached=st.integers(0, 5), prefill=st.integers(1, 5_000))
def test_a_pick_chooses_a_candidate_and_changes_nothing(
    name: str, replicas: list[Replica], cached: int, prefill: int
) -> None:
    pick, index = ALL_PICKS[name], PrefixIndex()
    fitting = sorted(replicas, key=lambda replica: (pick.load(replica), replica.replica_id))
    for replica in replicas[:cached]:
        index.add((1, 2), replica.replica_id, 9)
    before = pickle.dumps((replicas, index))
    candidates = Candidates(make_job(prefill=prefill), fitting, replicas[:cached], index, 100.0)
    chosen, reason = pick.choose(candidates)
    assert chosen in replicas
    assert isinstance(reason, PickReason)
    assert pick.choose(candidates) == (chosen, reason), "the same facts give the same choice"
    assert pickle.dumps((replicas, index)) == before
    assert isinstance(pickle.loads(pickle.dumps(pick)), type(pick)), "a log of decisions keeps it"


@pytest.mark.whole
@pytest.mark.parametrize("name", ALL_PICKS)
@given(replicas=fleets(PROBES), asks=st.builds(make_job, st.integers(1, 4), st.integers(1, 9_000)))
def test_of_a_few_unequal_replicas_every_one_that_fits_is_found(name: str, replicas: list[Replica], asks: Job) -> None:
    """A replica whose own prefill budget is full ends no search: others have larger budgets, or shorter backlogs."""
    pick = ALL_PICKS[name]
    fleet = Fleet(pick)
    for replica in replicas:
        fleet.by_id[replica.replica_id] = replica
        fleet.touch(replica)
    fits = sorted(
        (replica for replica in replicas if replica.open and replica.wait_reason(asks) is None),
        key=lambda r: (pick.load(r), r.replica_id),
    )
    found = fleet.fitting(asks)
    assert found == fits if fits else not isinstance(found, list)


def test_a_full_small_replica_does_not_hide_a_large_one() -> None:
    fleet = Fleet(MinTtft())
    small, large = Capacity(8, 0, 10_000, 100, 1.0), Capacity(8, 0, 10_000, 4_000, 1.0)
    for number in range(6):
        fleet.up(f"small{number}", small).bind(
            Lease(number, make_request(f"s{number}"), f"small{number}", 0.0, 1, 100, 100, 5, 0)
        )
        fleet.touch(fleet.by_id[f"small{number}"])
    fleet.up("large", large).bind(Lease(9, make_request("l"), "large", 0.0, 1, 3_000, 100, 5, 0))
    fleet.touch(fleet.by_id["large"])
    found = fleet.fitting(make_job())
    assert isinstance(found, list)
    assert [replica.replica_id for replica in found] == ["large"]


def test_a_reload_changes_the_pick() -> None:
    with mock.patch.dict("deployments.scheduling.pick.PICKS", ALL_PICKS):
        scheduler = make_scheduler(0)
        for name, kv in (("r0", 4_000), ("r1", 9_000)):
            scheduler.replica_up(name, Capacity(4, 0, kv, 300, prefill_steps=2.0), 0.0)
        scheduler.submit(make_request("a"), 0.0)
        assert [placed.replica_id for placed in scheduler.step(0.0).placements] == ["r0"]
        scheduler.release(scheduler.leases[1][0], Ending.FINISHED, None, 1.0)
        scheduler.configure(dataclasses.replace(POLICY, pick="max_free_kv"), 1.0)
        scheduler.submit(make_request("b", now=1.0), 1.0)
        assert [placed.replica_id for placed in scheduler.step(1.0).placements] == ["r1"]


def crowded() -> Scheduler:
    """Nothing more fits: one request runs, and as many wait as may."""
    scheduler = make_scheduler(
        1, dataclasses.replace(POLICY, max_waiting=3), Capacity(1, 0, 4_000, 300, prefill_steps=2.0)
    )
    for number in range(4):
        scheduler.submit(make_request(f"q{number}"), 0.0)
        scheduler.step(0.0)
    return scheduler


@pytest.mark.parametrize("rule", REJECTION_RULES, ids=lambda rule: str(rule.__name__))
@pytest.mark.parametrize("request_id", ["new", "q0", "q1"])
def test_a_rule_changes_nothing_and_says_when_to_come_back(rule: RejectionRule, request_id: str) -> None:
    for scheduler in (make_scheduler(0), crowded()):
        asks = Job(make_request(request_id, now=1.0), 99)
        scheduler.learned_state.book(asks, scheduler.lanes.policy)
        scheduler.lanes.find_home(asks)
        before = pickle.dumps(scheduler)
        facts = scheduler.admission._facts
        rejection = rule(asks, False, facts, 1.0)
        assert rule(asks, False, facts, 1.0) == rejection
        assert pickle.dumps(scheduler) == before
        assert rejection is None or rejection.retry_after_s is None or rejection.retry_after_s > 0


@pytest.mark.parametrize("admitted", [True, False])
def test_the_first_rule_that_rejects_decides(admitted: bool) -> None:
    scheduler = crowded()
    asks = Job(make_request("q1", now=1.0), 99)
    scheduler.learned_state.book(asks, scheduler.lanes.policy)
    scheduler.lanes.find_home(asks)
    answers = [
        rejection
        for rule in REJECTION_RULES
        if (rejection := rule(asks, admitted, scheduler.admission._facts, 1.0)) is not None
    ]
    assert [answer.cause for answer in answers] == (["duplicate_id"] if admitted else ["duplicate_id", "model_full"])
    answer = scheduler.submit(asks.request, 1.0, admitted)
    assert answer.cause == "duplicate_id"


def test_an_unknown_pick_is_refused() -> None:
    with pytest.raises(ValueError, match=r"pick = 'fastest'; allowed: min_ttft"):
        Scheduler(SchedulingPolicy(pick="fastest"))


def test_a_spec_may_name_every_pick_and_no_other() -> None:
    assert get_args(Scheduling.model_fields["pick"].annotation) == tuple(PICKS)
    with pytest.raises(SpecError, match=r"scheduling\.pick = 'fastest': allowed: min_ttft"):
        parse_spec("scheduling: {pick: fastest}")
