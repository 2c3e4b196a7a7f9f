"""A scheduler that writes down every input in its order, with every decision, so that a run can be replayed and checked
(`replay.py`).

A log is JSON lines. The first is a header: schema version, hash of this room's code, the time, how many inputs there
were before it, and the whole state of the scheduler (what it had learned included), so that each file of a log replays
alone. Then one line an input: `[ns, method, arguments, decision]`, the time in integer nanoseconds of the shell's
monotonic clock. Reading a snapshot or the next wake-up changes nothing, so it is no input.

A log that cannot be written costs its lines and nothing else: what the scheduler decided stands and reaches the caller.
The next header makes up for what is missing, and tells it by its count of inputs.
"""

import base64
import dataclasses
import hashlib
import json
import pickle
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from cluster.spec import DEFAULT_GROUP
from deployments.scheduling.decisions import Step
from deployments.scheduling.policy import SchedulingPolicy
from deployments.scheduling.request import Lease
from deployments.scheduling.scheduler import Scheduler

SCHEMA_VERSION = 6


_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def _input(
    method: Callable[Concatenate[Scheduler, _Given], _Result],
    recorded: Callable[_Given, tuple[float, tuple[object, ...]]],
) -> Callable[Concatenate["RecordingScheduler", _Given], _Result]:
    """The method, recorded. `recorded`: the time of a call, and its arguments as the log has them."""

    name = method.__name__

    def call(self: "RecordingScheduler", /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        core: Callable[Concatenate[Scheduler, _Given], _Result] = getattr(Scheduler, name)
        if self._nested:  # the scheduler calls itself, which is no input
            return core(self, *args, **kwargs)
        now, arguments = recorded(*args, **kwargs)
        return self._record(now, name, arguments, lambda: core(self, *args, **kwargs))

    return call


class RecordingScheduler(Scheduler):
    """`write` gets each line, without its end. `due` is asked before each input whether a header is wanted before it.

    `lost` hears of an input whose line could not be made or written: the state and the log do not agree from there on,
    until the next header.
    """

    def __init__(
        self,
        policy: SchedulingPolicy,
        write: Callable[[str], None],
        due: Callable[[], bool] = lambda: False,
        lost: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        super().__init__(policy)
        self._write = write
        self._due = due
        self._lost = lost
        self._nested = False
        self._inputs = 0

    def begin(self, now: float) -> None:
        """Writes a header: what follows replays from here."""
        state = base64.b64encode(pickle.dumps(self, protocol=5)).decode()
        header = {
            "schema": SCHEMA_VERSION,
            "code": code_hash(),
            "ns": nanoseconds(now),
            "inputs": self._inputs,
            "state": state,
        }
        self._write(json.dumps(header, separators=(",", ":")))

    configure = _input(Scheduler.configure, lambda policy, now: (now, (policy,)))
    submit = _input(Scheduler.submit, lambda request, now, admitted=False: (now, (request, admitted)))
    adopt = _input(Scheduler.adopt, lambda reported, started, now: (now, (reported, started)))
    cancel = _input(Scheduler.cancel, lambda request_id, now: (now, (request_id,)))
    withdraw = _input(Scheduler.withdraw, lambda request_id, now: (now, (request_id,)))
    put_back = _input(Scheduler.put_back, lambda request_id, now: (now, (request_id,)))
    first_token_away = _input(Scheduler.first_token_away, lambda request_id, now: (now, (request_id,)))
    first_token = _input(Scheduler.first_token, lambda lease, now: (now, (lease.lease_id,)))
    died = _input(Scheduler.died, lambda lease, now: (now, (lease.lease_id,)))
    recall = _input(Scheduler.recall, lambda reported, now: (now, tuple(reported)))
    used_elsewhere = _input(Scheduler.used_elsewhere, lambda uses, now: (now, (uses,)))
    release = _input(Scheduler.release, lambda lease, ending, usage, now: (now, (lease.lease_id, ending, usage)))
    learn = _input(Scheduler.learn, lambda lease, usage, now: (now, (lease, usage)))
    replica_up = _input(Scheduler.replica_up, lambda replica_id, capacity, now: (now, (replica_id, capacity)))
    replica_unresponsive = _input(Scheduler.replica_unresponsive, lambda replica_id, now: (now, (replica_id,)))
    replica_draining = _input(Scheduler.replica_draining, lambda replica_id, now: (now, (replica_id,)))
    replica_cordoned = _input(Scheduler.replica_cordoned, lambda replica_id, now: (now, (replica_id,)))
    replica_uncordoned = _input(Scheduler.replica_uncordoned, lambda replica_id, now: (now, (replica_id,)))
    replica_lost = _input(Scheduler.replica_lost, lambda replica_id, now: (now, (replica_id,)))
    expect_replica = _input(
        Scheduler.expect_replica, lambda ready_at_s, now, group=DEFAULT_GROUP: (now, (ready_at_s, group))
    )
    step = _input(Scheduler.step, lambda now: (now, ()))

    def _record(self, now: float, method: str, arguments: tuple[object, ...], call: Callable[[], _Result]) -> _Result:
        self._try(lambda: self.begin(now) if self._due() else None)
        self._nested = True
        try:
            result = call()
        except Exception as error:  # the caller gets it; who knows what has changed before
            self._lost(error)
            raise
        finally:
            self._nested = False
            self._inputs += 1
        self._try(
            lambda: self._write(
                json.dumps(
                    [nanoseconds(now), method, plain(arguments), decision(method, result)], separators=(",", ":")
                )
            )
        )
        return result

    def _try(self, note: Callable[[], None]) -> None:
        """Writes something down. A log takes nothing with it: whatever goes wrong is the log's own affair."""
        try:
            note()
        except Exception as error:
            self._lost(error)

    def __reduce__(self) -> tuple[Any, ...]:
        """Its state is that of a plain scheduler: where it writes to is no part of it."""
        own = ("_write", "_due", "_lost", "_nested", "_inputs")
        return _restore, ({name: value for name, value in self.__dict__.items() if name not in own},)


def _restore(state: dict[str, Any]) -> Scheduler:
    scheduler = Scheduler.__new__(Scheduler)
    scheduler.__dict__.update(state)
    return scheduler


def decision(method: str, result: object) -> object:
    """What of a call's result is a decision, in a form that can be compared after JSON."""
    if isinstance(result, Step):
        placed = [
            [
                p.request.request_id,
                p.lease.lease_id,
                p.replica_id,
                p.lease.attempt,
                p.reason.value,
                p.lane,
                p.promoted,
                list(p.eta_s or ()),
            ]
            for p in result.placements
        ]
        away = [
            [gone.request.request_id, gone.admission.lane, gone.admission.retry_after_s] for gone in result.turned_away
        ]
        reported = {"suspicions": [list(one) for one in result.suspicions]} if result.suspicions else {}
        return {
            "placed": placed,
            "expired": [request.request_id for request in result.expired],
            "turned_away": away,
            **reported,
        }
    if isinstance(result, Lease):
        return result.lease_id
    if method == "replica_lost" and isinstance(result, tuple):
        return [lease.lease_id for lease in result]
    return plain(result)


def plain(value: object) -> Any:
    """Frozen dataclasses, enums and tuples as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def nanoseconds(now: float) -> int:
    """The time as an integer; `ns / 1e9` gives the same float back where it came from such a division."""
    return round(now * 1e9)


@cache  # of what this process runs, even if the files change later
def code_hash() -> str:
    """A hash of the code in this room: decisions are comparable only between equal ones."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
