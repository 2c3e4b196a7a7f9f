"""The scheduler behind the recorded words: plain JSON in, plain JSON out.

This module alone knows the names of the scheduler's classes, methods and fields. A rename changes it and nothing else
here; the recording stays.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from deployments.scheduling import (
    Admission,
    Binding,
    Ending,
    LanePolicy,
    Lease,
    Order,
    Placement,
    Request,
    Scheduler,
    SchedulingPolicy,
    Snapshot,
    Step,
    Suspicion,
    TenantPolicy,
    Usage,
)

Plain = dict[str, Any]
BOOKED = ("placed_s", "attempt", "prefill_tokens", "kv_tokens", "output_tokens", "home")
"""Of a lease."""
OF_A_FLOW = ("lane", "traffic_class", "arrived", "work", "prompt_tokens", "met", "missed", "slo_s")


def _fields(one: object, *names: str) -> Plain:
    """What has the same name in the recording."""
    return {name: getattr(one, name) for name in names}


_OLD_WORDS = {"unresponsive": "suspect"}


def _recorded(word: str) -> str:
    """The word that the recording has for a value of today."""
    return _OLD_WORDS.get(word, word)


class RecordedScheduler:
    """One scheduler from an empty state. Leases are named by their number; the adapter keeps the objects, of ended ones
    too."""

    def __init__(self, policy: Plain) -> None:
        self._scheduler = Scheduler(policy_from(policy))
        self._leases: dict[int, Lease] = {}

    def has(self, named: object) -> bool:
        """Whether it has given the lease that an input names, if it names one."""
        return not isinstance(named, int) or named in self._leases

    def apply(self, name: str, given: Plain, now: float) -> Any:
        """Feeds one input and returns its decision; None where an input decides nothing."""
        scheduler = self._scheduler
        match name:
            case "step":
                return self._step(scheduler.step(now))
            case "submit":
                return plain_admission(scheduler.submit(request_from(given["request"]), now, given["admitted"]))
            case "first_token":
                return scheduler.first_token(self._leases[given["lease"]], now)
            case "release":
                usage = None if given["usage"] is None else Usage(**given["usage"])
                return scheduler.release(self._leases[given["lease"]], Ending(given["ending"]), usage, now)
            case "learn":
                return scheduler.learn(self._leases[given["lease"]], Usage(**given["usage"]), now)
            case "cancel":
                return scheduler.cancel(given["request"], now)
            case "adopt":
                adopted = scheduler.adopt(_reported_lease(given["lease"]), given["started"], now)
                return None if adopted is None else self._keep(adopted)
            case "died_under":
                return scheduler.died(self._leases[given["lease"]], now)
            case "recall_suspect":
                return scheduler.recall(
                    Suspicion(given["key"], given["deaths"], given["answered"], given["since_s"]), now
                )
            case "snapshot":
                return _snapshot(scheduler.snapshot(now, given["etas"]))
            case "reload":
                return scheduler.configure(policy_from(given["policy"]), now)
            case _:
                return self._of_replica(name, given, now)

    def _of_replica(self, name: str, given: Plain, now: float) -> Any:
        scheduler = self._scheduler
        match name:
            case "replica_ready":
                engine = given["engine"]
                binding = Binding(given["binding"]["ahead"], given["binding"]["prefill_steps"])
                capacity = binding.capacity(engine["sequences"], engine["kv_tokens"], engine["step_tokens"])
                return scheduler.replica_up(given["replica"], capacity, now)
            case "replica_silent":
                return scheduler.replica_unresponsive(given["replica"], now)
            case "replica_draining":
                return scheduler.replica_draining(given["replica"], now)
            case "replica_cordoned":
                return scheduler.replica_cordoned(given["replica"], now)
            case "replica_uncordoned":
                return scheduler.replica_uncordoned(given["replica"], now)
            case "replica_gone":
                return [lease.lease_id for lease in scheduler.replica_lost(given["replica"], now)]
            case "replica_expected":
                return scheduler.expect_replica(given["ready_at_s"], now)
        raise ValueError(f"{name!r} is no input of the scheduler")

    def _keep(self, lease: Lease) -> Plain:
        self._leases[lease.lease_id] = lease
        named = {"lease": lease.lease_id, "request": lease.request.request_id, "replica": lease.replica_id}
        return named | _fields(lease, *BOOKED)

    def _step(self, step: Step) -> Plain:
        decided: Plain = {"wake_s": self._scheduler.next_wakeup()}
        if step.placements:
            decided["placed"] = [self._placement(one) for one in step.placements]
        if step.expired:
            decided["expired"] = [request.request_id for request in step.expired]
        if step.turned_away:
            decided["turned_away"] = [
                [gone.request.request_id, plain_admission(gone.admission)] for gone in step.turned_away
            ]
        if step.suspicions:
            decided["suspects"] = [_suspect(one) for one in step.suspicions]
        return decided

    def _placement(self, placed: Placement) -> Plain:
        return {
            **self._keep(placed.lease),
            "reason": placed.reason.value,
            "lane": placed.lane,
            "promoted": placed.promoted,
            "waited_s": placed.waited_s,
            "eta_s": _pair(placed.eta_s),
        }


def decided(entries: Iterable[Plain]) -> Iterator[Plain]:
    """The same inputs with the decisions of this version. Inputs that name a lease it has not given are left out."""
    scheduler: RecordedScheduler | None = None
    for entry in entries:
        if "begins" in entry:
            scheduler = RecordedScheduler(entry["policy"])
            yield entry
            continue
        assert scheduler is not None
        if scheduler.has(entry["with"].get("lease")):
            yield entry | {"decision": scheduler.apply(entry["input"], entry["with"], entry["at"])}


def policy_from(given: Plain) -> SchedulingPolicy:
    return SchedulingPolicy(
        lanes=tuple(
            LanePolicy(lane["name"], lane["up_to_tokens"], lane["weight"], lane["max_wait_s"], lane["cap_s"])
            for lane in given["lanes"]
        ),
        order=Order(given["order"]),
        promoted_share=given["promoted_share"],
        decode_weight=given["decode_weight"],
        max_waiting=given["max_waiting"],
        stickiness_ms=given["stickiness_ms"],
        tenants={
            tenant["name"]: TenantPolicy(
                tenant["weight"], tenant["requests_per_minute"], tenant["tokens_per_minute"], tenant["max_concurrency"]
            )
            for tenant in given["tenants"]
        },
    )


def request_from(given: Plain) -> Request:
    named = {"request_id": given["id"], "traffic_class": given["class"], "prefix": tuple(given["prefix"])}
    return Request(**{name: value for name, value in given.items() if name not in ("id", "class")} | named)


def _reported_lease(given: Plain) -> Lease:
    return Lease(0, request_from(given["request"]), given["replica"], **{name: given[name] for name in BOOKED})


def plain_admission(admission: Admission) -> Plain:
    return {
        "kind": admission.kind.value,
        "lane": admission.lane,
        "cause": None if admission.cause is None else admission.cause.value,
        "eta_s": _pair(admission.eta_s),
        "backlog_s": admission.backlog_s,
        "retry_after_s": admission.retry_after_s,
    }


def _suspect(suspicion: Suspicion) -> list[Any]:
    return [suspicion.key, suspicion.deaths, suspicion.answered, suspicion.since_s]


def _pair(times: tuple[float, float] | None) -> list[Any] | None:
    """A p95 may be infinite, which JSON does not have."""
    return None if times is None else ["inf" if time == math.inf else time for time in times]


def _snapshot(snapshot: Snapshot) -> Plain:
    return {
        "lanes": [
            _fields(lane, "name", "waiting", "work_tokens", "work_s", "oldest_wait_s", "head_waits_for", "covered")
            | {"eta_s": _pair(lane.eta_s), "promised": lane.estimated, "censored": lane.censored}
            for lane in snapshot.lanes
        ],
        "replicas": [
            _fields(replica, "leases", "sequences", "kv_tokens", "prefill_tokens", "prefill_tokens_per_s", "held_by")
            | _fields(replica, "max_sequences", "max_kv_tokens", "tpot_s")
            | {"replica": replica.replica_id, "status": _recorded(str(replica.status))}
            for replica in snapshot.replicas
        ],
        "flows": [  # of lanes that are there: it was recorded when those of lanes that are gone were left out
            [*_fields(flow, *OF_A_FLOW).values()]
            for flow in snapshot.flows
            if flow.lane in {lane.name for lane in snapshot.lanes}
        ],
        **_fields(snapshot, "submitted", "placed", "adopted", "promoted", "tokens_per_s", "output_error", "other_lane"),
        **_fields(snapshot, "prefix_trust", "finished", "finished_work", "output_tokens", "counted", "bans", "aside"),
        "endings": sorted([ending, count] for ending, count in snapshot.endings.items()),
        "rejections": sorted([lane, cause, count] for (lane, cause), count in snapshot.rejections.items()),
        "suspects": [_suspect(one) for one in snapshot.suspects],
    }
