"""Replays a recorded scheduler (`recorder.py`): feeds the recorded inputs to the core and compares each decision with
the recorded one.

A header holds pickled state; it is read by an unpickler that makes nothing but this room's own classes and plain
containers (`deployments/restricted_pickle.py`).
"""

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from deployments.restricted_pickle import load_state
from deployments.scheduling.itl_cap import ItlTarget
from deployments.scheduling.policy import LanePolicy, Order, SchedulingPolicy, TenantPolicy, TenantUse
from deployments.scheduling.reasons import Ending
from deployments.scheduling.recorder import SCHEMA_VERSION, code_hash, decision
from deployments.scheduling.replica import Capacity
from deployments.scheduling.request import Lease, Request, Suspicion, Usage
from deployments.scheduling.scheduler import Scheduler


class ReplayError(ValueError):
    """A log that cannot be replayed; the message says why."""


@dataclass(frozen=True, slots=True)
class SchedulerDifference:
    """The first decision that was not the recorded one."""

    line: int
    method: str
    recorded: object
    replayed: object


@dataclass(frozen=True, slots=True)
class SchedulerReplay:
    """`inputs` fed, of which `placed` placements; `difference`: None where every decision was the recorded one.

    `gaps`: so often inputs are missing, since the log could not be written; the replay goes on from the header after
    them.
    """

    inputs: int
    placed: int
    difference: SchedulerDifference | None
    gaps: int = 0


def replay(lines: Iterable[str], any_code: bool = False) -> SchedulerReplay:
    """Replays a log (whole files, in order; a header in the middle must agree with the state reached, or tell of a
    gap). Raises ReplayError.

    `any_code`: also where the log was recorded by other code, to see what a change decides differently.
    """
    scheduler: Scheduler | None = None
    inputs = placed = gaps = recorded_inputs = 0
    for number, entry in _entries(lines):
        if isinstance(entry, dict):
            before = _inputs_before(entry, number)
            gaps += scheduler is not None and before != recorded_inputs
            if scheduler is None or before != recorded_inputs:
                scheduler, recorded_inputs = _restored(entry, number, any_code), before
            continue
        if scheduler is None:
            raise ReplayError(f"line {number}: a log begins with a header")
        ns, method, arguments, recorded = entry
        replayed = json.loads(json.dumps(decision(method, _call(scheduler, method, arguments, ns / 1e9))))
        inputs += 1
        recorded_inputs += 1
        placed += len(replayed["placed"]) if method == "step" else 0
        if replayed != recorded:
            return SchedulerReplay(inputs, placed, SchedulerDifference(number, method, recorded, replayed), gaps)
    return SchedulerReplay(inputs, placed, None, gaps)


def _entries(lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """The lines, read, with their numbers. Parts of lines before a header, or at the end, are passed over: their writer
    was cut short."""
    torn: ReplayError | None = None
    for number, line in enumerate(lines, 1):
        try:
            entry = _parsed(line, number)
        except ReplayError as error:
            if number == 1:
                raise
            torn = torn or error
            continue
        if torn is not None and not isinstance(entry, dict):
            raise torn
        torn = None
        yield number, entry


def _parsed(line: str, number: int) -> Any:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ReplayError(f"line {number}: is no JSON: {error}") from error
    if not isinstance(entry, dict) and not (isinstance(entry, list) and len(entry) == 4):
        raise ReplayError(f"line {number}: {line[:80]!r}: neither a header nor an input")
    return entry


def _inputs_before(header: dict[str, Any], number: int) -> int:
    count = header.get("inputs", 0)
    if type(count) is not int or count < 0:
        raise ReplayError(f"line {number}: inputs = {count!r}; allowed: a whole number, at least 0")
    return count


def _restored(header: dict[str, Any], number: int, any_code: bool) -> Scheduler:
    if header.get("schema") != SCHEMA_VERSION:
        raise ReplayError(f"line {number}: schema = {header.get('schema')!r}; allowed: {SCHEMA_VERSION}")
    if header.get("code") != code_hash() and not any_code:
        raise ReplayError(
            f"line {number}: recorded by code {header.get('code')}, this is {code_hash()}: decisions may differ for "
            "that reason alone"
        )
    try:
        state = load_state(
            base64.b64decode(header["state"]),
            ("deployments.scheduling",),
            (("deployments.scheduling.recorder", "_restore"),),
        )
    except (KeyError, ValueError) as error:
        raise ReplayError(f"line {number}: its state cannot be read: {error}") from error
    if not isinstance(state, Scheduler):
        raise ReplayError(f"line {number}: its state is no scheduler")
    return state


def _call(scheduler: Scheduler, method: str, arguments: list[Any], now: float) -> object:
    """Calls the method with its arguments as they were; a lease is named by its id, except where it may have ended."""
    given: tuple[Any, ...]
    match method, arguments:
        case "configure", [policy]:
            given = (_policy(policy), now)
        case "submit", [request, admitted]:
            given = (_request(request), now, admitted)
        case "adopt", [reported, started]:
            given = (_lease(reported), started, now)
        case (("first_token" | "died" | "release"), [lease_id, *rest]):
            held = scheduler.leases.get(lease_id)
            if held is None:
                return False if method == "release" else None
            ending, usage = (Ending(rest[0]), rest[1]) if rest else (None, None)
            given = (
                (held[0], now) if ending is None else (held[0], ending, None if usage is None else Usage(**usage), now)
            )
        case "recall", [str(), int(), bool(), int() | float()]:
            given = (Suspicion(*arguments), now)
        case "used_elsewhere", [uses]:
            given = (tuple(TenantUse(*use) for use in uses), now)
        case "learn", [lease, usage]:
            given = (_lease(lease), Usage(**usage), now)
        case "replica_up", [replica_id, capacity]:
            given = (replica_id, Capacity(**capacity), now)
        case (
            (
                "cancel"
                | "withdraw"
                | "put_back"
                | "first_token_away"
                | "replica_unresponsive"
                | "replica_draining"
                | "replica_cordoned"
                | "replica_uncordoned"
                | "replica_lost"
            ),
            [name],
        ):
            given = (name, now)
        case "expect_replica", [ready_at_s, str(group)]:
            given = (ready_at_s, now, group)
        case "step", []:
            given = (now,)
        case _:
            raise ReplayError(f"{method!r} with {len(arguments)} arguments is no input of the scheduler")
    result: object = getattr(scheduler, method)(*given)
    return result


def _request(fields: dict[str, Any]) -> Request:
    return Request(**{**fields, "prefix": tuple(fields["prefix"])})


def _lease(fields: dict[str, Any]) -> Lease:
    return Lease(**{**fields, "request": _request(fields["request"])})


def _policy(fields: dict[str, Any]) -> SchedulingPolicy:
    lanes = tuple(LanePolicy(**{**lane, "groups": tuple(lane["groups"])}) for lane in fields["lanes"])
    tenants = {name: TenantPolicy(**tenant) for name, tenant in fields["tenants"].items()}
    itl = {name: ItlTarget(**target) for name, target in fields["itl"].items()}
    return SchedulingPolicy(
        **{**fields, "lanes": lanes, "order": Order(fields["order"]), "tenants": tenants, "itl": itl}
    )
