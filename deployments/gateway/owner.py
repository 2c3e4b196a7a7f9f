"""The owner of a model's lane: the live shell around the pure scheduler, in the gateway's own event loop.

It gives the scheduler the time, wakes the tasks whose requests were placed, and runs the scheduler's time-outs. It decides nothing itself.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.spec import Model
from deployments.protocol import ReplicaFacts, ReplicaState
from deployments.scheduling import Admission, Capacity, Ending, Lease, Placement, Policy, Request, Scheduler, Snapshot, Usage


class QueueTimeout(Exception):
    """The request waited in its lane for as long as it may."""


class Rejected(Exception):
    """The request lost its replica before it saw it, and its lane takes no more."""

    def __init__(self, admission: Admission) -> None:
        super().__init__(admission.cause)
        self.admission = admission


@dataclass(frozen=True, slots=True)
class Binding:
    """How much is bound to a replica before its turn: see `Scheduling.bind_ahead` and `.prefill_steps`."""

    ahead: float = 0.25
    prefill_steps: int = 2


_DEFAULT_BINDING = Binding()


class LaneOwner:
    """Runs one model's scheduler. All methods run in the gateway's event loop; none blocks."""

    def __init__(self, model: Model, policy: Policy, binding: Binding = _DEFAULT_BINDING) -> None:
        self.model = model
        self.scheduler = Scheduler(policy)
        self._binding = binding
        self._waiters: dict[str, asyncio.Future[Placement]] = {}
        self._on_lost: dict[int, Callable[[], None]] = {}
        self._facts: dict[str, ReplicaFacts] = {}
        self._ready: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._next_replica = 0

    def configure(self, policy: Policy, binding: Binding) -> None:
        """Changes the policy; what waits keeps waiting."""
        now = time.monotonic()
        self._binding = binding
        self.scheduler.configure(policy, now)
        for facts in self.ready_replicas:
            self.scheduler.replica_up(facts.replica_id, self._capacity(facts), now)
        self._step()

    @property
    def ready_replicas(self) -> list[ReplicaFacts]:
        """The replicas that take requests now."""
        return [self._facts[replica_id] for replica_id in self._facts if replica_id in self._ready]

    def is_ready(self, replica_id: str) -> bool:
        """Whether that replica takes requests now."""
        return replica_id in self._ready

    def url_of(self, lease: Lease) -> str | None:
        """Where the lease's replica listens; None when it was lost."""
        facts = self._facts.get(lease.replica_id)
        return None if facts is None else facts.url

    def ready_in_turn(self) -> list[ReplicaFacts]:
        """The ready replicas for work that needs no lease (tokenising), each time another one first."""
        ready = self.ready_replicas
        self._next_replica += 1
        first = self._next_replica % len(ready) if ready else 0
        return ready[first:] + ready[:first]

    def submit(self, request: Request) -> Admission:
        """Takes a request into the lane. If it is accepted, `placement` must be awaited next."""
        admission = self.scheduler.submit(request, time.monotonic())
        if admission.accepted:
            self._waiters[request.request_id] = asyncio.get_running_loop().create_future()
            self._step()
        return admission

    async def placement(self, request: Request) -> Placement:
        """Waits until the request is placed. Raises QueueTimeout or Rejected; when cancelled, the lane entry (or an unseen lease) is gone at once."""
        waiter = self._waiters[request.request_id]
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(waiter.result().lease, Ending.CANCELLED)
            else:
                self.scheduler.cancel(request.request_id, time.monotonic())
                self._step()
            raise
        finally:
            self._waiters.pop(request.request_id, None)

    def refused(self, lease: Lease, state: ReplicaState | None) -> None:
        """The replica took no work (it drains; None: no connection): the request waits again, at the head, and `placement` must be awaited again."""
        self._on_lost.pop(lease.lease_id, None)
        waiter = self._waiters[lease.request.request_id] = asyncio.get_running_loop().create_future()
        self.replica_state(lease.replica_id, state)
        if not self.scheduler.release(lease, Ending.REFUSED, None, time.monotonic()):
            # The replica was lost before, which ended the lease and left the request nowhere: it took no work, so it waits anew.
            admission = self.scheduler.submit(lease.request, time.monotonic())
            if not admission.accepted:
                waiter.set_exception(Rejected(admission))
        self._step()

    def first_token(self, lease: Lease) -> None:
        """The first byte of the answer came."""
        self.scheduler.first_token(lease, time.monotonic())
        self._step()

    def learn(self, lease: Lease, usage: Usage) -> None:
        """The engine's account of a finished request, which may come after its lease ended."""
        self.scheduler.learn(lease, usage, time.monotonic())

    def release(self, lease: Lease, ending: Ending) -> None:
        """Ends a lease; one that ended before (its replica was lost) is left alone."""
        self._on_lost.pop(lease.lease_id, None)
        self.scheduler.release(lease, ending, None, time.monotonic())
        self._step()

    def when_lost(self, lease: Lease, tell: Callable[[], None]) -> None:
        """`tell` is called if the lease's replica is lost while the lease stands."""
        self._on_lost[lease.lease_id] = tell

    def replica_up(self, facts: ReplicaFacts) -> None:
        """A replica is ready (or ready again)."""
        self._facts[facts.replica_id] = facts
        self._ready.add(facts.replica_id)
        self.scheduler.replica_up(facts.replica_id, self._capacity(facts), time.monotonic())
        self._step()

    def replica_state(self, replica_id: str, state: ReplicaState | None) -> None:
        """A known replica drains, is unhealthy, or is silent (None)."""
        self._ready.discard(replica_id)
        if state is ReplicaState.DRAINING:
            self.scheduler.replica_draining(replica_id, time.monotonic())
        else:
            self.scheduler.replica_suspect(replica_id, time.monotonic())
        self._step()

    def replica_lost(self, replica_id: str) -> None:
        """A replica's process is gone: its leases end as failed, and whoever streams from it is told."""
        self._ready.discard(replica_id)
        for lease in self.scheduler.replica_lost(replica_id, time.monotonic()):
            tell = self._on_lost.pop(lease.lease_id, None)
            if tell is not None:
                tell()
        self._facts.pop(replica_id, None)
        self._step()

    def snapshot(self) -> Snapshot:
        """The scheduler's books now."""
        return self.scheduler.snapshot(time.monotonic())

    def _capacity(self, facts: ReplicaFacts) -> Capacity:
        ahead = max(1, round(facts.max_num_seqs * self._binding.ahead))
        return Capacity(facts.max_num_seqs, ahead, facts.kv_tokens, facts.max_num_batched_tokens, self._binding.prefill_steps)

    def _step(self) -> None:
        step = self.scheduler.step(time.monotonic())
        for request in step.expired:
            waiter = self._waiters[request.request_id]
            if not waiter.done():
                waiter.set_exception(QueueTimeout())
        unwanted = []
        for placement in step.placements:
            waiter = self._waiters[placement.request.request_id]
            if waiter.done():  # its task was cancelled a moment ago and has not run since
                unwanted.append(placement.lease)
            else:
                waiter.set_result(placement)
        for lease in unwanted:
            self.release(lease, Ending.CANCELLED)
        self._arm()

    def _arm(self) -> None:
        wakeup = self.scheduler.next_wakeup()
        if self._timer is not None:
            if wakeup is not None and self._timer_at_s <= wakeup:
                return
            self._timer.cancel()
            self._timer = None
        if wakeup is not None:
            self._timer_at_s = wakeup
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wakeup - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._step()
