"""What people are told of what ended: short names, sentences, the lines of `raylane up`, `raylane explain --ended`."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli import departed
from cli.console import console
from cli.departed import SETTLE_S, LossReporter, end_of, sequel_of, short_names
from deployments.cell.act import Act, ActKind, Audit
from deployments.cell.departure import Departure, DepartureCause, Ended, Lost, MemberKind, Ready
from deployments.cell.lifecycle_log import LifecycleLog
from deployments.ladder_stats import LadderMode, LadderOrder
from deployments.starts.phases import Phase
from deployments.starts.start import ReplicaStart, StartReport
from deployments.starts.tracker import StartTracker
from deployments.store import FILE_NAME
from tests.commands import ran
from tests.deployments.cell.successors import next_store

ids = st.lists(
    st.text(st.characters(codec="ascii", categories=("L", "N"), include_characters="#-"), min_size=1, max_size=40),
    unique=True,
)


@given(ids)
def test_short_names_tell_replicas_apart_and_are_their_ends(ids: list[str]) -> None:
    names = short_names(ids)
    assert len(set(names.values())) == len(ids)
    assert all(one.endswith(name) for one, name in names.items())


def ended(
    who: str, at: float, cause: DepartureCause, lost: Lost | None = None, kind: MemberKind = MemberKind.REPLICA
) -> Ended:
    return Ended(kind, who, at, cause, "org/m" if kind is MemberKind.REPLICA else "", 7, "g1", lost or Lost())


def reported(tmp_path: Path, *events: Ready | Ended | ReplicaStart) -> LifecycleLog:
    """A life log with these."""
    log = LifecycleLog(next_store(tmp_path))
    for event in events:
        log.write(event)
    return log


def test_up_tells_a_loss_once_it_is_settled_and_then_what_came_instead(tmp_path: Path) -> None:
    now = time.time()
    losses = LossReporter(tmp_path, now - 100)
    log = reported(
        tmp_path,
        ended("e#old00000", now - 200, DepartureCause.UNRESPONSIVE),
        ended("e#stopped0", now - 50, DepartureCause.STOPPED),
    )
    assert losses.lines(now) == []
    log.write(ended("e#aaaaaaaa", now, DepartureCause.ENGINE_DIED, Lost(5, 27, 41_000, ("d",))))
    assert losses.lines(now + SETTLE_S / 2) == [], "other gateways may tell of more"
    (line,) = losses.lines(now + SETTLE_S)
    assert line.endswith(
        "[red]replica aaaaaaaa of org/m lost (engine_died); requests: 5 broken, 27 placed again (41000 tokens "
        "booked)[/]"
    )
    assert losses.lines(now + 9) == []
    log.write(Ready(MemberKind.REPLICA, "e#bbbbbbbb", now + 8.1, "org/m"))
    (line,) = losses.lines(now + 10)
    assert line.endswith("replica aaaaaaaa: bbbbbbbb was ready after 8.1 s")
    log.write(ended("g7", now + 11, DepartureCause.PROCESS_DIED, Lost(broken=3, tokens=30), MemberKind.GATEWAY))
    log.write(Ready(MemberKind.GATEWAY, "g8", now + 12))
    first, second = losses.lines(now + 20)
    assert "gateway g7 lost (process_died); requests: 3 broken" in first
    assert second.endswith("gateway g7: g8 was ready after 1.0 s")
    assert losses.lines(now + 30) == []


def test_up_reads_on_where_it_stopped(tmp_path: Path) -> None:
    now = time.time()
    losses = LossReporter(tmp_path, now - 100)
    assert losses.lines(now) == [], "no directory has begun yet"
    log = reported(tmp_path, ended("e#aaaaaaaa", now - 50, DepartureCause.UNRESPONSIVE))
    assert len(losses.lines(now)) == 1
    for name in ("bbbbbbbb", "cccccccc"):
        log.write(ended(f"e#{name}", now - 40, DepartureCause.UNRESPONSIVE))
    assert [line.split("replica ")[1][:8] for line in losses.lines(now)] == ["bbbbbbbb", "cccccccc"]


@pytest.mark.parametrize("problem", [None, OSError(5, "Input/output error")], ids=["a terminal", "one that is gone"])
def test_up_prints_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: OSError | None
) -> None:
    monkeypatch.setattr(departed, "_EVERY_S", 0.01)
    reported(tmp_path, ended("e#aaaaaaaa", time.time() - 50, DepartureCause.UNRESPONSIVE))
    printed, stop = [], threading.Event()

    def note(line: str) -> None:
        printed.append(line)
        stop.set()
        if problem is not None:
            raise problem

    monkeypatch.setattr(console, "print", note)
    LossReporter(tmp_path, 0.0).tell_until(stop)
    assert len(printed) == 1


NOTHING_YET = "nothing in its place yet"
SENTENCES = [
    (MemberKind.GATEWAY, DepartureCause.STOPPED, "gateway x ended as planned (stopped)", ""),
    (MemberKind.CONTROLLER, DepartureCause.PROCESS_DIED, "Serve's controller lost (process_died)", NOTHING_YET),
    (MemberKind.DIRECTORY, DepartureCause.PROCESS_DIED, "the directory lost (process_died)", NOTHING_YET),
    (MemberKind.REPLICA, DepartureCause.SPOT_NOTICE, "replica x of org/m ended as planned (spot_notice)", NOTHING_YET),
]


@pytest.mark.parametrize(("kind", "cause", "sentence", "sequel"), SENTENCES)
def test_sentences(kind: MemberKind, cause: DepartureCause, sentence: str, sequel: str) -> None:
    one = Departure(kind, "x", 100.0, cause, "org/m" if kind is MemberKind.REPLICA else "")
    assert (end_of(one, {}), sequel_of(one, {})) == (sentence, sequel)
    assert sequel_of(replace(one, back_unix_s=104.0), {}) == "it responded again after 4.0 s"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command, which must go well."""
    monkeypatch.setattr(console, "width", 200)

    def invoke(*arguments: object) -> str:
        result = ran(*arguments)
        return result.stdout

    return invoke


def test_explain_tells_what_ended_of_one_run_after_the_other(tmp_path: Path, run: Any) -> None:
    now = time.time()
    log = reported(
        tmp_path,
        Ready(MemberKind.DIRECTORY, "d1", now - 90),
        ended("e#aaaaaaaa", now - 80, DepartureCause.UNRESPONSIVE, Lost(1, 0, 9, ("0123abcd",))),
    )
    log.write(Ready(MemberKind.DIRECTORY, "d2", now - 60))
    log.write(Ready(MemberKind.REPLICA, "e#bbbbbbbb", now - 50, "org/m"))
    log.write(ended("e#bbbbbbbb", now - 40, DepartureCause.DRAINED))
    log.write(ended("g1", now - 30, DepartureCause.STOPPED, kind=MemberKind.GATEWAY))
    file = tmp_path / FILE_NAME
    first, after, digests, second, after_second, third = run("explain", "--ended", "--log", file).splitlines()
    assert "replica aaaaaaaa of org/m lost (unresponsive); requests: 1 broken (9 tokens booked)" in first
    assert after == "  nothing in its place yet", "the next run's replica is none"
    assert digests == "  requests: 0123abcd"
    assert "replica bbbbbbbb of org/m ended as planned (drained)" in second
    assert after_second.strip() == "nothing in its place yet"
    assert "gateway g1 ended as planned (stopped)" in third
    records = json.loads(run("explain", "--ended", "--json", "--log", file))
    assert [(one["who"], one["cause"]) for one in records] == [
        ("e#aaaaaaaa", "unresponsive"),
        ("e#bbbbbbbb", "drained"),
        ("g1", "stopped"),
    ]
    assert [one["who"] for one in json.loads(run("explain", "other", "--ended", "--json", "--log", file))] == ["g1"]
    assert json.loads(run("explain", "--ended", "--at", "60s", "--json", "--log", file))[-1]["who"] == "e#aaaaaaaa"
    log.write(replace(ended("e#cccccccc", now - 20, DepartureCause.DRAINED), model="org/m@dear"))
    of = [json.loads(run("explain", name, "--ended", "--json", "--log", file)) for name in ("org/m", "org/m@dear")]
    assert [[one["who"] for one in found][-2:] for found in of] == [["g1", "e#cccccccc"]] * 2
    assert [len(found) for found in of] == [4, 2]
    assert run("explain", "--ended", "--log", tmp_path / "a" / "b" / "log").strip() == "Nothing has ended."
    (other := tmp_path / "copied" / FILE_NAME).parent.mkdir()
    other.write_text("no store")
    result = ran("explain", "--ended", "--log", str(other), code=2)
    assert "allowed: the cell.sqlite of a cell" in " ".join(result.output.split())


def test_explain_lists_what_operators_ordered(tmp_path: Path, run: Any) -> None:
    audit = Audit(next_store(tmp_path))
    audit.write(Act(time.time() - 60, ActKind.PIN, "org/m", "ann", "a test", replicas=3, until_unix_s=1e10))
    audit.write(Act(time.time(), ActKind.PIN, "org/m@dear", "ann", until_unix_s=(until := time.time() + 60)))
    audit.write(Act(time.time(), ActKind.RELEASE, "other", "bob"))
    audit.write(Act(time.time(), ActKind.LADDER, "other", "bob", ladder=LadderOrder(LadderMode.AT_MOST, "clamp")))
    log = ("--log", tmp_path / FILE_NAME)
    first, group, second, third = run("explain", "--orders", *log).splitlines()
    assert first.endswith(f"ann: pin org/m (why a test, replicas 3, until {departed.clock(1e10)})")
    assert group.endswith(f"ann: pin org/m@dear (replicas 0, until {departed.clock(until)})")
    assert second.endswith("bob: release other")
    assert third.endswith("bob: ladder other (ladder at_most clamp)")
    found = json.loads(run("explain", "org/m", "--orders", "--json", *log))
    assert [(one["by"], one["kind"], one["replicas"]) for one in found] == [("ann", "pin", 3), ("ann", "pin", 0)]


def test_up_tells_of_failed_starts_once_for_each_cause_and_of_the_one_that_goes_well(tmp_path: Path) -> None:
    now, tracker = time.time(), StartTracker()
    report = StartReport("r1", "org/m", "n", Phase.FETCH, 1.0, {Phase.FETCH: 1.0})
    events = [tracker.failed(report, cause, "", now) for cause in ("no bucket", "no bucket", "no key")]
    events += [tracker.ready(report, now), tracker.ready(report, now)]
    reported(tmp_path, *events)
    lines = LossReporter(tmp_path, now - 100).lines(now)
    assert [line.partition("  ")[2] for line in lines] == [
        "[red]a replica of org/m did not start (phase fetch): no bucket[/]",
        "[red]a replica of org/m did not start (phase fetch): no key[/]",
        "a replica of org/m has started, after others failed",
    ]
