"""A scheduler that writes down every input in its order, with every decision, so that a run can be replayed and checked (`replay.py`).

A log is JSON lines. The first is a header: schema version, hash of this room's code, the time, how many inputs there were before it, and the whole
state of the scheduler (what it had learned included), so that each file of a log replays alone. Then one line an input: `[ns, method, arguments,
decision]`, the time in integer nanoseconds of the shell's monotonic clock. Reading a snapshot or the next wake-up changes nothing, so it is no input.

A log that cannot be written costs its lines and nothing else: what the scheduler decided stands and reaches the caller. The next header makes up for
what is missing, and tells it by its count of inputs.
"""

import base64
import dataclasses
import hashlib
import json
import pickle
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from deployments.scheduling.contract import Admission, Step
from deployments.scheduling.policy import Policy
from deployments.scheduling.reasons import Ending
from deployments.scheduling.replica import Capacity
from deployments.scheduling.request import Lease, Request, Usage
from deployments.scheduling.scheduler import Scheduler
from deployments.scheduling.suspects import Suspicion

SCHEMA_VERSION = 4


class RecordingScheduler(Scheduler):
    """`write` gets each line, without its end. `due` is asked before each input whether a header is wanted before it.

    `lost` hears of an input whose line could not be made or written: the state and the log do not agree from there on, until the next header.
    """

    def __init__(
        self,
        policy: Policy,
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
        header = {"schema": SCHEMA_VERSION, "code": code_hash(), "ns": nanoseconds(now), "inputs": self._inputs, "state": state}
        self._write(json.dumps(header, separators=(",", ":")))

    def configure(self, policy: Policy, now: float) -> None:
        self._record(now, "configure", (policy,), lambda: super(RecordingScheduler, self).configure(policy, now))

    def submit(self, request: Request, now: float, admitted: bool = False) -> Admission:
        admission: Admission = self._record(
            now, "submit", (request, admitted), lambda: super(RecordingScheduler, self).submit(request, now, admitted)
        )
        return admission

    def adopt(self, told: Lease, started: bool, now: float) -> Lease | None:
        lease: Lease | None = self._record(now, "adopt", (told, started), lambda: super(RecordingScheduler, self).adopt(told, started, now))
        return lease

    def cancel(self, request_id: str, now: float) -> bool:
        return bool(self._record(now, "cancel", (request_id,), lambda: super(RecordingScheduler, self).cancel(request_id, now)))

    def first_token(self, lease: Lease, now: float) -> None:
        self._record(now, "first_token", (lease.lease_id,), lambda: super(RecordingScheduler, self).first_token(lease, now))

    def died(self, lease: Lease, now: float) -> None:
        self._record(now, "died", (lease.lease_id,), lambda: super(RecordingScheduler, self).died(lease, now))

    def recall(self, told: Suspicion, now: float) -> None:
        self._record(now, "recall", tuple(told), lambda: super(RecordingScheduler, self).recall(told, now))

    def release(self, lease: Lease, ending: Ending, usage: Usage | None, now: float) -> bool:
        arguments = (lease.lease_id, ending, usage)
        return bool(self._record(now, "release", arguments, lambda: super(RecordingScheduler, self).release(lease, ending, usage, now)))

    def learn(self, lease: Lease, usage: Usage, now: float) -> None:
        self._record(now, "learn", (lease, usage), lambda: super(RecordingScheduler, self).learn(lease, usage, now))

    def replica_up(self, replica_id: str, capacity: Capacity, now: float) -> None:
        self._record(now, "replica_up", (replica_id, capacity), lambda: super(RecordingScheduler, self).replica_up(replica_id, capacity, now))

    def replica_suspect(self, replica_id: str, now: float) -> None:
        self._record(now, "replica_suspect", (replica_id,), lambda: super(RecordingScheduler, self).replica_suspect(replica_id, now))

    def replica_draining(self, replica_id: str, now: float) -> None:
        self._record(now, "replica_draining", (replica_id,), lambda: super(RecordingScheduler, self).replica_draining(replica_id, now))

    def replica_cordoned(self, replica_id: str, now: float) -> None:
        self._record(now, "replica_cordoned", (replica_id,), lambda: super(RecordingScheduler, self).replica_cordoned(replica_id, now))

    def replica_uncordoned(self, replica_id: str, now: float) -> None:
        self._record(now, "replica_uncordoned", (replica_id,), lambda: super(RecordingScheduler, self).replica_uncordoned(replica_id, now))

    def expect_replica(self, ready_at_s: float | None, now: float) -> None:
        self._record(now, "expect_replica", (ready_at_s,), lambda: super(RecordingScheduler, self).expect_replica(ready_at_s, now))

    def replica_lost(self, replica_id: str, now: float) -> tuple[Lease, ...]:
        lost: tuple[Lease, ...] = self._record(
            now, "replica_lost", (replica_id,), lambda: super(RecordingScheduler, self).replica_lost(replica_id, now)
        )
        return lost

    def step(self, now: float) -> Step:
        step: Step = self._record(now, "step", (), lambda: super(RecordingScheduler, self).step(now))
        return step

    def _record(self, now: float, method: str, arguments: tuple[object, ...], call: Callable[[], Any]) -> Any:
        if self._nested:  # the scheduler calls itself, which is no input
            return call()
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
        self._try(lambda: self._write(json.dumps([nanoseconds(now), method, plain(arguments), decision(method, result)], separators=(",", ":"))))
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
            [p.request.request_id, p.lease.lease_id, p.replica_id, p.lease.attempt, p.reason.value, p.lane, p.promoted, list(p.eta_s or ())]
            for p in result.placements
        ]
        away = [[gone.request.request_id, gone.admission.lane, gone.admission.retry_after_s] for gone in result.turned_away]
        told = {"suspicions": [list(one) for one in result.suspicions]} if result.suspicions else {}
        return {"placed": placed, "expired": [request.request_id for request in result.expired], "turned_away": away, **told}
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


def code_hash() -> str:
    """A hash of the code in this room: decisions are comparable only between equal ones."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
