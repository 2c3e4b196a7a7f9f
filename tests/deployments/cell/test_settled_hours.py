"""A settled hour is never settled again: a disk that is full at any write, a clock that goes back, reports that come
late and a price that changes, as a cell's directory meets them, before and after it starts again.

Only `Cell` knows how a bill is kept.
"""

import time
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import pytest

from deployments.accounting.bill import HOUR_NS, Bill, BillLine, TimeShare
from deployments.accounting.facts import FACTS, NS, AttemptUsage, Count, Tariff, Watched
from deployments.accounting.store import read_bill
from deployments.cell.departure import DepartureCause, Ended, MemberKind
from deployments.cell.directory import Directory
from deployments.protocol import ReplicaFacts
from deployments.starts.phases import Phase
from deployments.starts.start import StartReport
from deployments.store import FILE_NAME
from tests.deployments.accounting.replicas import BEGIN
from tests.small_disk import small_disk


class Cell:
    """A cell's directory, and one gateway that tells it of costs. The time of day is what the test says."""

    def __init__(self, run_dir: Path, patch: pytest.MonkeyPatch) -> None:
        self.run_dir = run_dir
        self.price = Fraction(2)
        self._now_ns = BEGIN
        patch.setattr(time, "time_ns", lambda: self._now_ns)
        patch.setattr(time, "time", lambda: self._now_ns / NS)
        self.directory = Directory("secret", run_dir=str(self.run_dir))

    def restart(self) -> None:
        """The directory ends, and another one comes in its place."""
        self.directory.store.close()
        self.directory = Directory("secret", run_dir=str(self.run_dir))

    async def at(self, hour: float, *ended: str, replicas: Iterable[str] = ("r",)) -> None:
        """It is so many hours after the begin: replicas register, a gateway tells that it heard from them for a minute,
        and of requests of a second that have just ended. What is due is settled, if it can be."""
        self._now_ns = BEGIN + round(hour * HOUR_NS)
        for one in replicas:
            await self.directory.register(ReplicaFacts(one, "m", "http://x", 1, "n", "generate", 10, 1, 10, 10))
        watched = Watched(self._now_ns, "g", dict.fromkeys(replicas, self._now_ns - 60 * NS))
        await self.tell(watched, *(request(one, hour) for one in ended))

    async def tell(self, *facts: AttemptUsage | Watched) -> None:
        """A gateway delivers until it is answered, as it does, unless the disk is full."""
        tariff = Tariff(self._now_ns, "m", "default", "here", "gpus", 1, self.price, "", 2_048, 4.0)
        self.directory.costs._turned_s = -1e9
        await self.directory.cost_facts([FACTS.encode(fact) for fact in facts], [tariff])
        if self.directory.costs._settling is not None:
            await self.directory.costs._settling

    def bill(self) -> Bill:
        """What `raylane cost` shows."""
        return read_bill(self.run_dir / FILE_NAME)

    async def counters(self) -> Fraction:
        """What the metrics say of all settled hours."""
        return usd((await self.directory.cost_totals()).lines)


def request(name: str, hour: float) -> AttemptUsage:
    """One that has ended then."""
    to_ns = BEGIN + round(hour * HOUR_NS)
    return AttemptUsage(name, "r", "m", "a", "chat", to_ns - NS, to_ns, Count.ENGINE, 100, 0, 10)


def usd(lines: Iterable[BillLine]) -> Fraction:
    return sum((line.usd for line in lines), Fraction(0))


def of_hours(bill: Bill, *hours: int) -> list[BillLine]:
    return [line for line in bill.lines if (line.key.hour_ns - BEGIN) // HOUR_NS in hours]


def requests(lines: Iterable[BillLine]) -> int:
    return sum(line.amounts.requests for line in lines)


async def two_settled_hours(cell: Cell) -> list[BillLine]:
    """Two hours are settled, the directory was away in the third and fourth, the fifth is over; what is settled."""
    await cell.at(0)
    await cell.at(0.5, "first")
    await cell.at(1.4, "second")
    await cell.at(4.1, "third")
    await cell.at(4.9, "fourth")
    lines = of_hours(cell.bill(), 0, 1)
    assert (usd(lines), requests(lines)) == (4, 2)
    return lines


@pytest.mark.whole
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("pages", range(8))
async def test_a_disk_that_is_full_at_any_write_of_a_settlement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int, restarts: bool
) -> None:
    """There is room for so many pages more: fewer, the earlier it is full."""
    with small_disk(tmp_path / "disk") as disk:
        cell = Cell(disk.path, monkeypatch)
        before = await two_settled_hours(cell)
        disk.fill(pages)
        await cell.at(5.4)
        disk.free()
        if restarts:
            cell.restart()
        for hour in (5.41, 5.42):
            await cell.at(hour, "fifth")
        bill = cell.bill()
        assert of_hours(bill, 0, 1) == before
        assert usd(of_hours(bill, 2, 3, 4)) == 6, "10.00 USD in all"
        assert requests(bill.lines) == 5
        assert await cell.counters() == 10
        await cell.at(6.4)
        assert (usd(of_hours(cell.bill(), *range(6))), await cell.counters()) == (12, 12)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_clock_that_goes_back_75_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, restarts: bool
) -> None:
    """What is told meanwhile counts in the hour that is open, and is said to."""
    cell = Cell(tmp_path, monkeypatch)
    await two_settled_hours(cell)
    await cell.at(5.42, "fifth")
    settled = of_hours(cell.bill(), *range(5))
    assert usd(settled) == 10
    await cell.at(4.17, "sixth", replicas=("r", "s"))
    if restarts:
        cell.restart()
    await cell.at(4.18, "seventh", replicas=("r", "s"))
    bill = cell.bill()
    assert of_hours(bill, *range(5)) == settled
    assert (requests(of_hours(bill, 5)), requests(bill.lines)) == (3, 7)
    await cell.at(5.5, "eighth")  # it is set right again
    await cell.at(6.4, "ninth")
    bill = cell.bill()
    assert of_hours(bill, *range(5)) == settled
    assert (requests(of_hours(bill, 5)), requests(bill.lines)) == (4, 9)
    assert usd(of_hours(bill, 5)) >= 2
    assert await cell.counters() == usd(of_hours(bill, *range(6)))
    assert "the clock went back" in caplog.text


async def test_a_clock_that_goes_back_while_an_hour_cannot_be_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        cell = Cell(disk.path, monkeypatch)
        before = await two_settled_hours(cell)
        disk.fill(1)
        await cell.at(5.42)
        disk.free()
        for hour in (4.17, 5.5, 6.4):
            await cell.at(hour, f"at {hour}")
        bill = cell.bill()
        assert of_hours(bill, 0, 1) == before
        assert (usd(of_hours(bill, *range(6))), requests(bill.lines)) == (12, 7)
        assert await cell.counters() == 12


async def test_what_comes_hours_late_counts_once_when_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway was cut off from its directory, and tells before the hour before is settled."""
    cell = Cell(tmp_path, monkeypatch)
    await two_settled_hours(cell)
    await cell.at(5.1)
    await cell.tell(request("late", 0.6))
    assert requests(of_hours(cell.bill(), 5)) == 1
    for hour in (5.4, 6.4):
        await cell.at(hour)
        bill = cell.bill()
        assert (requests(of_hours(bill, 5)), requests(bill.lines)) == (1, 5)
        assert usd(of_hours(bill, 0, 1)) == 4


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_new_price_is_that_of_replicas_that_begin_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    cell = Cell(tmp_path, monkeypatch)
    await cell.at(0)
    cell.price = Fraction(7)
    await cell.at(0.5)
    if restarts:
        cell.restart()
    for hour in (1, 2, 2.5):
        await cell.at(hour, replicas=("r", "s"))
    cell.price = Fraction(1)
    for hour in (2.9, 3, 3.4):
        await cell.at(hour, replicas=("r", "s"))
    bill = cell.bill()
    assert [usd(of_hours(bill, hour)) for hour in range(3)] == [2, 2 + 7, 2 + 7]
    assert {line.key.usd_per_hour for line in bill.lines} == {2, 7}


async def test_a_new_price_and_a_clock_that_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(tmp_path, monkeypatch)
    await cell.at(0)
    await cell.at(0.5)
    cell.price = Fraction(7)
    await cell.at(0.3)
    cell.price = Fraction(9)
    await cell.at(0.2)
    for hour in (0.6, 1.4, 2):
        await cell.at(hour)
    assert {line.key.usd_per_hour for line in cell.bill().lines} == {2}


@pytest.mark.parametrize("ends", ["stopped", "stopped before a restart", "with its directory"])
async def test_a_replica_is_paid_for_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """Before the hour before is settled. If it ends with its directory, nobody is left to tell of it: it never speaks
    to the next one. Nor does one that had begun to start."""
    cell = Cell(tmp_path, monkeypatch)
    for hour in (0, 0.5, 1, 1.2):
        await cell.at(hour, replicas=("r", "s"))
    if ends == "with its directory":
        await cell.directory.starting(StartReport("t", "m", "n", Phase.LOAD, 0.0, {}))
    else:
        await cell.directory.ended(Ended(MemberKind.REPLICA, "s", time.time(), DepartureCause.STOPPED, "m"))
    if ends != "stopped":
        cell.restart()
    await cell.at(1.25)
    cell.directory.costs.lives.forget_unheard()
    for hour in (1.4, 2.4):
        await cell.at(hour)
    cell.restart()
    await cell.at(3.4)
    bill = cell.bill()
    assert [usd(of_hours(bill, hour)) for hour in range(3)] == [4, Fraction("2.4"), 2]
    assert {line.key.region for line in bill.lines} == {"here"}


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_replica_that_is_given_up_and_comes_back_had_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    cell = Cell(tmp_path, monkeypatch)
    for hour in (0, 0.5, 1.1):
        await cell.at(hour)
    await cell.directory.ended(Ended(MemberKind.REPLICA, "r", time.time(), DepartureCause.UNRESPONSIVE, "m"))
    for hour in (1.2, 1.4, 2, 2.4):
        await cell.at(hour)
        if restarts:
            cell.restart()
    lines = of_hours(cell.bill(), 1)
    assert (usd(lines), {line.key.share for line in lines}) == (2, {TimeShare.IDLE, TimeShare.UNATTRIBUTED})
