"""The scheduler's invariants over random schedules: cancels, losses, drains, reloads with many waiting, ends without a
first token, failing logs."""

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, consumes, multiple, rule

from deployments.scheduling import Ending, Lease, RejectCause, SchedulingPolicy, Usage
from tests.deployments.scheduling.scheduler_books import POLICIES, SchedulerBooks
from tests.deployments.scheduling.world import CAPACITY, make_request, make_scheduler


class SchedulerMachine(SchedulerBooks):
    """Drives both schedulers, in any order a gateway could."""

    requests = Bundle("requests")
    leases = Bundle("leases")

    @rule(
        target=requests,
        prompt=st.integers(1, 6_000),
        output=st.one_of(st.none(), st.integers(1, 800)),
        patience=st.floats(0.5, 120),
        sequences=st.integers(1, 7),
        tenant=st.sampled_from("abc"),
        prefix=st.integers(0, 6),
    )
    def submit(self, prompt: int, output: int | None, patience: float, sequences: int, tenant: str, prefix: int) -> str:
        name = f"q{len(self.fate)}"
        request = make_request(name, prompt, output, self.now, patience, 5.0, sequences, tenant, tuple(range(prefix)))
        admission = self.scheduler.submit(request, self.now)
        assert admission == self.twin.submit(request, self.now)
        self.fate[name] = "waiting" if admission.accepted else "rejected"
        self.made[name] = request
        if not admission.accepted:
            own = (RejectCause.TENANT_CONCURRENCY, RejectCause.TENANT_TOKENS)
            if admission.cause is RejectCause.STARTING:
                assert self._in_vain(request)
            else:
                assert admission.cause in (RejectCause.MODEL_FULL, RejectCause.LANE_FULL) or (
                    tenant == "b" and admission.cause in own
                )
            assert admission.retry_after_s is not None
            assert 1 <= admission.retry_after_s <= 600
        elif tenant == "b" and tenant in self.scheduler.lanes.policy.tenants:
            assert self.scheduler.limits.at_once(tenant) <= 6
        if admission.accepted:
            assert not self._in_vain(request)
        if admission.accepted and admission.eta_s is not None:
            assert 0 <= admission.eta_s[0] <= admission.eta_s[1]
        return name

    @rule(
        target=requests,
        number=st.integers(10, 30),
        prompt=st.integers(1, 900),
        patience=st.floats(0.5, 120),
        tenants=st.sampled_from(["a", "abc"]),
    )
    def crowd(self, number: int, prompt: int, patience: float, tenants: str) -> object:
        """Many at once: more than replicas have room for."""
        return multiple(
            *(self.submit(prompt + 7 * n, 20, patience, 1, tenants[n % len(tenants)], 0) for n in range(number))
        )

    @rule()
    def disk(self) -> None:
        """The disk under the log is full, or has room again."""
        self.disk_is_full = not self.disk_is_full

    @rule(name=requests)
    def submit_again(self, name: str) -> None:
        if self.fate[name] in ("waiting", "leased", "away"):
            for scheduler in (self.scheduler, self.twin):
                assert scheduler.submit(make_request(name, now=self.now), self.now).cause is RejectCause.DUPLICATE_ID

    @rule(name=requests)
    def cancel(self, name: str) -> None:
        lives = self.fate[name] in ("waiting", "away")
        assert self.scheduler.cancel(name, self.now) == self.twin.cancel(name, self.now) == lives
        if lives:
            self.fate[name] = "cancelled"

    @rule(name=requests)
    def submit_what_was_cancelled(self, name: str) -> None:
        """Its gateway's channel broke and opened again: it is charged and counted no second time."""
        if self.fate[name] != "cancelled" or name in self.attempts:
            return
        before = self._charged()
        admission = self.scheduler.submit(self.made[name], self.now, admitted=True)
        assert admission == self.twin.submit(self.made[name], self.now, admitted=True)
        assert admission.accepted or admission.cause is RejectCause.STARTING
        assert self._charged() == before
        self.fate[name] = "waiting" if admission.accepted else "rejected"
        if admission.accepted and self.scheduler.lanes.jobs[name].judged:
            self.answered.add(name)

    def _charged(self) -> tuple[int, dict[str, float]]:
        arrived = sum(flow.arrived for flow in self.scheduler.tally.flows.values())
        return arrived, {use.tenant: use.requests for use in self.scheduler.tenant_use() if use.requests}

    @rule(name=requests)
    def withdraw(self, name: str) -> None:
        """A peer cell takes it, if it waits, or another attempt of it, if it is away."""
        fate = self.fate[name]
        lease = self.scheduler.withdraw(name, self.now)
        assert lease == self.twin.withdraw(name, self.now)
        assert (lease is not None) == (fate in ("waiting", "away"))
        if lease is not None:
            self.fate[name] = "away"
            self.withdrawn += fate == "waiting"
            self.attempts[name] = self.attempts.get(name, 0) + 1

    @rule(name=requests)
    def put_back(self, name: str) -> None:
        """The peer cell has lost it."""
        away = self.fate[name] == "away"
        assert self.scheduler.put_back(name, self.now) == self.twin.put_back(name, self.now) == away
        if away:
            self.fate[name] = "waiting"

    @rule(name=requests)
    def first_token_away(self, name: str) -> None:
        flows = self.scheduler.tally.flows.values()
        before = sum(flow.met + flow.missed for flow in flows)
        self._both(lambda scheduler: scheduler.first_token_away(name, self.now))
        news = self.fate[name] == "away" and name not in self.answered
        assert sum(flow.met + flow.missed for flow in self.scheduler.tally.flows.values()) == before + news
        if self.fate[name] == "away":
            self.answered.add(name)

    @rule(target=leases, passed=st.floats(0, 10))
    def step(self, passed: float) -> object:
        self.now += passed
        step = self.scheduler.step(self.now)
        assert step == self.twin.step(self.now), "same inputs, same decisions"
        self._check(step)
        return multiple(*(placement.lease for placement in step.placements))

    @rule(lease=leases)
    def first_token(self, lease: Lease) -> None:
        current = self.live.get(lease.attempt_id, lease if self.owners == 1 else None)
        if current is not None:
            self._both(lambda scheduler: scheduler.first_token(current, self.now))
            if lease.attempt_id in self.live:
                self.prefilled.add(lease.attempt_id)
                self.answered.add(current.request.request_id)

    @rule(
        lease=leases,
        ending=st.sampled_from([Ending.FINISHED, Ending.CANCELLED, Ending.FAILED]),
        output=st.integers(0, 900),
    )
    def release(self, lease: Lease, ending: Ending, output: int) -> None:
        usage = (
            Usage(lease.request.prompt_tokens, 0, output, 0, lease.request.sequences, 0.1, 0.2)
            if ending is Ending.FINISHED
            else None
        )
        current = self.live.pop(lease.attempt_id, None)
        if current is not None or self.owners == 1:
            for scheduler in (self.scheduler, self.twin):
                assert scheduler.release(current or lease, ending, usage, self.now) == (current is not None)
        if current is not None:
            self.fate[lease.request.request_id] = ending.value

    @rule(lease=consumes(leases))
    def refuse(self, lease: Lease) -> None:
        current = self.live.pop(lease.attempt_id, None)
        if current is not None:
            for scheduler in (self.scheduler, self.twin):
                scheduler.replica_draining(lease.replica_id, self.now)
                scheduler.release(current, Ending.REFUSED, None, self.now)
            self.fate[lease.request.request_id] = "waiting"

    @rule(policy=st.sampled_from(POLICIES))
    def another_owner(self, policy: SchedulingPolicy) -> None:
        """A new scheduler takes over: it adopts what the replicas run, and takes in what waits, whatever its caps and
        limits say."""
        self.owners += 1
        self.scheduler, self.twin = make_scheduler(0, policy), self._recording(policy)
        self.prefilled.clear()  # a new owner hears of first tokens anew
        self.answered.clear()
        self.withdrawn = 0
        gone = ("away", "cancelled")
        self.fate = {name: "elsewhere" if fate in gone else fate for name, fate in self.fate.items()}
        self.ready_at_s = None
        for name in sorted(self.cordoned):
            self._both(lambda scheduler, name=name: scheduler.replica_cordoned(name, self.now))
        for name in sorted(self.replicas):
            self._both(lambda scheduler, name=name: scheduler.replica_up(name, CAPACITY, self.now))
        for attempt_id, lease in list(self.live.items()):
            reported = dataclasses.replace(lease, lease_id=0)
            adopted = self.scheduler.adopt(reported, False, self.now)
            assert adopted == self.twin.adopt(reported, False, self.now)
            assert adopted is not None
            assert adopted.attempt_id == attempt_id
            self.live[attempt_id] = adopted
        for name in [name for name, fate in self.fate.items() if fate == "waiting"]:
            again = dataclasses.replace(self.made[name], attempts=self.attempts.get(name, 0))
            admission = self.scheduler.submit(again, self.now, admitted=True)
            assert admission.accepted
            assert admission == self.twin.submit(again, self.now, admitted=True)

    @rule(policy=st.sampled_from(POLICIES))
    def reload(self, policy: SchedulingPolicy) -> None:
        self._both(lambda scheduler: scheduler.configure(policy, self.now))

    @rule(number=st.integers(0, 3))
    def replica_up(self, number: int) -> None:
        self.replicas.add(f"r{number}")
        self._both(lambda scheduler: scheduler.replica_up(f"r{number}", CAPACITY, self.now))

    @rule(number=st.integers(0, 3), draining=st.booleans())
    def replica_down(self, number: int, draining: bool) -> None:
        name = f"r{number}"
        self._both(
            lambda scheduler: (scheduler.replica_draining if draining else scheduler.replica_unresponsive)(
                name, self.now
            )
        )

    @rule(number=st.integers(0, 3), cordoned=st.booleans())
    def cordon(self, number: int, cordoned: bool) -> None:
        name = f"r{number}"
        (self.cordoned.add if cordoned else self.cordoned.discard)(name)
        self._both(
            lambda scheduler: (scheduler.replica_cordoned if cordoned else scheduler.replica_uncordoned)(name, self.now)
        )

    @rule(in_s=st.one_of(st.none(), st.floats(-5, 200)))
    def expect_replica(self, in_s: float | None) -> None:
        self.ready_at_s = None if in_s is None else self.now + in_s
        self._both(lambda scheduler: scheduler.expect_replica(self.ready_at_s, self.now))

    @rule(number=st.integers(0, 3))
    def replica_lost(self, number: int) -> None:
        lost = self.scheduler.replica_lost(f"r{number}", self.now)
        assert lost == self.twin.replica_lost(f"r{number}", self.now)
        assert {lease.attempt_id for lease in lost} == {
            key for key, lease in self.live.items() if lease.replica_id == f"r{number}"
        }
        self.replicas.discard(f"r{number}")
        for lease in lost:
            del self.live[lease.attempt_id]
            self.fate[lease.request.request_id] = "failed"


TestScheduler = pytest.mark.whole(SchedulerMachine.TestCase)
TestScheduler.settings = settings(max_examples=settings.default.max_examples * 4 // 5, stateful_step_count=40)


@pytest.mark.long
@pytest.mark.timeout(1_800)
class TestManySchedules(SchedulerMachine.TestCase):  # type: ignore[misc, name-defined]
    """The same over thousands of schedules."""

    settings = settings(max_examples=4_000, stateful_step_count=50)
