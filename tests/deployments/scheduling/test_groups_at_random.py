"""Groups under random schedules: no request is placed where its lane names no group or where it does not fit, and none
waits while a replica of its groups has room."""

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from deployments.scheduling import Ending, LanePolicy, Lease, RejectCause, Request, Scheduler, SchedulingPolicy, Usage
from deployments.scheduling.lane import Lane
from deployments.scheduling.request import Job
from tests.deployments.scheduling.test_groups import ALL, CHEAP, CONTEXTS, DEAR, POLICY
from tests.deployments.scheduling.world import make_request

POLICIES = (
    POLICY,
    ALL,
    SchedulingPolicy((LanePolicy("all", max_wait_s=5.0),), groups={"all": ("dear", "cheap")}, contexts=CONTEXTS),
    SchedulingPolicy(
        (LanePolicy("short", 900, max_wait_s=3.0), LanePolicy("rest", max_wait_s=8.0)),
        groups={"short": ("cheap",), "rest": ("dear", "cheap")},
        contexts={"cheap": 600, "dear": 8_000},
    ),
)


class GroupMachine(RuleBasedStateMachine):
    """A scheduler and a twin that gets the same inputs. The checks know nothing of lanes and heaps."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.policy = POLICIES[0]
        self.both = (Scheduler(self.policy), Scheduler(self.policy))
        self.made = 0
        self.ups = 0

    @rule(prompt=st.integers(1, 9_000), output=st.one_of(st.none(), st.integers(1, 1_500)), unsure=st.integers(0, 200))
    def submit(self, prompt: int, output: int | None, unsure: int) -> None:
        self.made += 1
        request = make_request(f"q{self.made}", prompt, output, self.now, patience=60.0)
        request = dataclasses.replace(request, max_prompt_tokens=prompt + unsure)
        one, two = (scheduler.submit(request, self.now) for scheduler in self.both)
        assert one == two
        largest = max(self.policy.contexts.values())
        assert (one.cause is RejectCause.CONTEXT) == (prompt + (output or 1) > largest)

    @rule(target=leases, passed=st.floats(0, 6))
    def step(self, passed: float) -> object:
        self.now += passed
        one, two = (scheduler.step(self.now) for scheduler in self.both)
        assert one == two, "same inputs, same decisions"
        for placement in one.placements:
            self.check(placement.request, placement.lease)
        return multiple(*(placement.lease for placement in one.placements))

    def check(self, request: Request, lease: Lease) -> None:
        capacity = self.both[0].fleet.by_id[lease.replica_id].capacity
        assert capacity.group in self.policy.groups[self.policy.lanes[lease.home].name]
        assert request.prompt_tokens + (request.max_tokens or 1) <= capacity.context_tokens

    @rule(lease=leases)
    def first_token(self, lease: Lease) -> None:
        for scheduler in self.both:
            scheduler.first_token(lease, self.now)

    @rule(lease=consumes(leases), ending=st.sampled_from(Ending), output=st.integers(0, 900))
    def release(self, lease: Lease, ending: Ending, output: int) -> None:
        usage = Usage(lease.request.prompt_tokens, 0, output, 0, 1, 0.1, 0.5) if ending is Ending.FINISHED else None
        for scheduler in self.both:
            scheduler.release(lease, ending, usage, self.now)

    @rule(number=st.integers(0, 3), context=st.sampled_from([None, 700]))
    def replica_up(self, number: int, context: int | None) -> None:
        capacity = DEAR if number % 2 else CHEAP
        if context is not None:
            capacity = dataclasses.replace(capacity, context_tokens=context)
        for scheduler in self.both:
            scheduler.replica_up(f"r{number}", capacity, self.now)

    @rule(number=st.integers(0, 3), how=st.sampled_from(["lost", "unresponsive", "draining", "cordoned", "uncordoned"]))
    def replica_changes(self, number: int, how: str) -> None:
        for scheduler in self.both:
            getattr(scheduler, f"replica_{how}")(f"r{number}", self.now)

    @rule(policy=st.sampled_from(POLICIES))
    def reload(self, policy: SchedulingPolicy) -> None:
        self.policy = policy
        for scheduler in self.both:
            scheduler.configure(policy, self.now)

    @rule()
    def read(self) -> None:
        """Reading changes nothing: the twin is not read."""
        scheduler = self.both[0]
        snapshot = scheduler.snapshot(self.now)
        waiting = {lane.name: lane.waiting for lane in snapshot.lanes}
        assert sum(waiting.values()) == len(scheduler.lanes.jobs)
        assert {name for name, _ in scheduler.head_waits()} == {name for name, count in waiting.items() if count}

    @invariant()
    def each_job_waits_in_the_lane_of_its_groups(self) -> None:
        scheduler, _ = self.both
        for job in scheduler.lanes.jobs.values():
            assert isinstance(job.lane, Lane)
            assert job.lane.groups == job.groups
        for lane in scheduler.lanes.all:
            assert lane.count == sum(job.lane is lane for job in scheduler.lanes.jobs.values())
        for hold in scheduler.holds.by_lane.values():
            assert hold.replica.capacity.group in (hold.job.groups or ())

    @rule(passed=st.floats(0, 1))
    def a_step_leaves_no_head_that_fits(self, passed: float) -> None:
        self.now += passed
        for scheduler in self.both:
            taken = scheduler.step(self.now)
            for placement in taken.placements:
                self.check(placement.request, placement.lease)
        for scheduler in self.both:  # which lane.head changes
            for lane in scheduler.lanes.all:
                job = lane.head() if lane.count else None
                assert job is None or not self.room_for(job, scheduler), f"{job.request} waits in {lane.key}"

    def room_for(self, job: Job, scheduler: Scheduler) -> list[str]:
        return [
            replica.replica_id
            for replica in scheduler.fleet.by_id.values()
            if replica.open and replica.suits(job) and replica.wait_reason(job) is None
        ]


TestGroupMachine = pytest.mark.whole(GroupMachine.TestCase)
TestGroupMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
