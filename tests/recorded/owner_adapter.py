"""The owner of a model and the gateways that hold its requests, behind the recorded words: plain JSON in, plain JSON
out.

This module alone knows the names of the ownership layer (`scheduler_adapter.py` knows the scheduler's). No event loop
runs: time is what an input says, and the owner's timer rings when an input says so.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest import mock

from deployments.ownership import lane_owner
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.takeover import Booking, Running
from deployments.protocol import Finished, ReplicaFacts, ReplicaState, Usage
from deployments.scheduling import Admission, Binding, Ending, Lease, Placement, Suspicion
from tests.recorded.scheduler_adapter import Plain, plain_admission, policy_from, request_from


class _Time:
    """Stands in for the modules `time` and `asyncio` in `lane_owner.py`, for the event loop and its timer's handle."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ring: Callable[[], None] | None = None

    def monotonic_ns(self) -> int:
        return round(self.now * 1e9)

    def get_running_loop(self) -> "_Time":
        return self

    def call_later(self, in_s: float, ring: Callable[[], None]) -> "_Time":
        self.ring = ring
        return self

    def cancel(self) -> None:
        self.ring = None


class _Gateway:
    """One channel of a gateway to the owner; keeps what it is told."""

    def __init__(self, name: str, reported: list[Any], leases: dict[str, Lease]) -> None:
        self._name = name
        self._reported = reported
        self._leases = leases

    def admitted(self, request_id: str, admission: Admission) -> None:
        self._reported.append([self._name, "admission", request_id, plain_admission(admission)])

    def placed(self, placement: Placement, url: str) -> None:
        lease = placement.lease
        self._leases[lease.attempt_id] = lease
        same = ("attempt", "prefill_tokens", "kv_tokens", "output_tokens", "home")
        placed = {name: getattr(lease, name) for name in same} | {
            "engine_id": lease.attempt_id,
            "replica": placement.replica_id,
            "reason": placement.reason.value,
            "lane": placement.lane,
            "waited_s": placement.waited_s,
            "url": url,
        }
        self._reported.append([self._name, "placed", placement.request.request_id, placed])

    def expired(self, request_id: str) -> None:
        self._reported.append([self._name, "expired", request_id])

    def moved(self) -> None:
        self._reported.append([self._name, "owner_gone"])

    def suspected(self, reported: tuple[Suspicion, ...]) -> None:
        self._reported.append(
            [self._name, "suspects", [[one.key, one.deaths, one.answered, one.since_s] for one in reported]]
        )


class RecordedOwner:
    """One owner after another; what gateways know of leases outlives them."""

    def __init__(self) -> None:
        self._time = _Time()
        self._reported: list[Any] = []
        self._leases: dict[str, Lease] = {}
        self._gateways: dict[str, _Gateway] = {}
        self._owner: LaneOwner

    def apply(self, name: str, given: Plain, now: float) -> list[Any]:
        """Feeds one input; returns what the gateways are told, in its order."""
        self._time.now = now
        self._reported.clear()
        with mock.patch.multiple(lane_owner, time=self._time, asyncio=self._time):
            self._apply(name, given, now)
        return list(self._reported)

    def _apply(self, name: str, given: Plain, now: float) -> None:
        match name:
            case "begin":
                self._time.cancel()
                binding = Binding(given["binding"]["ahead"], given["binding"]["prefill_steps"])
                self._owner = LaneOwner(policy_from(given["policy"]), binding, given["epoch"])
            case "close":
                self._owner.close()
            case "ring":
                ring = self._time.ring
                self._time.cancel()
                if ring is not None:
                    ring()
            case "reload":
                self._owner.configure(
                    policy_from(given["policy"]), Binding(given["binding"]["ahead"], given["binding"]["prefill_steps"])
                )
            case "submit":
                self._owner.submit(self._gateway(given["gateway"]), request_from(given["request"]), given["admitted"])
            case "cancel":
                self._owner.cancel(given["request"])
            case "join":
                self._owner.join(self._gateway(given["gateway"]), given["gateway"].partition("/")[0], given["channel"])
            case "left":
                self._owner.left(self._gateway(given["gateway"]))
            case "hold":
                self._owner.hold(self._gateway(given["gateway"]), given["engine_id"])
            case "cordon":
                self._owner.cordon(frozenset(given["replicas"]))
            case "expect":
                self._owner.expect_replica(given["ready_at_s"])
            case _:
                self._of_lease_or_replica(name, given, now)

    def _of_lease_or_replica(self, name: str, given: Plain, now: float) -> None:
        owner = self._owner
        match name:
            case "first_token":
                owner.first_token(given["engine_id"])
            case "died_under":
                owner.died(given["engine_id"])
            case "release":
                owner.release(given["engine_id"], Ending(given["ending"]))
            case "refused":
                state = None if given["state"] is None else ReplicaState(given["state"])
                owner.refused(self._gateway(given["gateway"]), self._leases[given["engine_id"]], state)
            case "again":
                lease = self._leases[given["engine_id"]]
                owner.submit(self._gateway(given["gateway"]), replace(lease.request, attempts=lease.attempt), True)
            case "account":
                owner.finished(_finished(given))
            case "replica_ready":
                owner.replica_up(
                    _facts(given["replica"], given["seats"]),
                    [_running(one, given["replica"], now) for one in given["runs"]],
                )
            case "replica_state":
                owner.replica_state(given["replica"], None if given["state"] is None else ReplicaState(given["state"]))
            case "replica_gone":
                owner.replica_lost(given["replica"])
            case _:
                raise ValueError(f"{name!r} is no input of an owner")

    def _gateway(self, name: str) -> _Gateway:
        return self._gateways.setdefault(name, _Gateway(name, self._reported, self._leases))

    def books(self) -> list[Any]:
        """How many requests are in which state, and what the scheduler counted."""
        counts = self._owner.records.counts
        snapshot = self._owner.scheduler.snapshot(self._time.now, False)
        states = sorted([state.value, count] for state, count in counts.items() if count)
        endings = sorted([ending, count] for ending, count in snapshot.endings.items())
        return [states, snapshot.submitted, snapshot.placed, snapshot.adopted, endings, self._owner.reconciled]


def told(entries: Iterable[Plain]) -> Iterator[Plain]:
    """The same inputs with what this version tells the gateways. Inputs that name a lease it has not given are left
    out."""
    owner = RecordedOwner()
    for entry in entries:
        with suppress(KeyError):
            if "books" in entry:
                yield entry | {"books": owner.books()}
            else:
                yield entry | {"told": owner.apply(entry["input"], entry["with"], entry["at"])}


def _facts(name: str, seats: int) -> ReplicaFacts:
    return ReplicaFacts(name, "demo", f"http://{name}", 1, "n", "generate", 4_096, seats, 1_024, seats * 2_000)


def _running(given: Plain, replica: str, now: float) -> Running:
    same = ("attempt", "tenant", "prompt_tokens", "max_tokens", "sequences", "prefill_tokens", "kv_tokens")
    same += ("output_tokens", "home", "digest")
    booking = Booking(given["gateway"], given["request"], **{name: given[name] for name in same})
    return Running(booking.lease(replica, now), given["started"])


def _finished(given: Plain) -> Finished:
    prefill_s, decode_s = given["prefill_s"], given["decode_s"]
    usage = Usage(given["prompt_tokens"], 0, given["output_tokens"], 0, given["sequences"], prefill_s, decode_s, 0.0)
    return Finished(given["engine_id"], 200 if given["sequences"] else 499, usage, 0.1, 1.0)
