"""The directory's part in bills: the replicas' lives, what gateways deliver, hours that are settled."""

import time
from fractions import Fraction
from pathlib import Path

from deployments.accounting.bill import HOUR_NS, Bill, Dimension, TimeShare, hour_of, rows_by
from deployments.accounting.facts import (
    FACTS,
    NS,
    AttemptUsage,
    Count,
    ReplicaBegun,
    ReplicaReady,
    ReplicasAlive,
    Tariff,
)
from deployments.accounting.store import BillStore, read_bill
from deployments.cell.departure import DepartureCause, Ended, MemberKind
from deployments.cell.directory import Directory
from deployments.protocol import ReplicaFacts
from deployments.starts.phases import Phase
from deployments.starts.start import StartReport
from deployments.store import FILE_NAME, CellStore
from tests.small_disk import small_disk

TARIFFS = [
    Tariff(1, "m", group, "here", "gpus", 1, Fraction(price), "", 2_048, 4.0)
    for group, price in (("default", 3), ("cheap", 1))
]


def report(replica_id: str, key: str, age_s: float) -> StartReport:
    return StartReport(replica_id, key, "node", Phase.LOAD, 0.1, {Phase.LOAD: age_s})


def facts(replica_id: str, group: str = "default") -> ReplicaFacts:
    return ReplicaFacts(replica_id, "m", "http://x", 1, "node", "generate", 10, 1, 10, 10, group)


def usage(replica_id: str, at_ns: int) -> AttemptUsage:
    return AttemptUsage(f"of-{replica_id}", replica_id, "m", "a", "chat", at_ns - NS, at_ns, Count.ENGINE, 9, 0, 5)


async def deliver(directory: Directory, *usages: AttemptUsage) -> None:
    directory.costs._turned_s = -1e9
    assert await directory.cost_facts([FACTS.encode(one) for one in usages], TARIFFS)


def bill(run_dir: Path) -> Bill:
    return read_bill(run_dir / FILE_NAME)


def seconds(bill: Bill, group: str) -> dict[TimeShare, float]:
    lines = [line for line in bill.lines if line.key.group == group]
    return {row.share: row.amounts.ns / 1e9 for row in rows_by(lines, ())}


async def test_lives_of_replicas_by_their_groups(tmp_path: Path) -> None:
    directory = Directory("secret", run_dir=str(tmp_path))
    await deliver(directory)
    await directory.starting(report("a", "m@cheap", 10.0))
    await directory.starting(report("a", "m@cheap", 12.0))  # it tells again and again
    await directory.started(report("a", "m@cheap", 12.0))
    await directory.register(facts("a", "cheap"))
    await directory.starting(report("b", "m", 5.0))
    await directory.start_failed(report("b", "m", 5.0), "no memory", "")
    await directory.register(facts("c"))  # it was ready before the directory was
    await deliver(directory)
    found = bill(tmp_path)
    assert 9.9 < seconds(found, "cheap")[TimeShare.STARTING] < 12.5
    assert 4.9 < seconds(found, "default")[TimeShare.STARTING] < 7.5
    prices = {line.key.group: line.key.usd_per_hour for line in found.lines}
    assert prices == {"default": 3, "cheap": 1}


async def test_an_end_ends_the_bill(tmp_path: Path) -> None:
    directory = Directory("secret", run_dir=str(tmp_path))
    await directory.started(report("a", "m", 30.0))
    await directory.register(facts("a"))
    await directory.ended(Ended(MemberKind.REPLICA, "a", time.time() - 20.0, DepartureCause.PROCESS_DIED, "m"))
    await directory.ended(Ended(MemberKind.GATEWAY, "a", time.time(), DepartureCause.PROCESS_DIED))
    await deliver(directory)  # it is still listed: the directory forgets it a little later
    await deliver(directory)
    total_s = sum(seconds(bill(tmp_path), "default").values())
    assert 9.5 < total_s < 10.5


async def test_another_directory_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    """A replica that starts, and does not tell the new one of it at once, has not ended."""
    first = Directory("secret", run_dir=str(tmp_path))
    await first.starting(report("a", "m", 30.0))
    await first.started(report("b", "m", 30.0))
    await deliver(first)
    assert first.costs._settling is not None
    await first.costs._settling
    first.store.close()
    second = Directory("secret", run_dir=str(tmp_path))
    assert second.costs.lives.carried(0) == first.costs.lives.carried(0)
    assert await second.cost_facts([FACTS.encode(usage("b", time.time_ns()))], TARIFFS)
    await second.starting(report("a", "m", 30.1))
    await deliver(second)
    found = bill(tmp_path)
    assert sum(line.amounts.requests for line in found.lines) == 1
    assert sum(seconds(found, "default").values()) > 59


async def test_hours_that_are_over_are_settled_once(tmp_path: Path) -> None:
    now_ns = time.time_ns()
    hour_ns = hour_of(now_ns) - 3 * HOUR_NS
    old = [TARIFFS[0], ReplicaBegun(hour_ns, "a", "m"), ReplicaReady(hour_ns, "a"), usage("a", hour_ns + 9 * NS)]
    store = CellStore(tmp_path / FILE_NAME)
    BillStore(store).add([*old, ReplicasAlive(hour_ns + 100 * NS, ("a",))], hour_ns + NS)
    store.close()
    directory = Directory("secret", run_dir=str(tmp_path))
    before = await directory.cost_totals()
    await deliver(directory)
    assert directory.costs._settling is not None
    await directory.costs._settling
    totals = await directory.cost_totals()
    assert before == Bill()
    assert sum(line.amounts.ns for line in totals.lines) == 100 * NS
    by_hour = await directory.cost_bill(hour_ns, hour_ns + HOUR_NS, [Dimension.HOUR])
    assert {(line.key.hour_ns, line.key.tenant) for line in by_hour.lines} == {(hour_ns, "")}
    await deliver(directory)
    await directory.costs._settling
    assert await directory.cost_totals() == totals


async def test_of_hours_with_a_full_disk_the_last_word_of_who_lived_is_kept(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        directory = Directory("secret", run_dir=str(disk.path))
        await deliver(directory)
        await directory.register(facts("a"))
        disk.fill()
        for _ in range(300):
            directory.costs._turned_s = -1e9
            await directory.cost_facts([], TARIFFS)
        disk.free()
        await deliver(directory)
        (count,) = directory.store.rows("select count(*) from facts where kind = 'ReplicasAlive'")
        assert count[0] < 100, "those that had room before it was full, and the last"
        directory.store.close()


async def test_without_a_run_directory_a_bill_lasts_as_long_as_its_directory() -> None:
    directory = Directory("secret")
    await directory.started(report("a", "m", 30.0))
    await deliver(directory, usage("a", time.time_ns()))
    found = await directory.cost_bill(0, None, [])
    assert sum(line.amounts.requests for line in found.lines) == 1
