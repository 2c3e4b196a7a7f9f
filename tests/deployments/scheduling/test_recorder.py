"""What a recorded line holds, input by input, and that each reaches the core again as it was given."""

import base64
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from deployments.restricted_pickle import load_state
from deployments.scheduling import (
    Capacity,
    Ending,
    LanePolicy,
    Lease,
    Order,
    Scheduler,
    SchedulingPolicy,
    Suspicion,
    TenantPolicy,
    Usage,
)
from deployments.scheduling.itl_cap import ItlTarget
from deployments.scheduling.recorder import SCHEMA_VERSION, RecordingScheduler, code_hash, decision, plain
from deployments.scheduling.replay import ReplayError, replay
from tests.deployments.scheduling.world import CAPACITY, make_request

POLICY = SchedulingPolicy(
    (LanePolicy("short", 200, 4.0, 10.0, 60.0, ("default", "b")), LanePolicy("long", groups=("b",))),
    Order.ARRIVAL,
    0.5,
    2.0,
    40,
    20.0,
    {"b": TenantPolicy(2.0, 60.0, 9e3, 6)},
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
REQUEST_LINE = {
    "request_id": "q",
    "prompt_tokens": 70,
    "max_tokens": 30,
    "arrived_s": 1.0,
    "deadline_s": 5.0,
    "expires_s": 51.0,
    "sequences": 2,
    "traffic_class": "batch",
    "tenant": "b",
    "prefix": [7, 8],
    "chunk_tokens": 64,
    "attempts": 3,
    "digest": "d1",
    "max_prompt_tokens": 80,
    "guest_of": "us",
    "hops": 1,
    "body_bytes": 900,
}
LEASE_LINE = {
    "lease_id": 9,
    "request": REQUEST_LINE,
    "replica_id": "r1",
    "placed_s": 2.0,
    "attempt": 4,
    "prefill_tokens": 140,
    "kv_tokens": 300,
    "output_tokens": 30,
    "home": 0,
}
USAGE_LINE = {
    "prompt_tokens": 140,
    "cached_tokens": 5,
    "output_tokens": 44,
    "preemptions": 1,
    "sequences": 2,
    "prefill_s": 0.25,
    "decode_s": 0.5,
}
POLICY_LINE = {
    "lanes": [
        {
            "name": "short",
            "up_to_tokens": 200,
            "weight": 4.0,
            "max_wait_s": 10.0,
            "cap_s": 60.0,
            "groups": ["default", "b"],
        },
        {"name": "long", "up_to_tokens": None, "weight": 1.0, "max_wait_s": 30.0, "cap_s": 600.0, "groups": ["b"]},
    ],
    "order": "arrival",
    "promoted_share": 0.5,
    "decode_weight": 2.0,
    "max_waiting": 40,
    "stickiness_ms": 20.0,
    "tenants": {"b": {"weight": 2.0, "requests_per_minute": 60.0, "tokens_per_minute": 9000.0, "max_concurrency": 6}},
    "pick": "min_ttft",
    "contexts": {"default": 500, "b": 8000},
    "itl": {"batch": {"itl_s": 0.05, "attainment": 0.9, "starts": {"b": 3}}},
}
OF_GROUP = Capacity(4, 1, 4_000, 300, 3, "b", 8_000)
CAPACITY_LINE = {
    "sequences": 4,
    "ahead": 1,
    "kv_tokens": 4000,
    "step_tokens": 300,
    "prefill_steps": 3,
    "group": "b",
    "context_tokens": 8000,
}
ADMITTED = {
    "kind": "admit",
    "lane": "short",
    **dict.fromkeys(("cause", "eta_s", "backlog_s", "retry_after_s", "waits_for")),
}

Call = Callable[[RecordingScheduler], object]
INPUTS: dict[str, tuple[Call, list[Any], object]] = {
    "configure": (lambda s: s.configure(POLICY, 2.5), [POLICY_LINE], None),
    "submit": (lambda s: s.submit(REQUEST, 2.5, True), [REQUEST_LINE, True], ADMITTED),
    "adopt": (lambda s: s.adopt(LEASE, True, 2.5), [LEASE_LINE, True], 1),
    "cancel": (lambda s: s.cancel("nobody", 2.5), ["nobody"], False),
    "withdraw": (lambda s: s.withdraw("nobody", 2.5), ["nobody"], False),
    "put_back": (lambda s: s.put_back("nobody", 2.5), ["nobody"], False),
    "first_token_away": (lambda s: s.first_token_away("nobody", 2.5), ["nobody"], None),
    "first_token": (lambda s: s.first_token(LEASE, 2.5), [9], None),
    "died": (lambda s: s.died(LEASE, 2.5), [9], None),
    "recall": (lambda s: s.recall(Suspicion("d1", 2, True, 2.25), 2.5), ["d1", 2, True, 2.25], None),
    "release": (lambda s: s.release(LEASE, Ending.FINISHED, USAGE, 2.5), [9, "finished", USAGE_LINE], False),
    "learn": (lambda s: s.learn(LEASE, USAGE, 2.5), [LEASE_LINE, USAGE_LINE], None),
    "replica_up": (
        lambda s: s.replica_up("r5", OF_GROUP, 2.5),
        ["r5", CAPACITY_LINE],
        None,
    ),
    "replica_unresponsive": (lambda s: s.replica_unresponsive("r1", 2.5), ["r1"], None),
    "replica_draining": (lambda s: s.replica_draining("r1", 2.5), ["r1"], None),
    "replica_cordoned": (lambda s: s.replica_cordoned("r1", 2.5), ["r1"], None),
    "replica_uncordoned": (lambda s: s.replica_uncordoned("r1", 2.5), ["r1"], None),
    "replica_lost": (lambda s: s.replica_lost("r1", 2.5), ["r1"], []),
    "expect_replica": (lambda s: s.expect_replica(9.5, 2.5, "b"), [9.5, "b"], None),
    "step": (lambda s: s.step(2.5), [], {"placed": [], "expired": [], "turned_away": []}),
}


BY_LEASE = ("first_token", "died", "release")


def recording(lines: list[str]) -> RecordingScheduler:
    """One with a replica, before its first line."""
    scheduler = RecordingScheduler(POLICY, lambda line: None)
    scheduler.replica_up("r1", CAPACITY, 0.0)
    scheduler._write = lines.append
    return scheduler


@pytest.mark.parametrize("method", INPUTS)
def test_a_line_holds_the_time_the_input_and_the_decision(method: str) -> None:
    lines: list[str] = []
    scheduler = recording(lines)
    call, arguments, decided = INPUTS[method]
    call(scheduler)
    (line,) = lines
    assert json.loads(line) == [2_500_000_000, method, arguments, decided]
    assert ": " not in line, "a log is written without blanks"


@pytest.mark.parametrize("method", INPUTS)
def test_the_core_gets_each_input_again_as_it_was(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    scheduler = recording(lines)
    scheduler.adopt(LEASE, False, 1.5)
    (held, _), *_ = scheduler.leases.values()
    calls: list[tuple[object, ...]] = []
    scheduler.begin(2.0)
    call, arguments, _ = INPUTS[method]
    works = getattr(Scheduler, method)
    with monkeypatch.context() as patched:
        patched.setattr(Scheduler, method, lambda self, *given: calls.append(given) or works(self, *given))
        if method in BY_LEASE:
            rest = (Ending.FINISHED, USAGE) if method == "release" else ()
            getattr(scheduler, method)(held, *rest, 2.5)
        else:
            call(scheduler)
        found = replay(lines[1:])
    assert found.difference is None
    assert (found.inputs, found.placed) == (1, 0)
    recorded, replayed = calls
    assert replayed == recorded
    assert method in BY_LEASE or arguments == json.loads(lines[-1])[2]


def test_a_lease_that_ended_is_told_of_as_it_was() -> None:
    lines: list[str] = []
    scheduler = recording(lines)
    scheduler.begin(2.0)
    scheduler.first_token(LEASE, 2.5)
    scheduler.release(LEASE, Ending.FAILED, None, 2.6)
    assert replay(lines).difference is None


def test_a_header_holds_the_state_and_what_made_it() -> None:
    lines: list[str] = []
    scheduler = recording(lines)
    scheduler.submit(REQUEST, 2.0)
    scheduler.submit(dataclasses.replace(REQUEST, request_id="own", guest_of=""), 2.0)
    scheduler.begin(2.5)
    header = json.loads(lines[-1])
    assert {key: header[key] for key in ("schema", "code", "ns")} == {
        "schema": SCHEMA_VERSION,
        "code": code_hash(),
        "ns": 2_500_000_000,
    }
    assert set(header) == {"schema", "code", "ns", "inputs", "state"}
    assert header["inputs"] == 3
    assert ": " not in lines[-1]
    state = load_state(
        base64.b64decode(header["state"]),
        ("deployments.scheduling",),
        (("deployments.scheduling.recorder", "_restore"),),
    )
    assert type(state) is Scheduler
    assert (list(state.lanes.jobs), list(state.lanes.guests)) == (["own"], ["q"])
    assert set(state.__dict__) == set(Scheduler(POLICY).__dict__)


def test_a_new_file_begins_with_the_input_for_which_it_is_due() -> None:
    lines: list[str] = []
    due = [False, True, False]
    scheduler = RecordingScheduler(POLICY, lines.append, lambda: due.pop(0))
    for now in (1.0, 2.0, 3.0):
        scheduler.step(now)
    assert [(line[0], json.loads(line)["ns"] if line[0] == "{" else json.loads(line)[0]) for line in lines] == [
        ("[", 1_000_000_000),
        ("{", 2_000_000_000),
        ("[", 2_000_000_000),
        ("[", 3_000_000_000),
    ]


def test_what_the_scheduler_calls_of_itself_is_no_input() -> None:
    lines: list[str] = []
    scheduler = recording(lines)
    scheduler.adopt(LEASE, False, 1.5)
    (held, _), *_ = scheduler.leases.values()
    scheduler.release(held, Ending.FINISHED, USAGE, 2.0)  # learns, too
    scheduler.adopt(LEASE, False, 2.5)
    scheduler.replica_lost("r1", 3.0)  # releases, too
    assert [json.loads(line)[1] for line in lines] == ["adopt", "release", "adopt", "replica_lost"]
    assert json.loads(lines[-1])[3] == [2]


def test_an_input_that_raises_is_followed_by_inputs_that_are_written() -> None:
    lines: list[str] = []
    scheduler = recording(lines)
    with pytest.raises(AttributeError):
        scheduler.submit(None, 1.0)  # type: ignore[arg-type]
    scheduler.step(2.0)
    assert [json.loads(line)[1] for line in lines] == ["step"]


def test_a_step_is_told_in_full() -> None:
    lines: list[str] = []
    scheduler = recording(lines)
    scheduler.submit(dataclasses.replace(REQUEST, request_id="placed"), 2.0)
    step = scheduler.step(2.5)
    (placement,) = step.placements
    reported = json.loads(lines[-1])[3]
    assert reported["placed"] == [
        ["placed", placement.lease.lease_id, "r1", 4, placement.reason.value, "short", False, []]
    ]
    scheduler.replica_unresponsive("r1", 3.0)
    scheduler.submit(dataclasses.replace(REQUEST, request_id="waits"), 3.0)
    assert [request.request_id for request in scheduler.step(60.0).expired] == ["waits"]
    assert json.loads(lines[-1])[3]["expired"] == ["waits"]
    scheduler.submit(dataclasses.replace(REQUEST, request_id="late", expires_s=80.0, digest="d2"), 61.0)
    scheduler.replica_lost("r1", 62.0)
    scheduler.expect_replica(90.0, 62.0)
    (gone,) = scheduler.step(63.0).turned_away
    assert json.loads(lines[-1])[3]["turned_away"] == [["late", "short", gone.admission.retry_after_s]]
    assert json.loads(lines[-1])[3]["suspicions"] == [["d1", 1, False, 62.0]], "it ran when its replica was lost"
    scheduler.replica_up("r1", CAPACITY, 91.0)
    for number in range(9):
        own = {"request_id": f"q{number}", "guest_of": "", "expires_s": 200.0, "digest": f"d{number + 2}"}
        scheduler.submit(dataclasses.replace(REQUEST, **own), 91.0)
    queued = scheduler.step(92.0).placements[-1]
    assert queued.eta_s is not None
    assert json.loads(lines[-1])[3]["placed"][-1][-1] == list(queued.eta_s)


def test_plain_values_stay_what_they_are() -> None:
    assert plain({1: (Ending.FAILED, None, [0.5, "x"])}) == {"1": ["failed", None, [0.5, "x"]]}
    assert plain(Capacity) is Capacity, "a class is no value of its own kind"
    assert decision("release", (LEASE,)) == [LEASE_LINE], "only a lost replica's leases are told by their ids"


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (["nonsense"], r"^line 1: is no JSON: "),
        (["3"], r"^line 1: '3': neither a header nor an input$"),
        (["[" + "1, " * 100 + "1]"], r"^line 1: '\[(1, ){26}1': neither a header nor an input$"),
        (["[1, 2, 3]"], r"^line 1: '\[1, 2, 3\]': neither a header nor an input$"),
        (['[1, "step", [], null]'], r"^line 1: a log begins with a header$"),
        (['{"schema": 99}'], rf"^line 1: schema = 99; allowed: {SCHEMA_VERSION}$"),
        (
            [f'{{"schema": {SCHEMA_VERSION}, "code": "c0de"}}'],
            r"^line 1: recorded by code c0de, this is [0-9a-f]{16}: decisions may differ for that reason",
        ),
        ([f'{{"schema": {SCHEMA_VERSION}, "code": "{code_hash()}"}}'], r"^line 1: its state cannot be read: 'state'$"),
    ],
)
def test_a_refusal_names_the_line_and_what_is_wrong(log: list[str], says: str) -> None:
    with pytest.raises(ReplayError, match=says):
        replay(log)


def test_a_state_that_is_no_scheduler_is_refused() -> None:
    state = base64.b64encode(b"\x80\x04K\x03.").decode()  # the number 3
    header = json.dumps({"schema": SCHEMA_VERSION, "code": code_hash(), "state": state})
    with pytest.raises(ReplayError, match=r"^line 1: its state is no scheduler$"):
        replay([header])


@pytest.mark.parametrize(("method", "arguments"), [("shut_down", []), ("step", [1]), ("snapshot", []), ("cancel", [])])
def test_what_is_no_input_is_refused(method: str, arguments: list[object]) -> None:
    lines: list[str] = []
    scheduler = recording(lines)
    scheduler.begin(2.0)
    with pytest.raises(
        ReplayError, match=rf"^'{method}' with {len(arguments)} arguments is no input of the scheduler$"
    ):
        replay([*lines, json.dumps([3, method, arguments, None])])


def test_a_difference_says_where_and_what() -> None:
    lines: list[str] = []
    scheduler = recording(lines)
    scheduler.begin(2.0)
    scheduler.step(2.5)
    scheduler.cancel("q", 3.0)
    found = replay([*lines[:2], lines[2].replace("false", "true"), lines[1]])
    assert found.inputs == 2
    assert found.difference is not None
    assert dataclasses.astuple(found.difference) == (3, "cancel", True, False)
