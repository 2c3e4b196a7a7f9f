"""The owner of a model in the gateway that owns it: the live shell around the pure scheduler, in that gateway's event loop.

It gives the scheduler the time, tells holders what was decided, runs the scheduler's time-outs, and keeps which lease is whose. It decides nothing
itself. A lease whose holder is gone (its gateway died) stands until the replica says that it ended.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from deployments.ownership.decision_log import DecisionLog
from deployments.ownership.replicas import Replicas
from deployments.ownership.roles import Holder
from deployments.ownership.running import Running
from deployments.protocol import Finished, ReplicaFacts, ReplicaState
from deployments.scaling.latency import Latencies, LatencyWindow
from deployments.scheduling import Binding, Capacity, Ending, Lease, Policy, Request, Scheduler, Snapshot, Usage
from deployments.scheduling.recorder import RecordingScheduler

_T = TypeVar("_T")
_REMEMBERED = 8_192
"""So many ended leases, and so many that the engines said to have ended, are remembered: the two come in either order."""


@dataclass(slots=True)
class _Held:
    """`answered`: its first token came, or came under an owner before, who alone knows when it was asked for."""

    lease: Lease
    holder: Holder | None
    answered: bool = False


_DEFAULT_BINDING = Binding()


class LaneOwner:
    """Runs one model's scheduler. All methods run in the gateway's event loop; none blocks. `replicas` is shared with the gateway's desk."""

    def __init__(
        self, policy: Policy, binding: Binding = _DEFAULT_BINDING, epoch: int = 1, replicas: Replicas | None = None, log: DecisionLog | None = None
    ) -> None:
        self.epoch = epoch
        self.scheduler = Scheduler(policy) if log is None else RecordingScheduler(policy, log.write, log.due)
        self._log = log
        self.replicas = replicas or Replicas()
        self.reconciled = 0
        """How often a replica's word of what runs disagreed with the books, which were then mended."""
        self._binding = binding
        self._joined: set[Holder] = set()
        self._waiting: dict[str, Holder] = {}
        self._held: dict[str, _Held] = {}
        self._declared: dict[str, Holder] = {}
        self._ended: OrderedDict[str, Lease] = OrderedDict()
        self._finished: OrderedDict[str, bool] = OrderedDict()
        self._orphans: set[str] = set()
        self._latencies = LatencyWindow()
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0

    def configure(self, policy: Policy, binding: Binding) -> None:
        """Changes the policy; what waits keeps waiting."""
        now = _now()
        self._binding = binding
        self.scheduler.configure(policy, now)
        for facts in self.replicas.ready:
            if facts.replica_id in self.scheduler.fleet.by_id:
                self.scheduler.replica_up(facts.replica_id, self._capacity(facts), now)
        self._step()

    def submit(self, holder: Holder, request: Request, admitted: bool = False) -> None:
        """Takes a request into the lane, or turns it away."""
        admission = self.scheduler.submit(request, _now(), admitted)
        if admission.accepted:
            self._waiting[request.request_id] = holder
        holder.admitted(request.request_id, admission)
        if admission.accepted:
            self._step()

    def cancel(self, request_id: str) -> None:
        """A request that waits is given up."""
        if self._waiting.pop(request_id, None) is not None:
            self.scheduler.cancel(request_id, _now())
            self._step()

    def hold(self, holder: Holder, engine_id: str) -> None:
        """A lease of an owner before is the holder's: true as soon as its replica says so too."""
        held = self._held.get(engine_id)
        if held is not None:
            held.holder = holder
            self._orphans.discard(engine_id)
        elif engine_id not in self._finished:
            self._declared[engine_id] = holder

    def first_token(self, engine_id: str) -> None:
        """The first byte of the answer came."""
        held = self._held.get(engine_id)
        if held is None:
            return
        now = _now()
        if not held.answered:
            held.answered = True
            self._latencies.first_token(now - held.lease.request.arrived_s, now)
        self.scheduler.first_token(held.lease, now)
        self._step()

    def release(self, engine_id: str, ending: Ending) -> None:
        """Ends a lease; one that ended before (its replica was lost) is left alone."""
        self._declared.pop(engine_id, None)
        held = self._held.pop(engine_id, None)
        if held is None:
            return
        self._orphans.discard(engine_id)
        self.scheduler.release(held.lease, ending, None, _now())
        if engine_id not in self._finished:
            _remember(self._ended, engine_id, held.lease)
        self._step()

    def refused(self, holder: Holder, lease: Lease, state: ReplicaState | None) -> None:
        """The replica took no work (it drains; None: no connection): the request waits again, before all others of its lane."""
        self.replica_state(lease.replica_id, state)
        self.again(holder, lease)

    def again(self, holder: Holder, lease: Lease) -> None:
        """A lease was of no use, and that is not its replica's fault: the request waits again."""
        self._declared.pop(lease.engine_id, None)
        held = self._held.pop(lease.engine_id, None)
        if held is not None and self.scheduler.release(held.lease, Ending.REFUSED, None, _now()):
            self._waiting[lease.request.request_id] = holder
            self._step()
        else:  # the replica was lost before, or the lease was another owner's: the request is nowhere, so it waits anew
            self.submit(holder, replace(lease.request, attempts=lease.attempt), admitted=True)

    def finished(self, message: Finished) -> None:
        """An engine's account of a request, which may come before or after its lease ends."""
        engine_id = message.request_id
        _remember(self._finished, engine_id, message.sequences > 0)
        held = self._held.get(engine_id)
        if message.sequences:
            self._latencies.ended(message.decode_s, message.output_tokens / message.sequences, _now())
        lease = held.lease if held is not None else self._ended.pop(engine_id, None)
        if lease is not None:
            self.scheduler.learn(lease, _usage(message), _now())
        if held is not None and held.holder is None:
            self.release(engine_id, Ending.FINISHED if message.sequences else Ending.FAILED)

    def join(self, holder: Holder) -> None:
        """A holder wants to be told when this owner decides nothing more."""
        self._joined.add(holder)

    def left(self, holder: Holder) -> None:
        """A holder is gone: what waits for it is given up, what runs for it stands until its replica says that it ended."""
        self._joined.discard(holder)
        for request_id in [key for key, value in self._waiting.items() if value is holder]:
            del self._waiting[request_id]
            self.scheduler.cancel(request_id, _now())
        for engine_id, held in self._held.items():
            if held.holder is holder:
                held.holder = None
                self._orphans.add(engine_id)
        self._declared = {key: value for key, value in self._declared.items() if value is not holder}
        self._step()

    @property
    def replicas_of_orphans(self) -> set[str]:
        """The replicas on which leases run that nobody holds: they are asked now and then."""
        return {self._held[engine_id].lease.replica_id for engine_id in self._orphans}

    def replica_up(self, facts: ReplicaFacts, running: Iterable[Running] = ()) -> None:
        """A replica is ready (or ready again), knows this owner's epoch, and runs what it says."""
        now = _now()
        self.scheduler.replica_up(facts.replica_id, self._capacity(facts), now)
        told = {one.lease.engine_id: one for one in running}
        for engine_id, one in told.items():
            if engine_id not in self._held and engine_id not in self._ended and engine_id not in self._finished:
                self._adopt(engine_id, one, now)
        for engine_id in [key for key in self._orphans if key not in told and self._held[key].lease.replica_id == facts.replica_id]:
            self.reconciled += 1
            self.release(engine_id, Ending.FAILED)
        self._step()

    def replica_state(self, replica_id: str, state: ReplicaState | None) -> None:
        """A known replica drains, is unhealthy, or is silent (None)."""
        self.replicas.set_aside(replica_id)
        if state is ReplicaState.DRAINING:
            self.scheduler.replica_draining(replica_id, _now())
        else:
            self.scheduler.replica_suspect(replica_id, _now())
        self._step()

    def replica_lost(self, replica_id: str) -> None:
        """A replica's process is gone: its leases end as failed, but for those whose whole answer it has sent. Who streams from it sees that by
        itself."""
        whole = [key for key, held in self._held.items() if held.lease.replica_id == replica_id and self._finished.get(key)]
        for engine_id in whole:
            self.release(engine_id, Ending.FINISHED)
        for lease in self.scheduler.replica_lost(replica_id, _now()):
            self._held.pop(lease.engine_id, None)
            self._orphans.discard(lease.engine_id)
        self._step()

    def cordon(self, replica_ids: frozenset[str]) -> None:
        """Operators keep new work off these replicas, and off no others."""
        before, now = frozenset(self.scheduler.fleet.cordoned), _now()
        for replica_id in sorted(replica_ids - before):
            self.scheduler.replica_cordoned(replica_id, now)
        for replica_id in sorted(before - replica_ids):
            self.scheduler.replica_uncordoned(replica_id, now)
        if before != replica_ids:
            self._step()

    def expect_replica(self, ready_at_s: float | None) -> None:
        """The next replica should be ready then (on this process's clock); None: nobody knows of one that starts."""
        self.scheduler.expect_replica(ready_at_s, _now())
        self._step()

    def snapshot(self, etas: bool = True) -> Snapshot:
        """The scheduler's books now; `etas`: with what would be promised."""
        return self.scheduler.snapshot(_now(), etas)

    def latencies(self, span_s: float) -> Latencies:
        """Of all gateways' requests, over the last `span_s` seconds."""
        return self._latencies.over(span_s, _now())

    def close(self) -> None:
        """Decides nothing more: another gateway owns the model."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for holder in tuple(self._joined):
            holder.moved()
        if self._log is not None:
            self._log.close()

    def _adopt(self, engine_id: str, running: Running, now: float) -> None:
        lease = self.scheduler.adopt(running.lease, running.started, now)
        if lease is None:
            return
        self.reconciled += 1
        holder = self._declared.pop(engine_id, None)
        self._held[engine_id] = _Held(lease, holder, answered=True)
        if holder is None:
            self._orphans.add(engine_id)

    def _capacity(self, facts: ReplicaFacts) -> Capacity:
        return self._binding.capacity(facts.max_num_seqs, facts.kv_tokens, facts.max_num_batched_tokens)

    def _step(self) -> None:
        if self._closed:
            return
        step = self.scheduler.step(_now())
        for request in step.expired:
            self._waiting.pop(request.request_id).expired(request.request_id)
        for gone in step.turned_away:
            self._waiting.pop(gone.request.request_id).admitted(gone.request.request_id, gone.admission)
        for placement in step.placements:
            holder = self._waiting.pop(placement.request.request_id)
            self._held[placement.lease.engine_id] = _Held(placement.lease, holder)
            holder.placed(placement, self.replicas.url_of(placement.replica_id) or "")
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
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wakeup - _now()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._step()


def _now() -> float:
    """The time; whole nanoseconds, so that a log of it gives the same numbers back."""
    return time.monotonic_ns() / 1e9


def _remember(kept: OrderedDict[str, _T], key: str, value: _T) -> None:
    kept[key] = value
    if len(kept) > _REMEMBERED:
        kept.popitem(last=False)


def _usage(done: Finished) -> Usage:
    return Usage(done.prompt_tokens, done.cached_tokens, done.output_tokens, done.preemptions, done.sequences, done.prefill_s, done.decode_s)
