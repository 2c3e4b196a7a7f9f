"""A simulated cell: the production scheduler, driven as by `ownership/lane_owner.py`, and engines of a model.

Events are handled in the order of time, and of their making within one moment, so runs repeat. Three clocks are merged:
arrivals, the engines' boundaries, and timed calls (a request reaches its engine, an answer its gateway, a replica
starts, drains or fails).
"""

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.engine import Boundary, EngineModel
from deployments.engine_model.itl_bounds import with_starts
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.sequence import Sequence as EngineSequence
from deployments.scheduling import (
    Admission,
    Binding,
    Ending,
    Lease,
    Placement,
    RejectCause,
    Request,
    Rung,
    Scheduler,
    SchedulingPolicy,
    Usage,
)
from planning.simulator.fleet import SimulatedFleet, SimulatedReplica
from planning.simulator.groups import SimulatedGroup, check_lengths, kinds_of
from planning.simulator.outcome import CAUSES, SimulationOutcome
from planning.simulator.scaling import SimulatedScaling, scaling_loops
from planning.simulator.starts import StartPlan
from planning.simulator.workload import Workload

_DEFAULT_BINDING = Binding()


@dataclass(frozen=True, slots=True)
class CellSettings:
    """`replicas` engines of `limits` from the start; one that starts later takes `start_up_s`.

    With `scaling`, an autoscaler decides how many there are from second 0 on, and the scheduler knows of starts, as it
    does live. A request waits at most `queue_wait_s` in its lane, one of a class in `patience_s` at most so long. With
    `clients`, requests come in a closed loop instead of at their times: so many at first, and the next whenever one has
    ended. `starts`: how long starts take, instead of `start_up_s`.

    `groups`: of a model with several, instead of `replicas`, `limits`, `max_model_len`, `start_up_s`, `scaling` and
    `starts`; `policy` then names the groups of each lane, and their contexts.

    `impatient`: the classes for which another model answers, outside of this simulation. `spare`: by tenant, the rungs
    that never touch it.
    """

    replicas: int
    limits: EngineModelLimits
    policy: SchedulingPolicy
    binding: Binding = _DEFAULT_BINDING
    max_model_len: int = 1 << 30
    queue_wait_s: float = 360.0
    start_up_s: float = 60.0
    clients: int = 0
    scaling: SimulatedScaling | None = None
    patience_s: Mapping[str, float] = field(default_factory=dict)
    starts: StartPlan | None = None
    groups: tuple[SimulatedGroup, ...] = ()
    impatient: frozenset[str] = frozenset()
    spare: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def all_groups(self, cost: CostModel) -> tuple[SimulatedGroup, ...]:
        """The groups; `cost`: of the engines where there is only the one that these settings describe."""
        start_up_s, scaling, starts = self.start_up_s, self.scaling, self.starts
        only = SimulatedGroup(self.replicas, self.limits, cost, self.max_model_len, start_up_s, scaling, starts)
        return self.groups or (only,)


@dataclass(slots=True, eq=False)
class _Running:
    """A leased request."""

    index: int
    replica: SimulatedReplica
    lease: Lease


class CellSimulator:
    """One run. `progress` is called now and then with the share of requests that has arrived; `sample` looks at the
    cell (`sampler.py`)."""

    def __init__(
        self,
        settings: CellSettings,
        cost: CostModel,
        workload: Workload,
        progress: Callable[[float], None] = lambda share: None,
        sample: "Callable[[CellSimulator, float], float] | None" = None,
    ) -> None:
        self._settings, self._workload = settings, workload
        groups = settings.all_groups(cost)
        policy = with_starts(settings.policy, {group.name: (group.limits, group.cost) for group in groups})
        self.scheduler: Scheduler = Scheduler(policy)
        check_lengths(groups, workload)
        self._context, self._several = max(group.max_model_len for group in groups), len(groups) > 1
        # Lists: a NumPy scalar takes longer to read than all that is done with it.
        self._prompts, self._outputs = workload.prompt_tokens.tolist(), workload.output_tokens.tolist()
        self._maxima, self._ttft_slos_s = workload.max_tokens.tolist(), workload.ttft_slo_s.tolist()
        self._next_turns = workload.next_turns()
        self._progress = progress
        self._sample = sample
        self._lanes = {lane.name: index for index, lane in enumerate(settings.policy.lanes)}
        self.outcome = SimulationOutcome.empty(
            workload.arrived_s.copy(), workload.prompt_tokens, workload.output_tokens
        )
        self._boundaries: list[tuple[float, int]] = []
        self._calls: list[tuple[float, int, Callable[[float], None]]] = []
        self._made = 0
        self._next_index = 0
        self._wakeup_s = math.inf
        reported = any(group.scaling is not None for group in groups)
        self.fleet = SimulatedFleet(self, kinds_of(groups, settings.binding), reported)
        self.replicas = self.fleet.replicas
        for group in groups:
            for _ in range(group.replicas):
                self.fleet.start(self.fleet.kinds[group.name], 0.0, 0.0)
        for _ in range(min(settings.clients, len(workload))):
            self.at(0.0, self._next_client)
        self.scalings = scaling_loops({group.name: group.scaling for group in groups}, self)
        self.scaling = next(iter(self.scalings.values()), None)

    @property
    def engines(self) -> list[EngineModel]:
        """Those of all replicas that there ever were."""
        return [replica.engine for replica in self.replicas]

    @property
    def idle(self) -> bool:
        """Whether everything that ever arrives has come and ended."""
        return self.scheduler.submitted >= len(self._workload) and self.scheduler.is_idle

    def run(self) -> SimulationOutcome:
        """Runs until everything that arrived has ended."""
        arrivals = [] if self._settings.clients else self._workload.arrived_s.tolist()
        count, next_arrival = len(arrivals), 0
        boundaries, calls, replicas = self._boundaries, self._calls, self.replicas
        now, reported = 0.0, max(1, count // 100)
        sample, sample_s = self._sample, 0.0 if self._sample else math.inf
        while True:
            arrival_s = arrivals[next_arrival] if next_arrival < count else math.inf
            while boundaries and replicas[boundaries[0][1]].engine.next_s != boundaries[0][0]:
                heapq.heappop(boundaries)  # that engine's segment was cut short
            boundary_s = boundaries[0][0] if boundaries else math.inf
            call_s = calls[0][0] if calls else math.inf
            soonest = min(boundary_s, call_s, arrival_s, self._wakeup_s)
            if soonest == math.inf:
                return self._summed_up(now)
            if sample_s < soonest and sample is not None:
                sample_s = sample(self, soonest)
            now = soonest
            if boundary_s == now:
                self._advance(replicas[heapq.heappop(boundaries)[1]], now)
            elif call_s == now:
                heapq.heappop(calls)[2](now)
            elif arrival_s == now:
                self._arrive(next_arrival, now)
                next_arrival += 1
                if next_arrival % reported == 0:
                    self._progress(next_arrival / count)
            else:
                self.step(now)

    def at(self, time_s: float, call: Callable[[float], None]) -> None:
        """Calls `call` at `time_s`."""
        self._made += 1
        heapq.heappush(self._calls, (time_s, self._made, call))

    def _next_client(self, now: float) -> None:
        """In a closed loop, a client sends its next request."""
        if self._next_index < len(self._workload):
            self.outcome.arrived_s[self._next_index] = now
            self._next_index += 1
            self._arrive(self._next_index - 1, now)

    def _over(self, now: float) -> None:
        """A request has ended, however it did."""
        if self._settings.clients:
            self.at(now, self._next_client)

    def _arrive(self, index: int, now: float) -> Admission:
        maximum, context = self._maxima[index], self._context - self._prompts[index]
        whole = None if self._several else min(context, 1 << 29)
        request = self._request(index, min(maximum, context) if maximum else whole, now)
        admission = self.scheduler.submit(request, now)
        out = self.outcome
        out.lane[index] = self._lanes[admission.lane]
        if admission.cause is not None:
            out.cause[index] = CAUSES.index(admission.cause)
            self._over(now)
        else:
            if admission.eta_s is not None:
                out.eta_p95_s[index] = admission.eta_s[1]
            self.step(now)
        return admission

    def _request(self, index: int, max_tokens: int | None, now: float) -> Request:
        work, traffic_class = self._workload, self._workload.traffic_class[index]
        return Request(
            str(index),
            self._prompts[index],
            max_tokens,
            now,
            now + self._ttft_slos_s[index],
            now + self._settings.patience_s.get(traffic_class, self._settings.queue_wait_s),
            traffic_class=traffic_class,
            tenant=work.tenant[index],
            prefix=work.prefix[index],
            chunk_tokens=work.chunk_tokens,
            impatient=traffic_class in self._settings.impatient,
            rungs=self._rungs_of(work.tenant[index]),
        )

    def _rungs_of(self, tenant: str) -> tuple[Rung, ...]:
        if not self._settings.policy.ladder:
            return ()
        spared = self._settings.spare.get(tenant, ())
        return tuple(rung for rung in Rung if rung not in spared)

    def step(self, now: float) -> None:
        """The scheduler decides."""
        step = self.scheduler.step(now)
        for gone in step.expired:
            self._gave_up(int(gone.request_id), now)
        for refused in step.turned_away:
            self._sent_away(int(refused.request.request_id), refused.admission, now)
        for placement in step.placements:
            self._place(placement, now)
        wakeup = self.scheduler.next_wakeup()
        self._wakeup_s = math.inf if wakeup is None else max(wakeup, math.nextafter(now, math.inf))

    def _gave_up(self, index: int, now: float) -> None:
        """A request's wait is over, and it was not placed."""
        self.outcome.expired_s[index] = now
        self._over(now)

    def _sent_away(self, index: int, admission: Admission, now: float) -> None:
        """A request waited in vain for a replica that starts, or is shed."""
        self.outcome.cause[index] = CAUSES.index(admission.cause or RejectCause.STARTING)
        self._over(now)

    def _place(self, placement: Placement, now: float) -> None:
        lease = placement.lease
        index, replica = int(placement.request.request_id), self.fleet.by_name[lease.replica_id]
        out, work = self.outcome, self._workload
        out.placed_s[index], out.replica[index] = now, replica.number
        out.lane[index], out.promoted[index] = lease.home, placement.promoted
        running = _Running(index, replica, lease)
        output, maximum = self._outputs[index], self._maxima[index]
        if placement.request.clamped and placement.request.max_tokens is not None:
            maximum = placement.request.max_tokens
            output = min(output, maximum)
        if self._several:  # the engine ends an answer at the end of its context
            output = max(1, min(output, replica.kind.capacity.context_tokens - self._prompts[index]))
        following = -1 if self._next_turns is None else int(self._next_turns[index])
        prefix = work.prefix[index] if following < 0 else work.with_answer(index, following)
        open_ended = not 0 < maximum <= output
        sequence = EngineSequence(running, self._prompts[index], 0, output, prefix, lease.home, open_ended)
        replica.leases += 1
        front_s = replica.kind.cost.front(replica.leases - 1)
        if front_s:
            self.at(now + front_s, lambda then: self._reach(sequence, replica, then))
        else:
            self._reach(sequence, replica, now)

    def _reach(self, sequence: EngineSequence, replica: SimulatedReplica, now: float) -> None:
        """A request has come to its engine, unless that has failed meanwhile."""
        if replica.serves:
            replica.engine.add(sequence, now)
            heapq.heappush(self._boundaries, (replica.engine.next_s, replica.number))

    def _advance(self, replica: SimulatedReplica, now: float) -> None:
        engine = replica.engine
        boundary = engine.advance()
        if engine.next_s < math.inf:
            heapq.heappush(self._boundaries, (engine.next_s, replica.number))
        if boundary.first or boundary.finished:
            back_s = replica.kind.cost.back_s
            if back_s:
                self.at(now + back_s, lambda then: self._answer(boundary, then))
            else:
                self._answer(boundary, now)

    def _answer(self, boundary: Boundary, now: float) -> None:
        """First tokens and ends have come to the gateway, and to the clients."""
        out, scheduler = self.outcome, self.scheduler
        for sequence in boundary.first:
            running: _Running = sequence.tag
            if running.replica.serves:
                out.first_s[running.index] = now
                out.engine_queued_s[running.index] = sequence.queued_s
                out.cached_tokens[running.index] = sequence.cached
                scheduler.first_token(running.lease, now)
                self.step(now)
        for sequence in boundary.finished:
            running = sequence.tag
            if not running.replica.serves:
                continue
            out.finished_s[running.index] = now
            scheduler.release(running.lease, Ending.FINISHED, None, now)
            self.step(now)
            first_s = sequence.first_s
            assert first_s is not None
            assert sequence.begun_s is not None
            usage = Usage(
                sequence.prompt,
                sequence.cached,
                sequence.output,
                0,
                1,
                first_s - sequence.begun_s,
                now - running.replica.kind.cost.back_s - first_s,
            )
            scheduler.learn(running.lease, usage, now)
            running.replica.leases -= 1
            self.fleet.gone_if_done(running.replica, now)
            self._over(now)

    def lost(self, lease: Lease, now: float) -> None:
        """A request was lost with its replica."""
        self.outcome.failed[int(lease.request.request_id)] = True
        self._over(now)

    def _summed_up(self, now: float) -> SimulationOutcome:
        self.fleet.sum_up(self.outcome, now)
        self.outcome.scalings_of = {group: tuple(loop.decisions) for group, loop in self.scalings.items()}
        return self.outcome
