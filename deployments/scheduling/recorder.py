"""A scheduler that writes down every input in its order, with every decision, so that a run can be replayed and checked
(`deployments/decisions.py`), and how it is replayed (`SCHEDULING`).

A time is one of the shell's monotonic clock. Reading a snapshot or the next wake-up changes nothing, so it is no input.

A log that cannot be written costs its entries and nothing else: what the scheduler decided stands and reaches the
caller. The next header makes up for what is missing, and tells it by its count of inputs.
"""

import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

from cluster.spec import DEFAULT_GROUP
from deployments.decisions import Decider, Entry, Header, Input, hash_of
from deployments.scheduling.answers import Step
from deployments.scheduling.policy import SchedulingPolicy
from deployments.scheduling.request import Lease
from deployments.scheduling.scheduler import Scheduler
from deployments.wire import WireError, decoder, encode

KIND = "scheduling"
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_INPUTS: set[str] = set()
_OF_A_LEASE = ("first_token", "died", "release")
"""Inputs that name a lease by its id: it stands, or they change nothing."""


def _input(
    method: Callable[Concatenate[Scheduler, _Given], _Result],
    recorded: Callable[_Given, tuple[float, tuple[object, ...]]],
) -> Callable[Concatenate["RecordingScheduler", _Given], _Result]:
    """The method, recorded. `recorded`: the time of a call, and its other arguments in their order."""

    name = method.__name__
    _INPUTS.add(name)

    def call(self: "RecordingScheduler", /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        core: Callable[Concatenate[Scheduler, _Given], _Result] = getattr(Scheduler, name)
        return self._record(core, recorded, *args, **kwargs)

    return call


class RecordingScheduler(Scheduler):
    """`write` gets each entry. `due` is asked before each input whether a header is wanted before it.

    `lost` hears of an input whose entry could not be made or written: the state and the log do not agree from there on,
    until the next header.
    """

    def __init__(
        self,
        policy: SchedulingPolicy,
        write: Callable[[Entry], None],
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
        self._write(Header(KIND, code_hash(), now, pickle.dumps(self, protocol=5), self._inputs))

    configure = _input(Scheduler.configure, lambda policy, now: (now, (policy,)))
    submit = _input(Scheduler.submit, lambda request, now, admitted=False: (now, (request, admitted)))
    adopt = _input(Scheduler.adopt, lambda reported, started, now: (now, (reported, started)))
    cancel = _input(Scheduler.cancel, lambda request_id, now: (now, (request_id,)))
    withdraw = _input(Scheduler.withdraw, lambda request_id, now: (now, (request_id,)))
    begin_away = _input(
        Scheduler.begin_away, lambda request, now, admitted, charged: (now, (request, admitted, charged))
    )
    put_back = _input(Scheduler.put_back, lambda request_id, now: (now, (request_id,)))
    first_token_away = _input(Scheduler.first_token_away, lambda request_id, now: (now, (request_id,)))
    died_away = _input(Scheduler.died_away, lambda request_id, now: (now, (request_id,)))
    first_token = _input(Scheduler.first_token, lambda lease, now: (now, (lease.lease_id,)))
    died = _input(Scheduler.died, lambda lease, now: (now, (lease.lease_id,)))
    recall = _input(Scheduler.recall, lambda reported, now: (now, (reported,)))
    used_elsewhere = _input(Scheduler.used_elsewhere, lambda uses, now: (now, (uses,)))
    release = _input(Scheduler.release, lambda lease, ending, usage, now: (now, (lease.lease_id, ending, usage)))
    learn = _input(Scheduler.learn, lambda lease, usage, now: (now, (lease, usage)))
    replica_up = _input(Scheduler.replica_up, lambda replica_id, capacity, now: (now, (replica_id, capacity)))
    replica_unresponsive = _input(Scheduler.replica_unresponsive, lambda replica_id, now: (now, (replica_id,)))
    replica_draining = _input(Scheduler.replica_draining, lambda replica_id, now: (now, (replica_id,)))
    order_ladder = _input(Scheduler.order_ladder, lambda order, now: (now, (order,)))
    replica_cordoned = _input(Scheduler.replica_cordoned, lambda replica_id, now: (now, (replica_id,)))
    replica_uncordoned = _input(Scheduler.replica_uncordoned, lambda replica_id, now: (now, (replica_id,)))
    replica_lost = _input(Scheduler.replica_lost, lambda replica_id, now: (now, (replica_id,)))
    expect_replica = _input(
        Scheduler.expect_replica, lambda ready_at_s, now, group=DEFAULT_GROUP: (now, (ready_at_s, group))
    )
    step = _input(Scheduler.step, lambda now: (now, ()))

    def _record(
        self,
        method: Callable[Concatenate[Scheduler, _Given], _Result],
        recorded: Callable[_Given, tuple[float, tuple[object, ...]]],
        /,
        *args: _Given.args,
        **kwargs: _Given.kwargs,
    ) -> _Result:
        if self._nested:  # the scheduler calls itself, which is no input
            return method(self, *args, **kwargs)
        now, arguments = recorded(*args, **kwargs)
        self._try(lambda: self.begin(now) if self._due() else None)
        self._nested = True
        try:
            result = method(self, *args, **kwargs)
        except Exception as error:  # the caller gets it; who knows what has changed before
            self._lost(error)
            raise
        finally:
            self._nested = False
            self._inputs += 1
        self._try(lambda: self._write(Input(now, method.__name__, encode(arguments), encode(decision(result)))))
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


def decision(result: object) -> object:
    """What of a call's result is a decision. A lease is told by its id: its request has been in the log before."""
    if isinstance(result, Step):
        placed = [
            (
                *(one.request.request_id, one.lease.lease_id, one.replica_id, one.lease.attempt),
                *(one.reason, one.lane, one.promoted, one.eta_s),
            )
            for one in result.placements
        ]
        away = [
            (gone.request.request_id, gone.admission.lane, gone.admission.retry_after_s) for gone in result.turned_away
        ]
        return {
            "placed": placed,
            "expired": [request.request_id for request in result.expired],
            "turned_away": away,
            **({"suspicions": result.suspicions} if result.suspicions else {}),
        }
    if isinstance(result, Lease):
        return result.lease_id
    if isinstance(result, tuple):
        return [lease.lease_id for lease in result]
    return result


@cache  # of what this process runs, even if the files change later
def code_hash() -> str:
    """A hash of the code in this room: decisions are comparable only between equal ones."""
    room = Path(__file__).parent
    return hash_of(room, room.glob("*.py"))


@cache
def _parameters(method: str) -> tuple[tuple[str, ...], Callable[[bytes], tuple[Any, ...]]]:
    """The names of an input's arguments, and what reads them, as the method declares them. Raises WireError."""
    if method not in _INPUTS:
        raise WireError(f"{method!r} is no input of the scheduler")
    hints = get_type_hints(getattr(Scheduler, method))
    kinds = {name: kind for name, kind in hints.items() if name not in ("now", "return")}
    if method in _OF_A_LEASE:
        kinds["lease"] = int
    given = tuple(kinds.values())
    return tuple(kinds), decoder(tuple[given])  # type: ignore[valid-type]


def _call(scheduler: Scheduler, entry: Input) -> object:
    names, read = _parameters(entry.method)
    given = dict(zip(names, read(entry.given), strict=True))
    if entry.method in _OF_A_LEASE:
        held = scheduler.leases.get(given["lease"])
        if held is None:
            return False if entry.method == "release" else None
        given["lease"] = held[0]
    return decision(getattr(scheduler, entry.method)(**given, now=entry.at_s))


SCHEDULING = Decider(
    kind=KIND,
    state=Scheduler,
    call=_call,
    counted=lambda decided: len(decided["placed"]) if isinstance(decided, dict) else 0,
    counts="placements",
    code=code_hash,
    rooms=lambda: ("deployments.scheduling", "deployments.ladder_stats", "cluster.spec.traffic"),
    makers=((__name__, _restore.__name__),),
)
