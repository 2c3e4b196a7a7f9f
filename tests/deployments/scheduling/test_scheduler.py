"""The scheduler's invariants over random schedules, and its decisions in small cases that a reader can follow."""

import dataclasses
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from deployments.scheduling import AdmissionKind, Capacity, Ending, Lease, RejectCause, Request, Scheduler, Settings, Usage, WaitReason

CAPACITY = Capacity(sequences=4, ahead=1, kv_tokens=2_000, prefill_tokens=600)
MAX_WAITING = 8


def make_request(name: str, prompt: int = 100, output: int = 50, now: float = 0.0, patience: float = 60.0, sequences: int = 1) -> Request:
    return Request(name, prompt, output, arrived_s=now, expires_s=now + patience, sequences=sequences)


def ready_scheduler(replicas: int = 1, capacity: Capacity = CAPACITY) -> Scheduler:
    scheduler = Scheduler(Settings(MAX_WAITING))
    for number in range(replicas):
        scheduler.replica_up(f"r{number}", capacity, 0.0)
    return scheduler


class SchedulerMachine(RuleBasedStateMachine):
    """Drives a scheduler with anything a gateway may do, in any order, and keeps its own books beside it."""

    requests = Bundle("requests")
    leases = Bundle("leases")

    @initialize(replicas=st.integers(0, 3))
    def start(self, replicas: int) -> None:
        self.now = 0.0
        self.scheduler = ready_scheduler(replicas)
        self.replicas = {f"r{number}" for number in range(replicas)}
        self.fate: dict[str, str] = {}
        self.order: list[str] = []
        self.live: dict[int, Lease] = {}
        self.counter = 0

    @rule(target=requests, prompt=st.integers(1, 3_000), output=st.integers(0, 500), patience=st.floats(0.5, 30), sequences=st.integers(1, 8))
    def submit(self, prompt: int, output: int, patience: float, sequences: int) -> str:
        self.counter += 1
        name = f"q{self.counter}"
        waiting = sum(fate == "waiting" for fate in self.fate.values())
        admission = self.scheduler.submit(make_request(name, prompt, output, self.now, patience, sequences), self.now)
        assert admission.accepted == (waiting < MAX_WAITING)
        self.fate[name] = "waiting" if admission.accepted else "rejected"
        if admission.accepted:
            self.order.append(name)
        else:
            assert admission.cause is RejectCause.LANE_FULL
            assert admission.retry_after_s is not None
            assert 1 <= admission.retry_after_s <= 600
        return name

    @rule(name=requests)
    def submit_again(self, name: str) -> None:
        if self.fate[name] in ("waiting", "leased"):
            assert self.scheduler.submit(make_request(name, now=self.now), self.now).cause is RejectCause.DUPLICATE_ID

    @rule(name=requests)
    def cancel(self, name: str) -> None:
        assert self.scheduler.cancel(name, self.now) == (self.fate[name] == "waiting")
        if self.fate[name] == "waiting":
            self._end(name, "cancelled")

    @rule(target=leases, passed=st.floats(0, 5))
    def step(self, passed: float) -> object:
        self.now += passed
        step = self.scheduler.step(self.now)
        for request in step.expired:
            assert request.expires_s <= self.now
            assert self.fate[request.request_id] == "waiting"
            self._end(request.request_id, "expired")
        placed = [placement.request.request_id for placement in step.placements]
        assert placed == self.order[: len(placed)], "first in, first out"
        for placement in step.placements:
            assert self.fate[placement.request.request_id] == "waiting"
            assert placement.replica_id in self.replicas
            self._end(placement.request.request_id, "leased")
            self.live[placement.lease.lease_id] = placement.lease
        return multiple(*(placement.lease for placement in step.placements))

    @rule(lease=leases)
    def first_token(self, lease: Lease) -> None:
        self.scheduler.first_token(lease, self.now)

    @rule(lease=leases, ending=st.sampled_from([Ending.FINISHED, Ending.CANCELLED, Ending.FAILED]))
    def release(self, lease: Lease, ending: Ending) -> None:
        assert self.scheduler.release(lease, ending, Usage(10, 0, 5, 0), self.now) == (lease.lease_id in self.live)
        if self.live.pop(lease.lease_id, None):
            self.fate[lease.request.request_id] = ending.value

    @rule(lease=consumes(leases))
    def refuse(self, lease: Lease) -> None:
        if lease.lease_id in self.live:
            self.scheduler.replica_draining(lease.replica_id, self.now)
            self.scheduler.release(lease, Ending.REFUSED, None, self.now)
            del self.live[lease.lease_id]
            self.fate[lease.request.request_id] = "waiting"
            self.order.insert(0, lease.request.request_id)

    @rule(number=st.integers(0, 3))
    def replica_up(self, number: int) -> None:
        self.replicas.add(f"r{number}")
        self.scheduler.replica_up(f"r{number}", CAPACITY, self.now)

    @rule(number=st.integers(0, 3))
    def replica_suspect(self, number: int) -> None:
        self.scheduler.replica_suspect(f"r{number}", self.now)

    @rule(number=st.integers(0, 3))
    def replica_lost(self, number: int) -> None:
        lost = self.scheduler.replica_lost(f"r{number}", self.now)
        assert {lease.lease_id for lease in lost} == {key for key, lease in self.live.items() if lease.replica_id == f"r{number}"}
        self.replicas.discard(f"r{number}")
        for lease in lost:
            del self.live[lease.lease_id]
            self.fate[lease.request.request_id] = "failed"

    @invariant()
    def books_balance(self) -> None:
        snapshot = self.scheduler.snapshot(self.now)
        assert snapshot.placed == len(self.live) + sum(snapshot.endings.values())
        assert snapshot.lanes[0].waiting == len(self.order)
        assert snapshot.submitted >= len(self.fate)
        assert (self.scheduler.next_wakeup() is None) == (not self.order)

    @invariant()
    def replicas_hold_what_they_can(self) -> None:
        for replica in self.scheduler.snapshot(self.now).replicas:
            held = [lease.request for lease in self.live.values() if lease.replica_id == replica.replica_id]
            assert (replica.leases, replica.sequences) == (len(held), sum(request.sequences for request in held))
            assert replica.kv_tokens == sum(request.kv_tokens for request in held)
            if len(held) > 1:
                assert replica.sequences <= CAPACITY.sequences + CAPACITY.ahead
                assert replica.kv_tokens <= CAPACITY.kv_tokens

    def _end(self, name: str, fate: str) -> None:
        self.fate[name] = fate
        self.order.remove(name)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def run_twice(drive: Callable[[Scheduler], object]) -> tuple[object, object]:
    return drive(ready_scheduler(2)), drive(ready_scheduler(2))


def test_same_inputs_same_decisions() -> None:
    def drive(scheduler: Scheduler) -> list[object]:
        decisions: list[object] = []
        for number in range(8):
            decisions.append(scheduler.submit(make_request(f"q{number}", prompt=37 * number + 1, now=number), float(number)))
            decisions.append(scheduler.step(float(number)))
        return decisions

    first, second = run_twice(drive)
    assert first == second


def test_a_request_larger_than_the_replica_runs_alone() -> None:
    scheduler = ready_scheduler()
    scheduler.submit(make_request("huge", prompt=5_000), 0.0)
    scheduler.submit(make_request("small"), 0.0)
    assert [placement.request.request_id for placement in scheduler.step(0.0).placements] == ["huge"]
    assert scheduler.snapshot(0.0).lanes[0].head_waits_for is WaitReason.KV_TOKENS


def test_the_prefill_budget_opens_with_the_first_token() -> None:
    scheduler = ready_scheduler()
    for name in ("a", "b"):
        scheduler.submit(make_request(name, prompt=500), 0.0)
    (placement,) = scheduler.step(0.0).placements
    assert scheduler.snapshot(0.0).lanes[0].head_waits_for is WaitReason.PREFILL_BUDGET
    scheduler.first_token(placement.lease, 1.0)
    assert [placement.request.request_id for placement in scheduler.step(1.0).placements] == ["b"]


def test_the_wait_goes_to_the_least_loaded_replica() -> None:
    scheduler = ready_scheduler(2)
    for name in ("a", "b"):
        scheduler.submit(make_request(name), 0.0)
    assert [placement.replica_id for placement in scheduler.step(0.0).placements] == ["r0", "r1"]


def test_a_refused_request_waits_at_the_head_and_keeps_its_patience() -> None:
    scheduler = ready_scheduler()
    for number in range(7):
        scheduler.submit(make_request(f"q{number}"), 0.0)
    first = scheduler.step(0.0).placements[0].lease
    scheduler.release(first, Ending.REFUSED, None, 1.0)
    (again,) = scheduler.step(1.0).placements
    assert (again.request.request_id, again.lease.attempt) == ("q0", 2)
    scheduler.release(dataclasses.replace(again.lease), Ending.REFUSED, None, 2.0)
    scheduler.replica_suspect("r0", 2.0)
    assert next(request.request_id for request in scheduler.step(60.0).expired) == "q0"


def test_an_idle_hour_does_not_slow_the_measured_rate() -> None:
    scheduler = ready_scheduler()

    def run(name: str, start: float) -> None:
        scheduler.submit(make_request(name, now=start), start)
        (placement,) = scheduler.step(start).placements
        scheduler.release(placement.lease, Ending.FINISHED, Usage(100, 0, 100, 0), start + 2)

    run("a", 0.0)
    before = scheduler.snapshot(2.0).tokens_per_s
    run("b", 3_600.0)
    assert before == pytest.approx(100, rel=0.05)
    assert scheduler.snapshot(3_602.0).tokens_per_s == pytest.approx(before, rel=0.05)


def test_admission_tells_whether_it_waits() -> None:
    scheduler = ready_scheduler()
    assert scheduler.submit(make_request("a"), 0.0).kind is AdmissionKind.ADMIT
    scheduler.step(0.0)
    for number in range(6):
        scheduler.submit(make_request(f"q{number}"), 0.0)
    scheduler.step(0.0)
    assert scheduler.submit(make_request("z"), 0.0).kind is AdmissionKind.QUEUE
