"""A directory, gateways and replicas that are killed at the same moment: the next directory tells of each, with what
was lost."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deployments.cell import departure_tracker
from deployments.cell.departure import Departure, DepartureCause, Lost, MemberKind
from deployments.cell.departure_tracker import Presence, machine
from deployments.cell.directory import Directory
from deployments.protocol import ReplicaFacts
from tests.deployments.cell.successors import next_directory
from tests.small_disk import small_disk

HELD = Lost(broken=3, placed_again=1, tokens=70, digests=("d",))
DIED, UNRESPONSIVE = DepartureCause.PROCESS_DIED, DepartureCause.UNRESPONSIVE
DIRECTORY = """
import asyncio, sys
from tests.deployments.cell.test_killed_together import HELD, Directory, MemberKind, joined, registered

async def main(run_dir, where, *pids):
    directory = Directory("secret", run_dir=run_dir)
    while True:
        for name, pid in zip(("g1", "g2"), pids):
            await joined(directory, name, int(pid), HELD, where)
        for name, pid in zip(("r1", "r2"), pids[2:]):
            await registered(directory, name, int(pid), where)
        print("heard", flush=True)
        await asyncio.sleep(0.05)

asyncio.run(main(*sys.argv[1:]))
"""


async def joined(directory: Directory, name: str, pid: int, held: Lost, where: str = machine()) -> None:
    await directory.join(name, f"http://{name}", ["m"], {}, {}, Presence(pid, where, held))


async def registered(directory: Directory, name: str, pid: int, where: str = machine()) -> None:
    facts = ReplicaFacts(name, "m", f"http://{name}", pid, "n", "generate", 10, 1, 10, 10)
    await directory.register(facts, 0, where)


class Processes:
    """Two gateways and two replicas, and the directory that hears of them, on the machine `where`."""

    def __init__(self, run_dir: Path, where: str) -> None:
        command = [sys.executable, "-S", "-c", "input()"]
        self.members = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(4)]
        pids = [str(one.pid) for one in self.members]
        self.directory = subprocess.Popen(
            [sys.executable, "-c", DIRECTORY, str(run_dir), where, *pids], stdout=subprocess.PIPE
        )
        assert self.directory.stdout is not None
        for _ in range(3):
            assert self.directory.stdout.readline() == b"heard\n"

    def kill(self, *members: int) -> None:
        """Those, with the directory: it sees none of them die."""
        self.directory.send_signal(signal.SIGSTOP)
        for one in (*(self.members[number] for number in members), self.directory):
            one.kill()
            one.wait()


@contextmanager
def processes(run_dir: Path, where: str = machine()) -> Iterator[Processes]:
    running = Processes(run_dir, where)
    try:
        yield running
    finally:
        for one in (*running.members, running.directory):
            one.kill()
            one.communicate()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next directory waits for nobody."""
    monkeypatch.setattr(departure_tracker, "SETTLE_S", 0.0)


async def departures(directory: Directory) -> dict[str, Departure]:
    """Who ended, by kind and name."""
    listing = await directory.watch(-1, 0.0)
    return {"directory" if one.kind is MemberKind.DIRECTORY else one.who: one for one in listing.departures.last}


@pytest.mark.whole
async def test_all_of_them(tmp_path: Path) -> None:
    with processes(tmp_path) as running:
        running.kill(0, 1, 2, 3)
        ended = await departures(next_directory(tmp_path))
    assert {who: (one.cause, one.lost) for who, one in ended.items()} == {
        "directory": (DIED, Lost()),
        **dict.fromkeys(("g1", "g2"), (DIED, HELD)),
        **dict.fromkeys(("r1", "r2"), (DIED, Lost())),
    }
    assert [ended[f"g{one}"].pid for one in (1, 2)] == [one.pid for one in running.members[:2]]
    again = await departures(next_directory(tmp_path))
    assert {who: one.lost for who, one in again.items() if who != "directory"} == {
        who: one.lost for who, one in ended.items() if who != "directory"
    }, "told once"


@pytest.mark.whole
async def test_those_who_live_are_no_losses_and_tell_what_they_know(tmp_path: Path) -> None:
    with processes(tmp_path) as running:
        running.kill(0, 2)
        directory = next_directory(tmp_path)
        await joined(directory, "g2", running.members[1].pid, Lost())
        await registered(directory, "r2", running.members[3].pid)
        await directory.give_up("g1")  # g2 has found it gone
        ended = await departures(directory)
        assert {who: (one.cause, one.lost) for who, one in ended.items() if who != "directory"} == {
            "g1": (DIED, HELD),
            "r1": (DIED, Lost()),
        }
        await joined(directory, "g3", os.getpid(), Lost())
        assert (await departures(directory))["g1"].replaced_by == "g3"


@pytest.mark.whole
async def test_those_on_other_machines_are_given_up_with_what_they_held(tmp_path: Path) -> None:
    with processes(tmp_path, "another machine") as running:
        running.kill()
        ended = await departures(next_directory(tmp_path))
    assert {who: (one.cause, one.lost) for who, one in ended.items() if who != "directory"} == {
        **dict.fromkeys(("g1", "g2"), (UNRESPONSIVE, HELD)),
        **dict.fromkeys(("r1", "r2"), (UNRESPONSIVE, Lost())),
    }


@pytest.mark.parametrize("room_again", [False, True])
async def test_a_full_disk_costs_the_newest_losses_and_no_departure(tmp_path: Path, room_again: bool) -> None:
    with small_disk(tmp_path / "disk") as disk:
        one, before = next_directory(disk.path), Lost(broken=1)
        await joined(one, "g1", 1, before, "another machine")
        disk.fill()
        await joined(one, "g1", 1, HELD, "another machine")
        disk.free()
        if room_again:
            await joined(one, "g1", 1, HELD, "another machine")
        ended = await departures(next_directory(disk.path))
        assert ended["g1"].lost == (HELD if room_again else before)
