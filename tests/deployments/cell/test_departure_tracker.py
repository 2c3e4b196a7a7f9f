"""What the directory does about lives, with a real file and real processes."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.cell import departure_tracker, lifecycle_log
from deployments.cell.departure import DepartureCause, Ended, Event, Lost, MemberKind, Ready
from deployments.cell.departure_tracker import DepartureTracker, Presence, ProcessWatch, machine, own_presence
from deployments.cell.lifecycle_log import LifecycleLog, read_lives
from deployments.store import FILE_NAME
from tests.deployments.cell.successors import next_store


class Heard:
    """A directory's `DepartureTracker`, with what it says."""

    def __init__(self, folder: Path | None, began_unix_s: float = 0.0) -> None:
        self.news = 0
        self.heard = asyncio.Event()
        self.died: list[tuple[MemberKind, str]] = []
        self.tracker = DepartureTracker(
            next_store(folder), began_unix_s, self._changed, lambda kind, who: self.died.append((kind, who))
        )

    def _changed(self) -> None:
        self.news += 1
        self.heard.set()

    def reported(self) -> list[tuple[MemberKind, str, DepartureCause]]:
        """Who ended, and why."""
        return [(one.kind, one.who, one.cause) for one in self.tracker.departures().last]


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield running
    running.kill()
    running.communicate()


def there(process: subprocess.Popen[bytes], held: Lost | None = None) -> Presence:
    return Presence(process.pid, machine(), held or Lost())


async def killed(process: subprocess.Popen[bytes]) -> None:
    """Kills it; whoever watches it in this loop has been told then."""
    gone = asyncio.Event()
    ProcessWatch(process.pid, gone.set)
    process.kill()
    async with asyncio.timeout(20):
        await gone.wait()
    await asyncio.sleep(0)


def written(folder: Path) -> list[Event]:
    return [event for _, event in read_lives(folder / FILE_NAME)]


async def test_a_process_that_is_killed_is_noticed_at_once_with_what_it_held(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    heard = Heard(tmp_path)
    heard.tracker.process(MemberKind.GATEWAY, "g1", there(process, Lost(broken=1)))
    heard.tracker.process(MemberKind.GATEWAY, "g1", there(process, Lost(broken=3, tokens=70)))
    assert not heard.reported()
    await killed(process)
    assert heard.reported() == [(MemberKind.GATEWAY, "g1", DepartureCause.PROCESS_DIED)]
    assert heard.tracker.departures().last[0].lost == Lost(broken=3, tokens=70)
    assert (heard.died, heard.news) == ([(MemberKind.GATEWAY, "g1")], 1)
    last = written(tmp_path)[-1]
    assert isinstance(last, Ended)
    assert (last.who, last.cause, last.lost.broken) == ("g1", DepartureCause.PROCESS_DIED, 3)


async def test_one_that_leaves_is_no_loss_however_its_process_ends(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    heard = Heard(tmp_path)
    heard.tracker.process(MemberKind.GATEWAY, "g1", there(process))
    heard.tracker.ended(Ended(MemberKind.GATEWAY, "g1", time.time(), DepartureCause.STOPPED))
    await killed(process)
    assert (heard.reported(), heard.died) == ([(MemberKind.GATEWAY, "g1", DepartureCause.STOPPED)], [])


async def test_a_gateway_whose_connections_break_before_it_is_gone_has_died(process: subprocess.Popen[bytes]) -> None:
    heard = Heard(None)
    heard.tracker.process(MemberKind.GATEWAY, "g1", there(process))
    heard.tracker.given_up(MemberKind.GATEWAY, "g1")  # another gateway was faster than the kernel
    heard.tracker.given_up(MemberKind.GATEWAY, "g1")
    assert not heard.reported()
    await killed(process)
    assert heard.reported() == [(MemberKind.GATEWAY, "g1", DepartureCause.PROCESS_DIED)]


async def test_a_frozen_gateway_is_unresponsive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departure_tracker, "GONE_WITHIN_S", 0.01)
    heard = Heard(None)
    heard.tracker.process(MemberKind.GATEWAY, "g1", own_presence())
    heard.tracker.given_up(MemberKind.GATEWAY, "g1")
    heard.tracker.process(MemberKind.GATEWAY, "g1", own_presence())  # it was a doubt, no more
    heard.tracker.given_up(MemberKind.GATEWAY, "g1")
    async with asyncio.timeout(20):
        await heard.heard.wait()
    assert heard.reported() == [(MemberKind.GATEWAY, "g1", DepartureCause.UNRESPONSIVE)]
    heard.tracker.process(MemberKind.GATEWAY, "g1", own_presence())
    assert heard.tracker.departures().last[0].back_unix_s is not None


async def test_one_of_another_machine_is_given_up_at_once() -> None:
    heard = Heard(None)
    heard.tracker.process(MemberKind.GATEWAY, "g1", Presence(1, "another machine"))
    heard.tracker.given_up(MemberKind.GATEWAY, "g1")
    assert heard.reported() == [(MemberKind.GATEWAY, "g1", DepartureCause.UNRESPONSIVE)]


async def test_there_is_one_controller(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    for who in ("controller-1", "controller-1", "controller-2"):
        heard.tracker.process(MemberKind.CONTROLLER, who, Presence(1, "another machine"))
    (departure,) = heard.tracker.departures().last
    assert (departure.kind, departure.who, departure.cause) == (
        MemberKind.CONTROLLER,
        "controller-1",
        DepartureCause.PROCESS_DIED,
    )
    assert departure.replaced_by == "controller-2"


@pytest.mark.parametrize("ahead_s", [0.0, 60.0])
async def test_a_directory_that_comes_in_another_s_place_knows_all_and_tells_of_its_loss(
    tmp_path: Path, ahead_s: float
) -> None:
    """Also where the clock was ahead as the cell was brought up."""
    began = time.time() + ahead_s
    first = Heard(tmp_path, began)
    first.tracker.replica("r1", "demo", 7)
    cause, lost = DepartureCause.ENGINE_DIED, Lost(1, 2, 3, ("d",))
    died = Ended(MemberKind.REPLICA, "r1", time.time(), cause, "demo", 7, "g1", lost)
    first.tracker.ended(died)
    second = Heard(tmp_path, began)
    lost_replica, lost_directory = second.tracker.departures().last
    assert (lost_replica.cause, lost_replica.lost) == (cause, lost)
    assert (lost_directory.kind, lost_directory.cause) == (MemberKind.DIRECTORY, DepartureCause.PROCESS_DIED)
    assert lost_directory.replaced_by is not None
    second.tracker.ended(died)
    assert second.tracker.departures().last[0].lost.requests == 3, "told again to the next directory"
    second.tracker.replica("r2", "demo", 8)
    assert second.tracker.departures().last[0].replaced_by == "r2"


async def test_a_gateway_whose_clock_is_ahead_hides_no_replacement(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    heard.tracker.ended(Ended(MemberKind.REPLICA, "r1", time.time() + 100, DepartureCause.UNRESPONSIVE, "demo"))
    heard.tracker.replica("r2", "demo", 8)
    assert heard.tracker.departures().last[0].replaced_by == "r2"


async def test_another_cell_s_lives_are_not_this_one_s(tmp_path: Path) -> None:
    Heard(tmp_path).tracker.ended(Ended(MemberKind.REPLICA, "r1", time.time(), DepartureCause.UNRESPONSIVE))
    assert not Heard(tmp_path, time.time() + 1).reported()


async def test_who_ended_while_there_was_no_directory_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Heard(tmp_path)
    first.tracker.process(MemberKind.GATEWAY, "g1", own_presence())
    first.tracker.process(MemberKind.GATEWAY, "g2", own_presence())
    monkeypatch.setattr(departure_tracker, "SETTLE_S", 0.0)
    second = Heard(tmp_path)
    second.tracker.process(MemberKind.GATEWAY, "g2", own_presence())
    second.tracker.sweep()
    second.tracker.sweep()
    assert second.reported()[1:] == [(MemberKind.GATEWAY, "g1", DepartureCause.UNRESPONSIVE)]


async def test_while_the_cell_is_taken_down_nothing_is_a_loss(process: subprocess.Popen[bytes]) -> None:
    heard = Heard(None)
    heard.tracker.process(MemberKind.GATEWAY, "g1", there(process))
    heard.tracker.close()
    await killed(process)
    heard.tracker.ended(Ended(MemberKind.REPLICA, "r1", time.time(), DepartureCause.PROCESS_DIED))
    assert heard.reported() == [(MemberKind.REPLICA, "r1", DepartureCause.STOPPED)]


def test_an_event_that_cannot_be_read_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = next_store(tmp_path)
    log = LifecycleLog(store)
    for number in range(1, 4):
        log.write(Ready(MemberKind.REPLICA, f"r{number}", float(number)))
    store.write(lambda file: file.execute("update lives set body = x'c1' where number = 2"))
    assert [event.who for event in log.read()] == ["r1", "r3"]  # type: ignore[union-attr]
    assert "event 2 of the lives is left out" in caplog.text
    assert [event.at_unix_s for _, event in read_lives(tmp_path / FILE_NAME, after=1)] == [3.0]


def test_the_newest_events_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle_log, "MAX_EVENTS", 10)
    log = LifecycleLog(next_store(tmp_path))
    for number in range(40):
        log.write(Ready(MemberKind.REPLICA, f"r{number}", float(number)))
    assert [event.at_unix_s for event in log.read()] == list(range(30, 40))


def test_what_cannot_be_written_is_written_with_the_next_and_of_too_many_the_oldest_are_lost(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("no folder")
    log = LifecycleLog(store := next_store(tmp_path / "run"))
    for number in range(lifecycle_log.MAX_WAITING + 10):
        log.write(Ready(MemberKind.REPLICA, f"r{number}", float(number)))
    assert log.read() == []
    assert store.health.error is not None
    (tmp_path / "run").unlink()
    log.write(Ready(MemberKind.REPLICA, "last", 1.0))
    assert log.read()[0].at_unix_s == 11
    assert (store.health.error, store.health.lost_lines) == (None, 11)
