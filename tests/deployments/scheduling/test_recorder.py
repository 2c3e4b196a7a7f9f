"""What a recorded entry holds, input by input, and that each reaches the core again as it was given."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from deployments.decisions import Entry, Header, Input, LogError, plain, replay
from deployments.scheduling import (
    Capacity,
    Ending,
    LadderOrder,
    LanePolicy,
    Lease,
    Order,
    Scheduler,
    SchedulingPolicy,
    Suspicion,
    TenantPolicy,
    TenantUse,
    Usage,
)
from deployments.scheduling.itl_cap import ItlTarget
from deployments.scheduling.recorder import SCHEDULING, RecordingScheduler, code_hash
from deployments.wire import encode
from tests.deployments.scheduling.world import CAPACITY, make_request

POLICY = SchedulingPolicy(
    (LanePolicy("short", 200, 4.0, 10.0, 60.0), LanePolicy("long")),
    Order.ARRIVAL,
    0.5,
    2.0,
    40,
    20.0,
    {"b": TenantPolicy(2.0, 60.0, 9e3, 6)},
    groups={"short": ("default", "b"), "long": ("b",)},
    contexts={"default": 500, "b": 8_000},
    itl={"batch": ItlTarget(0.05, 0.9, {"b": 3})},
)
REQUEST = dataclasses.replace(
    make_request("q", 70, 30, 1.0, 50.0, 4.0, 2, "b", (7, 8)),
    traffic_class="batch",
    attempts=3,
    digest="d1",
    max_prompt_tokens=80,
    guest_of="us",
    hops=1,
    body_bytes=900,
)
LEASE = Lease(9, REQUEST, "r1", 2.0, 4, 140, 300, 30, 0)
USAGE = Usage(140, 5, 44, 1, 2, 0.25, 0.5)
OF_GROUP = Capacity(4, 1, 4_000, 300, 3, "b", 8_000)

Call = Callable[[RecordingScheduler], object]
INPUTS: dict[str, Call] = {
    "configure": lambda s: s.configure(POLICY, 2.5),
    "submit": lambda s: s.submit(REQUEST, 2.5, True),
    "adopt": lambda s: s.adopt(LEASE, True, 2.5),
    "cancel": lambda s: s.cancel("nobody", 2.5),
    "withdraw": lambda s: s.withdraw("nobody", 2.5),
    "begin_away": lambda s: s.begin_away(REQUEST, 2.5, True, True),
    "put_back": lambda s: s.put_back("nobody", 2.5),
    "first_token_away": lambda s: s.first_token_away("nobody", 2.5),
    "died_away": lambda s: s.died_away("nobody", 2.5),
    "first_token": lambda s: s.first_token(LEASE, 2.5),
    "died": lambda s: s.died(LEASE, 2.5),
    "recall": lambda s: s.recall(Suspicion("d1", 2, True, 2.25), 2.5),
    "used_elsewhere": lambda s: s.used_elsewhere((TenantUse("b", 2.0, 900.0, 1),), 2.5),
    "release": lambda s: s.release(LEASE, Ending.FINISHED, USAGE, 2.5),
    "learn": lambda s: s.learn(LEASE, USAGE, 2.5),
    "replica_up": lambda s: s.replica_up("r5", OF_GROUP, 2.5),
    "replica_unresponsive": lambda s: s.replica_unresponsive("r1", 2.5),
    "replica_draining": lambda s: s.replica_draining("r1", 2.5),
    "replica_cordoned": lambda s: s.replica_cordoned("r1", 2.5),
    "replica_uncordoned": lambda s: s.replica_uncordoned("r1", 2.5),
    "replica_lost": lambda s: s.replica_lost("r1", 2.5),
    "expect_replica": lambda s: s.expect_replica(9.5, 2.5, "b"),
    "order_ladder": lambda s: s.order_ladder(LadderOrder(), 2.5),
    "step": lambda s: s.step(2.5),
}


BY_LEASE = ("first_token", "died", "release")


def recording() -> tuple[RecordingScheduler, list[Entry]]:
    """One with a replica, before its first entry; and its entries."""
    entries: list[Entry] = []
    scheduler = RecordingScheduler(POLICY, lambda entry: None)
    scheduler.replica_up("r1", CAPACITY, 0.0)
    scheduler._write = entries.append
    return scheduler, entries


def last_decision(entries: list[Entry]) -> Any:
    entry = entries[-1]
    assert isinstance(entry, Input)
    return plain(entry.decision)


@pytest.mark.parametrize("method", INPUTS)
def test_the_core_gets_each_input_again_as_it_was(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, entries = recording()
    scheduler.adopt(LEASE, False, 1.5)
    (held, _), *_ = scheduler.leases.values()
    calls: list[dict[str, object]] = []
    scheduler.begin(2.0)
    works = getattr(Scheduler, method)
    parameters = inspect.signature(works)

    def called(*given: object, **named: object) -> object:
        calls.append({**parameters.bind(*given, **named).arguments, "self": None})
        return works(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Scheduler, method, functools.wraps(works)(called))
        if method in BY_LEASE:
            rest = (Ending.FINISHED, USAGE) if method == "release" else ()
            getattr(scheduler, method)(held, *rest, 2.5)
        else:
            INPUTS[method](scheduler)
        found = replay(entries[1:], (SCHEDULING,))
    assert found.difference is None
    assert (found.inputs, found.counted) == (1, 0)
    recorded, replayed = calls
    assert replayed == recorded


def test_every_method_that_changes_a_scheduler_is_an_input() -> None:
    reads = {"next_wakeup", "snapshot", "head_waits", "suspicions", "tenant_use"}
    reads |= {"is_draining", "replica_ids", "cordoned", "submitted", "is_idle", "begin"}
    # Instrumented for mutants, the class has methods more, of names that nobody types.
    public = {name for name in vars(Scheduler) if name.isascii() and not name.startswith("_")}
    assert public - reads == set(INPUTS)


def test_a_lease_that_ended_is_told_of_as_it_was() -> None:
    scheduler, entries = recording()
    scheduler.begin(2.0)
    scheduler.first_token(LEASE, 2.5)
    scheduler.release(LEASE, Ending.FAILED, None, 2.6)
    assert replay(entries, (SCHEDULING,)).difference is None


def test_a_header_holds_the_state_and_what_made_it() -> None:
    scheduler, entries = recording()
    scheduler.submit(REQUEST, 2.0)
    scheduler.submit(dataclasses.replace(REQUEST, request_id="own", guest_of=""), 2.0)
    scheduler.begin(2.5)
    header = entries[-1]
    assert isinstance(header, Header)
    assert (header.code, header.at_s, header.inputs) == (code_hash(), 2.5, 3)
    state = SCHEDULING.load(header.state)
    assert type(state) is Scheduler
    assert (list(state.lanes.jobs), list(state.lanes.guests)) == (["own"], ["q"])
    assert set(state.__dict__) == set(Scheduler(POLICY).__dict__)


def test_a_new_file_begins_with_the_input_for_which_it_is_due() -> None:
    entries: list[Entry] = []
    due = [False, True, False]
    scheduler = RecordingScheduler(POLICY, entries.append, lambda: due.pop(0))
    for now in (1.0, 2.0, 3.0):
        scheduler.step(now)
    assert [(type(one), one.at_s) for one in entries] == [(Input, 1.0), (Header, 2.0), (Input, 2.0), (Input, 3.0)]


def test_what_the_scheduler_calls_of_itself_is_no_input() -> None:
    scheduler, entries = recording()
    scheduler.adopt(LEASE, False, 1.5)
    (held, _), *_ = scheduler.leases.values()
    scheduler.release(held, Ending.FINISHED, USAGE, 2.0)  # learns, too
    scheduler.adopt(LEASE, False, 2.5)
    scheduler.replica_lost("r1", 3.0)  # releases, too
    methods = [one.method for one in entries if isinstance(one, Input)]
    assert methods == ["adopt", "release", "adopt", "replica_lost"]
    assert last_decision(entries) == [2]


def test_an_input_that_raises_is_followed_by_inputs_that_are_written() -> None:
    scheduler, entries = recording()
    with pytest.raises(AttributeError):
        scheduler.submit(None, 1.0)  # type: ignore[arg-type]
    scheduler.step(2.0)
    assert [one.method for one in entries if isinstance(one, Input)] == ["step"]


def test_a_step_is_told_in_full() -> None:
    scheduler, entries = recording()
    scheduler.submit(dataclasses.replace(REQUEST, request_id="placed"), 2.0)
    step = scheduler.step(2.5)
    (placement,) = step.placements
    assert last_decision(entries)["placed"] == [
        ["placed", placement.lease.lease_id, "r1", 4, placement.reason.value, "short", False, None]
    ]
    scheduler.replica_unresponsive("r1", 3.0)
    scheduler.submit(dataclasses.replace(REQUEST, request_id="waits"), 3.0)
    assert [request.request_id for request in scheduler.step(60.0).expired] == ["waits"]
    assert last_decision(entries)["expired"] == ["waits"]
    scheduler.submit(dataclasses.replace(REQUEST, request_id="late", expires_s=80.0, digest="d2"), 61.0)
    scheduler.replica_lost("r1", 62.0)
    scheduler.expect_replica(90.0, 62.0)
    (gone,) = scheduler.step(63.0).turned_away
    assert last_decision(entries)["turned_away"] == [["late", "short", gone.admission.retry_after_s]]
    assert last_decision(entries)["suspicions"] == [["d1", 1, False, 62.0]], "it ran when its replica was lost"
    scheduler.replica_up("r1", CAPACITY, 91.0)
    for number in range(9):
        own = {"request_id": f"q{number}", "guest_of": "", "expires_s": 200.0, "digest": f"d{number + 2}"}
        scheduler.submit(dataclasses.replace(REQUEST, **own), 91.0)
    queued = scheduler.step(92.0).placements[-1]
    assert queued.eta_s is not None
    assert last_decision(entries)["placed"][-1][-1] == list(queued.eta_s)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"kind": "weather"}, r"^decisions of kind 'weather'; allowed: scheduling$"),
        ({"code": "c0de"}, r"^entry 1: recorded by code c0de, this is [0-9a-f]{16}: decisions may differ for that"),
        ({"state": b"AAAA"}, r"^entry 1: its state cannot be read: "),
        ({"state": b"\x80\x04K\x03."}, r"^entry 1: its state cannot be read: its state is no Scheduler$"),
    ],
)
def test_a_refusal_names_the_entry_and_what_is_wrong(header: dict[str, Any], says: str) -> None:
    scheduler, entries = recording()
    scheduler.begin(2.0)
    (begun,) = entries
    assert isinstance(begun, Header)
    with pytest.raises(LogError, match=says):
        replay([dataclasses.replace(begun, **header)], (SCHEDULING,))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (Input(3.0, "shut_down", b"\x90", b"\xc0"), "entry 2, shut_down: 'shut_down' is no input of the scheduler"),
        (Input(3.0, "snapshot", b"\x90", b"\xc0"), "entry 2, snapshot: 'snapshot' is no input"),
        (Input(3.0, "cancel", b"\x90", b"\xc0"), "entry 2, cancel: .*length"),
        (Input(3.0, "cancel", encode([3]), b"\xc0"), "entry 2, cancel: .*Expected `str`"),
    ],
)
def test_what_is_no_input_is_refused(entry: Input, says: str) -> None:
    scheduler, entries = recording()
    scheduler.begin(2.0)
    with pytest.raises(LogError, match=says):
        replay([*entries, entry], (SCHEDULING,))
    with pytest.raises(LogError, match="a log begins with a header"):
        replay([entry], (SCHEDULING,))
