"""Books of a test's own beside a scheduler, and the invariants that both must keep: the base of `test_scheduler.py`."""

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from deployments.decisions import Entry
from deployments.scheduling import LanePolicy, Lease, Order, RejectCause, Request, SchedulingPolicy, Step, TenantPolicy
from deployments.scheduling.recorder import RecordingScheduler
from tests.deployments.scheduling.world import CAPACITY, LANES, POLICY, make_scheduler

LIMITED = TenantPolicy(3.0, max_concurrency=6, tokens_per_minute=40_000.0)
POLICIES = (
    POLICY,
    dataclasses.replace(POLICY, lanes=(LanePolicy("all", None, max_wait_s=15),)),
    dataclasses.replace(POLICY, order=Order.ARRIVAL, promoted_share=0.5, tenants={"b": LIMITED}),
    dataclasses.replace(
        POLICY, lanes=(*LANES[:2], LanePolicy("huge", None, weight=0.1, max_wait_s=5)), decode_weight=8.0
    ),
    dataclasses.replace(
        POLICY,
        lanes=(LanePolicy("tiny", 20, weight=9, max_wait_s=2), *LANES),
        tenants={"a": TenantPolicy(0.2), "b": LIMITED},
    ),
    dataclasses.replace(
        POLICY, lanes=(LanePolicy("quick", 300, max_wait_s=3), *LANES[2:]), promoted_share=0.05, max_waiting=90
    ),
)


class SchedulerBooks(RuleBasedStateMachine):
    """Two schedulers that get the same inputs. One of them writes a log, on a disk that is full now and then."""

    @initialize(replicas=st.integers(0, 3), policy=st.sampled_from(POLICIES))
    def start(self, replicas: int, policy: SchedulingPolicy) -> None:
        self.now = 0.0
        self.disk_is_full = False
        self.lines_lost = 0
        self.scheduler, self.twin = make_scheduler(replicas, policy), self._recording(policy)
        for number in range(replicas):
            self.twin.replica_up(f"r{number}", CAPACITY, self.now)
        self.prefilled: set[str] = set()
        self.replicas = {f"r{number}" for number in range(replicas)}
        self.fate: dict[str, str] = {}
        self.live: dict[str, Lease] = {}
        self.made: dict[str, Request] = {}
        self.attempts: dict[str, int] = {}
        self.owners = 1
        self.cordoned: set[str] = set()
        self.ready_at_s: float | None = None
        self.withdrawn = 0
        self.answered: set[str] = set()

    @invariant()
    def books_balance(self) -> None:
        snapshot = self.scheduler.snapshot(self.now)
        waiting = [name for name, fate in self.fate.items() if fate == "waiting"]
        assert snapshot.placed + snapshot.adopted == len(self.live) + sum(snapshot.endings.values())
        assert sum(lane.waiting for lane in snapshot.lanes) == len(waiting)
        assert set(self.scheduler.lanes.jobs) == set(waiting)
        away = {name for name, fate in self.fate.items() if fate == "away"}
        assert set(self.scheduler.lanes.away) == away
        assert (snapshot.away, snapshot.withdrawn, snapshot.guests) == (len(away), self.withdrawn, 0)
        assert {one.request.request_id for one in self.scheduler.waiting.all(self.now)} == set(waiting)
        assert all(lane.work_tokens >= 0 for lane in snapshot.lanes)
        if waiting:
            assert self.scheduler.next_wakeup() is not None

    @invariant()
    def replicas_hold_what_they_can(self) -> None:
        for replica in self.scheduler.snapshot(self.now).replicas:
            held = [lease for lease in self.live.values() if lease.replica_id == replica.replica_id]
            assert (replica.leases, replica.sequences) == (len(held), sum(lease.request.sequences for lease in held))
            assert replica.kv_tokens == sum(lease.kv_tokens for lease in held)
            assert replica.prefill_tokens == sum(
                lease.prefill_tokens for lease in held if lease.attempt_id not in self.prefilled
            )
            if len(held) > 1:
                assert replica.sequences <= CAPACITY.sequences + CAPACITY.ahead
                assert replica.kv_tokens <= CAPACITY.kv_tokens

    @invariant()
    def counters_count_what_there_is(self) -> None:
        scheduler = self.scheduler
        flows = scheduler.tally.flows.values()
        assert (
            sum(flow.met + flow.missed for flow in flows)
            <= sum(flow.arrived for flow in flows) + scheduler.tally.adopted
        )
        for lane in scheduler.lanes.all:
            mine = [job for job in scheduler.lanes.jobs.values() if job.lane is lane]
            assert lane.count == len(mine)
            assert lane.work == pytest.approx(sum(job.cost for job in mine))
            if lane.shortest and mine:
                middle = sorted(job.key for job in mine)[len(mine) // 2]
                before = sum(job.cost for job in mine if job.key < middle)
                same_bin = sum(job.cost for job in mine if abs(job.key - middle) <= lane._by_key._width)
                assert before - same_bin - 1e-6 <= lane.work_before(middle) <= before + same_bin + 1e-6
            sharing = [job.request.tenant for job in mine if job not in lane._front]  # the head is nobody's share
            tenants = {tenant: lane.claim(tenant) for tenant in sharing}
            assert sum(claim.share for claim in tenants.values()) == pytest.approx(1.0 if tenants else 0.0)
        estimated = [job for job in scheduler.lanes.jobs.values() if job.wait_estimate is not None and not job.attempt]
        etas = {
            id(eta): eta
            for eta in (*scheduler.forecasts.etas.values(), *(job.eta for job in estimated if job.eta is not None))
        }
        assert {key: eta.open for key, eta in etas.items()} == {
            key: sum(job.eta is eta for job in estimated) for key, eta in etas.items()
        }
        assert {name for name, _ in scheduler.forecasts.etas.items()} <= {lane.name for lane in scheduler.lanes.lanes}

    @invariant()
    def holds_are_for_somebody(self) -> None:
        holds, fleet = self.scheduler.holds.by_lane, self.scheduler.fleet
        assert fleet.reserved == len(holds) == len({hold.replica.replica_id for hold in holds.values()})
        for name, hold in holds.items():
            assert hold.replica.held_by == name == hold.lane.name
            assert hold.lane in self.scheduler.lanes.all
        held_by = {
            replica.replica_id: replica.held_by for replica in fleet.by_id.values() if replica.held_by is not None
        }
        assert set(held_by.items()) <= {(hold.replica.replica_id, name) for name, hold in holds.items()}

    @invariant()
    def cordons_stand(self) -> None:
        assert self.scheduler.fleet.cordoned == self.cordoned
        for replica in self.scheduler.snapshot(self.now).replicas:
            cordoned = replica.replica_id in self.cordoned
            assert replica.status in (
                ("cordoned", "draining", "unresponsive")
                if cordoned
                else ("ready", "draining", "unresponsive", "ejected")
            )

    @invariant()
    def limits_count_what_waits_and_runs(self) -> None:
        lanes = self.scheduler.lanes
        mine = [job for job in (*lanes.jobs.values(), *lanes.away.values()) if job.limited]
        mine += [job for _, job in self.scheduler.leases.values() if job.limited]
        assert {job.request.tenant for job in mine} <= {"a", "b"}
        for tenant in "ab":
            assert self.scheduler.limits.at_once(tenant) == sum(job.request.tenant == tenant for job in mine)

    def _check(self, step: Step) -> None:
        for request in step.expired:
            assert request.expires_s <= self.now
            assert self.fate[request.request_id] == "waiting"
            self.fate[request.request_id] = "expired"
        for gone in step.turned_away:
            assert self.fate[gone.request.request_id] == "waiting"
            assert gone.admission.cause is RejectCause.STARTING
            assert self._in_vain(gone.request)
            self.fate[gone.request.request_id] = "rejected"
        for placement in step.placements:
            assert self.fate[placement.request.request_id] == "waiting"
            assert placement.replica_id in self.replicas - self.cordoned
            self.fate[placement.request.request_id] = "leased"
            name, lease = placement.request.request_id, placement.lease
            assert lease.attempt == self.attempts.get(name, 0) + 1, "an engine never sees an id twice"
            self.attempts[name] = lease.attempt
            self.live[lease.attempt_id] = lease

    def _in_vain(self, request: Request) -> bool:
        """Whether there is no replica that could serve it before it gives up."""
        there = [
            r
            for r in self.scheduler.fleet.by_id.values()
            if r.reported != "draining" and r.replica_id not in self.cordoned
        ]
        return not there and self.ready_at_s is not None and self.ready_at_s > max(self.now, request.expires_s)

    def _recording(self, policy: SchedulingPolicy) -> RecordingScheduler:
        return RecordingScheduler(policy, self._write, lambda: self.disk_is_full, self._line_lost)

    def _write(self, entry: Entry) -> None:
        if self.disk_is_full:
            raise OSError(28, "No space left on device")

    def _line_lost(self, error: Exception) -> None:
        assert isinstance(error, OSError)
        self.lines_lost += 1

    def _both(self, act: object) -> None:
        for scheduler in (self.scheduler, self.twin):
            act(scheduler)  # type: ignore[operator]
