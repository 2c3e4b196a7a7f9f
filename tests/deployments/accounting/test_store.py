"""Facts and bills in the cell's store: hours, limits, ends of all kinds."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from deployments.accounting.bill import HOUR_NS, Bill, Dimension, TimeShare, rows_by, total_of
from deployments.accounting.facts import (
    NS,
    AttemptUsage,
    Count,
    ExternalUsage,
    Fact,
    ReplicaBegun,
    ReplicaReady,
    ReplicasAlive,
    Tariff,
    Watched,
    ns,
)
from deployments.accounting.store import SETTLE_S, BillStore, bill_in, totals_in
from deployments.engine_model.cost_file import cost_file, write_cost_file
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.store import CellStore
from tests.deployments.accounting.replicas import BEGIN, PRICE, imagined

TARIFF = Tariff(BEGIN, "m", "default", "here", "h100", 1, PRICE, "", 2_048, 4.0)
FIRST: list[Fact] = [TARIFF, ReplicaBegun(BEGIN, "r", "m"), ReplicaReady(BEGIN, "r")]


def usage(attempt_id: str, begin_s: float, end_s: float, tenant: str = "a") -> AttemptUsage:
    times = BEGIN + ns(begin_s), BEGIN + ns(end_s)
    return AttemptUsage(attempt_id, "r", "m", tenant, "chat", *times, Count.ENGINE, 100, 0, 10)


def alive(at_s: float) -> list[Fact]:
    at_ns = BEGIN + ns(at_s)
    return [ReplicasAlive(at_ns, ("r",)), Watched(at_ns, "g", {"r": BEGIN})]


@pytest.fixture
def bills(tmp_path: Path) -> Iterator[BillStore]:
    store = CellStore(tmp_path / "cell.sqlite")
    yield BillStore(store)
    store.close()


def write(bills: BillStore, at_s: float, *facts: Fact) -> None:
    if not bills.store.rows("select number from facts"):
        facts = (*FIRST, *facts)
    assert bills.add(facts, BEGIN + ns(at_s))


def settle(bills: BillStore, hour: int) -> None:
    """As the directory does it."""
    hour_ns = BEGIN + hour * HOUR_NS
    bills.close_hour(hour_ns)
    bills.settle(hour_ns, bills.computed(hour_ns), FIRST)
    while bills.forget(hour_ns):
        pass


def bill_until(bills: BillStore, until_s: float, since_s: float | None = None) -> Bill:
    with bills.store.reading() as file:
        return bill_in(file, 0 if since_s is None else BEGIN + ns(since_s), BEGIN + ns(until_s))


def totals(bills: BillStore) -> Bill:
    with bills.store.reading() as file:
        return totals_in(file)


def usd(bill: Bill) -> Fraction:
    return total_of(rows_by(bill.lines, ())).usd


def test_a_bill_before_and_after_it_is_settled(bills: BillStore) -> None:
    write(bills, 10, usage("1", 5, 9), usage("1", 5, 9))
    write(bills, 3_590, *alive(3_590))
    write(bills, 3_700, usage("2", 3_500, 3_650), *alive(3_700))
    before = bill_until(bills, 3_700)
    assert usd(before) == Fraction(3_700, 3_600) * PRICE
    assert bills.due(BEGIN + ns(3_700)) == []
    assert bills.due(BEGIN + HOUR_NS + ns(SETTLE_S)) == [BEGIN]
    settle(bills, 0)
    after = bill_until(bills, 3_700)
    assert set(after.lines) == set(before.lines)
    assert after.basis == before.basis
    assert usd(totals(bills)) == PRICE
    only = bill_until(bills, 3_700, since_s=3_600)
    assert {line.key.hour_ns for line in only.lines} == {BEGIN + HOUR_NS}


@pytest.mark.parametrize("by", [(), (Dimension.TENANT,), (Dimension.HOUR, Dimension.CLASS), tuple(Dimension)])
def test_lines_are_summed_up_over_what_is_not_asked_for(bills: BillStore, by: tuple[Dimension, ...]) -> None:
    cell = imagined(11, 300, replicas=7)
    bills.add(cell.facts, BEGIN + 1)
    settle(bills, 0)
    with bills.store.reading() as file:
        whole, short = bill_in(file, 0, cell.last_ns), bill_in(file, 0, cell.last_ns, by)
    assert rows_by(short.lines, by) == rows_by(whole.lines, by)
    assert len(short.lines) <= len(whole.lines)


@pytest.mark.parametrize("ahead_s", [0.3, 4_000.0, 90_000.0])
def test_what_ends_by_another_clock_after_the_hour_of_its_report_counts_once(bills: BillStore, ahead_s: float) -> None:
    """A gateway's clock is ahead of the directory's."""
    end_s = 3_600 + ahead_s
    spent = ExternalUsage(BEGIN + ns(end_s), "2", "m", "a", "chat", "here", False, 7, 5, 30, 20)
    write(bills, 3_599.8, usage("1", end_s - 4, end_s), spent, *alive(3_599.8))
    for hour in range(4):
        write(bills, 3_600 * hour + 3_700, *alive(3_600 * hour + 3_700))
        settle(bills, hour)
        bill = bill_until(bills, 200_000)
        assert sum(line.amounts.requests for line in bill.lines) == 2
        assert sum(line.amounts.external_in + line.amounts.external_out for line in bill.lines) == 50
    assert sum(line.amounts.late for line in bill.lines) == (2 if ahead_s > 3_600 else 0)


def test_hours_without_a_directory_are_billed_once_it_is_back(bills: BillStore) -> None:
    """Replicas ran on for three hours; nobody wrote anything."""
    write(bills, 10, *alive(20))
    write(bills, 3 * 3_600 + 10, ReplicasAlive(BEGIN + ns(3 * 3_600 + 10), ("r",)))
    for hour in (0, 3):
        settle(bills, hour)
    bill = bill_until(bills, 4 * 3_600)
    assert usd(bill) == Fraction(3 * 3_600 + 10, 3_600) * PRICE
    shares = {row.share: row.amounts.ns for row in rows_by(bill.lines, ())}
    assert shares == {TimeShare.IDLE: 20 * NS, TimeShare.UNATTRIBUTED: (3 * 3_600 - 10) * NS}


def test_what_is_no_fact_is_counted_and_costs_nothing_else(bills: BillStore) -> None:
    assert bills.add([b"torn", *FIRST, usage("1", 5, 9), *alive(20)], BEGIN + ns(20))
    assert bills.store.health.lost_lines == 1
    bills.store.write(lambda file: file.execute("update facts set body = x'c1' where kind = 'Watched'"))
    bill = bill_until(bills, 20)
    assert (bill.unread, usd(bill)) == (1, Fraction(20, 3_600) * PRICE)
    settle(bills, 0)
    assert bills.store.health.lost_lines == 2, "a settled hour does not tell of it any more"


def test_facts_have_a_limit_by_the_hour(bills: BillStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.accounting.store.MAX_FACTS", 20)
    for number in range(100):
        write(bills, 10 + number, usage(str(number), 5 + number, 9 + number))
    assert bills.store.rows("select count(*) from facts") == [(20,)]
    assert bills.store.health.lost_lines == 100 + len(FIRST) - 20
    write(bills, 3_700, usage("next", 3_690, 3_699))
    assert bills.store.health.error is None


def test_the_facts_of_a_settled_hour_go_a_few_at_a_time_and_count_no_more(
    bills: BillStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the directory ends meanwhile: the next one deletes the rest."""
    monkeypatch.setattr("deployments.accounting.store.FORGOTTEN_AT_ONCE", 7)
    write(bills, 10, *(usage(str(number), 5, 9) for number in range(10)), ReplicaBegun(BEGIN, "s", "m"))
    write(bills, 3_650, *alive(3_650))
    bills.close_hour(BEGIN)
    bills.settle(BEGIN, bills.computed(BEGIN), FIRST)
    settled, left = bill_until(bills, 3_700), []
    while bills.due(BEGIN + HOUR_NS + ns(SETTLE_S)) == [BEGIN]:
        assert bill_until(bills, 3_700) == settled
        assert bills.known() == [alive(3_650)[0], *FIRST], "what ended is not carried, nor comes back"
        left += bills.store.rows("select count(*) from facts where hour_ns = ?", BEGIN)
        bills.forget(BEGIN)
    assert left == [(14,), (7,)]
    assert bill_until(bills, 3_700) == settled


@pytest.mark.parametrize("limit", ["MAX_HOURS", "MAX_LINES"])
def test_settled_hours_have_a_limit(bills: BillStore, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(f"deployments.accounting.store.{limit}", 2)
    for hour in range(4):
        write(bills, 3_600 * hour + 10, *alive(3_600 * (hour + 1)))
        settle(bills, hour)
    kept = sorted({line.key.hour_ns for line in bill_until(bills, 4 * 3_600).lines})
    assert kept == [BEGIN + hour * HOUR_NS for hour in (2, 3)]
    assert usd(totals(bills)) == 4 * PRICE, "counters only grow"


def test_many_facts_are_billed_in_parts_to_the_same_bill(bills: BillStore, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = imagined(11, 300, replicas=7)
    bills.add(cell.facts, BEGIN + 1)
    with bills.store.reading() as file:
        whole = bill_in(file, until_ns=cell.last_ns)
        monkeypatch.setattr("deployments.accounting.store.PART_FACTS", 50)
        assert bill_in(file, until_ns=cell.last_ns) == whole
    assert usd(whole) == cell.usd


def test_the_price_of_work_is_that_of_the_cost_file_as_it_was(bills: BillStore, tmp_path: Path) -> None:
    given = tmp_path / "costs.json"
    cost = CostModel(line(0.02, 1e-5), line(0.0, 1e-5), plain_attention(2e-8, 1e-10))
    write_cost_file(given, cost_file("m", "an imagined GPU", "roofline", EngineModelLimits(8, 512, 60_000), cost))
    name = bills.keep_costs(str(given))
    for one in tmp_path.glob("cell.sqlite*"):
        one.unlink()
    assert bills.keep_costs(str(given)) == name
    given.unlink()
    assert bills.keep_costs(str(given)) == name
    assert bills.keep_costs(str(tmp_path / "none.json")) == ""
    tariff = Tariff(BEGIN, "m", "default", "here", "h100", 1, PRICE, name, 512, 4.0)
    bills.add([tariff, *FIRST[1:], usage("1", 5, 9), *alive(20)], BEGIN + ns(20))
    assert bill_until(bills, 20).basis == {"m@default": "the step model of m on an imagined GPU (roofline)"}
    bills.store.write(lambda file: file.execute("update costs set body = '{}'"))
    assert "scheduler's cost" in bill_until(bills, 20).basis["m@default"]
