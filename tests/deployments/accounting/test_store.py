"""The files of facts and bills: hours, limits, ends of all kinds."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from deployments.accounting.bill import HOUR_NS, Bill, TimeShare, hour_name, rows_by, total_of
from deployments.accounting.facts import (
    NS,
    AttemptUsage,
    Count,
    Fact,
    ReplicaBegun,
    ReplicaReady,
    ReplicasAlive,
    Tariff,
    Watched,
    lines_of,
    ns,
)
from deployments.accounting.store import SETTLE_S, CostFileStore
from deployments.engine_model.cost_file import cost_file, write_cost_file
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from tests.deployments.accounting.replicas import BEGIN, PRICE, imagined

TARIFF = Tariff(BEGIN, "m", "default", "here", "h100", 1, PRICE, "", 2_048, 4.0)
FIRST: list[Fact] = [TARIFF, ReplicaBegun(BEGIN, "r", "m"), ReplicaReady(BEGIN, "r")]


def usage(attempt_id: str, begin_s: float, end_s: float, tenant: str = "a") -> AttemptUsage:
    times = BEGIN + ns(begin_s), BEGIN + ns(end_s)
    return AttemptUsage(attempt_id, "r", "m", tenant, "chat", *times, Count.ENGINE, 100, 0, 10)


def alive(at_s: float) -> list[Fact]:
    at_ns = BEGIN + ns(at_s)
    return [ReplicasAlive(at_ns, ("r",)), Watched(at_ns, "g", {"r": BEGIN})]


def write(store: CostFileStore, at_s: float, *facts: Fact) -> None:
    assert store.append(lines_of(facts), BEGIN + ns(at_s), lambda: lines_of(FIRST))


def settle(store: CostFileStore, hour: int, at_s: float) -> None:
    """As the directory does it."""
    assert store.close_hour(BEGIN + hour * HOUR_NS, BEGIN + ns(at_s), lambda: lines_of(FIRST))
    store.settle(BEGIN + hour * HOUR_NS)


def usd(bill: Bill) -> Fraction:
    return total_of(rows_by(bill.lines, ())).usd


def test_a_bill_before_and_after_it_is_settled(tmp_path: Path) -> None:
    store = CostFileStore(tmp_path)
    write(store, 10, usage("1", 5, 9), usage("1", 5, 9))
    write(store, 3_590, *alive(3_590))
    write(store, 3_700, usage("2", 3_500, 3_650), *alive(3_700))
    now_ns = BEGIN + ns(3_700)
    before = store.bill(until_ns=now_ns)
    assert usd(before) == Fraction(3_700, 3_600) * PRICE
    assert store.due(now_ns) == []
    assert store.due(BEGIN + HOUR_NS + ns(SETTLE_S)) == [BEGIN]
    settle(store, 0, 3_600 + SETTLE_S)
    assert [path.name for path in sorted(tmp_path.glob("*.json*"))] == [
        f"{hour_name(BEGIN)}.json",
        f"{hour_name(BEGIN + HOUR_NS)}.jsonl",
        "totals.json",
    ]
    after = CostFileStore(tmp_path).bill(until_ns=now_ns)
    assert set(after.lines) == set(before.lines)
    assert after.basis == before.basis
    assert usd(store.totals()) == PRICE
    only = store.bill(since_ns=BEGIN + HOUR_NS, until_ns=now_ns)
    assert {line.key.hour_ns for line in only.lines} == {BEGIN + HOUR_NS}


def test_what_breaks_while_an_hour_is_settled_is_done_again(tmp_path: Path) -> None:
    store = CostFileStore(tmp_path)
    write(store, 10, usage("1", 5, 9), *alive(3_600))
    facts = (tmp_path / f"{hour_name(BEGIN)}.jsonl").read_bytes()
    settle(store, 0, 5_000)
    bill, totals = store.bill(until_ns=BEGIN + HOUR_NS), store.totals()
    (tmp_path / f"{hour_name(BEGIN)}.jsonl").write_bytes(facts)  # as if it had ended before it removed them
    assert store.bill(until_ns=BEGIN + HOUR_NS) == bill
    settle(store, 0, 5_010)
    assert (store.bill(until_ns=BEGIN + HOUR_NS), store.totals()) == (bill, totals)


def test_what_comes_after_an_hour_was_settled_counts_when_it_came(tmp_path: Path) -> None:
    store = CostFileStore(tmp_path)
    write(store, 10, *alive(3_600))
    settle(store, 0, 5_000)
    write(store, 5_100, usage("late", 5, 9), *alive(5_100))
    bill = store.bill(until_ns=BEGIN + ns(5_100))
    assert usd(bill) == Fraction(5_100, 3_600) * PRICE
    counted = {line.key.hour_ns: line.amounts for line in bill.lines if line.amounts.requests}
    assert [(hour, one.output_tokens, one.ns) for hour, one in counted.items()] == [(BEGIN + HOUR_NS, 10, 0)]


def test_hours_without_a_directory_are_billed_once_it_is_back(tmp_path: Path) -> None:
    """Replicas ran on for three hours; nobody wrote anything."""
    store = CostFileStore(tmp_path)
    write(store, 10, *alive(20))
    write(store, 3 * 3_600 + 10, ReplicasAlive(BEGIN + ns(3 * 3_600 + 10), ("r",)))
    for hour in (0, 3):
        settle(store, hour, 3 * 3_600 + 20 + hour)
    bill = store.bill(until_ns=BEGIN + 4 * HOUR_NS)
    assert usd(bill) == Fraction(3 * 3_600 + 10, 3_600) * PRICE
    shares = {row.share: row.amounts.ns for row in rows_by(bill.lines, ())}
    assert shares == {TimeShare.IDLE: 20 * NS, TimeShare.UNATTRIBUTED: (3 * 3_600 - 10) * NS}


@pytest.mark.parametrize("torn", [b'["usage","x"', b"\xff\xfe\n", b"{}\n", b"\n"])
def test_lines_that_are_no_facts_are_counted_and_cost_nothing_else(tmp_path: Path, torn: bytes) -> None:
    store = CostFileStore(tmp_path)
    write(store, 10, usage("1", 5, 9))
    with (tmp_path / f"{hour_name(BEGIN)}.jsonl").open("ab") as file:
        file.write(torn)
    after = CostFileStore(tmp_path)  # another directory
    write(after, 20, usage("2", 15, 19), *alive(20))
    bill = after.bill(until_ns=BEGIN + ns(20))
    assert bill.unread == 1
    assert sum(line.amounts.requests for line in bill.lines) == 2
    assert usd(bill) == Fraction(20, 3_600) * PRICE


def test_facts_have_a_limit_by_the_hour(tmp_path: Path) -> None:
    store = CostFileStore(tmp_path, max_fact_bytes=2_000)
    for number in range(100):
        write(store, 10 + number, usage(str(number), 5 + number, 9 + number))
    assert (tmp_path / f"{hour_name(BEGIN)}.jsonl").stat().st_size <= 2_000
    assert store.health.lost_lines > 50
    write(store, 3_700, usage("next", 3_690, 3_699))
    assert store.health.error is None


def test_settled_hours_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.accounting.store.MAX_SETTLED_HOURS", 2)
    store = CostFileStore(tmp_path)
    for hour in range(4):
        write(store, 3_600 * hour + 10, *alive(3_600 * (hour + 1)))
        settle(store, hour, 3_600 * (hour + 1) + SETTLE_S)
    kept = [path.stem for path in sorted(tmp_path.glob("????-*.json"))]
    assert kept == [hour_name(BEGIN + hour * HOUR_NS) for hour in (2, 3)]
    assert usd(store.totals()) == 4 * PRICE, "counters only grow"


def test_a_disk_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "cost").write_text("a file where the folder should be")
    store = CostFileStore(tmp_path / "cost")
    assert not store.append(b"[]\n", BEGIN)
    store.keep_lives(b"")
    assert store.health.error is not None
    assert store.bill(until_ns=BEGIN) == Bill()
    assert store.files() == []


def test_many_facts_are_billed_in_parts_to_the_same_bill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = imagined(11, 300, replicas=7)
    store = CostFileStore(tmp_path)
    store.append(lines_of(cell.facts) + b'["usage","torn', BEGIN + 1)
    whole = store.bill(until_ns=cell.last_ns)
    monkeypatch.setattr("deployments.accounting.store.PART_BYTES", 5_000)
    assert store.bill(until_ns=cell.last_ns) == whole
    assert (usd(whole), whole.unread) == (cell.usd, 1)


def test_a_bill_that_cannot_be_read_is_counted(tmp_path: Path) -> None:
    (tmp_path / f"{hour_name(BEGIN)}.json").write_text("{")
    assert CostFileStore(tmp_path).bill(until_ns=BEGIN + HOUR_NS).unread == 1


def test_the_price_of_work_is_that_of_the_cost_file_as_it_was(tmp_path: Path) -> None:
    given = tmp_path / "costs.json"
    cost = CostModel(line(0.02, 1e-5), line(0.0, 1e-5), plain_attention(2e-8, 1e-10))
    write_cost_file(given, cost_file("m", "an imagined GPU", "roofline", EngineModelLimits(8, 512, 60_000), cost))
    store = CostFileStore(tmp_path / "cost")
    name = store.keep_costs(str(given))
    given.unlink()
    assert store.keep_costs(str(given)) == name
    assert store.keep_costs(str(tmp_path / "none.json")) == ""
    tariff = Tariff(BEGIN, "m", "default", "here", "h100", 1, PRICE, name, 512, 4.0)
    facts = [tariff, *FIRST[1:], usage("1", 5, 9), *alive(20)]
    store.append(lines_of(facts), BEGIN + ns(20))
    bill = store.bill(until_ns=BEGIN + ns(20))
    assert bill.basis == {("m", "default"): "the step model of m on an imagined GPU (roofline)"}
    assert name in dict(store.files())
    (tmp_path / "cost" / name).write_text("{}")
    assert "scheduler's cost" in store.bill(until_ns=BEGIN + ns(20)).basis["m", "default"]


def test_files_are_read_in_parts_by_their_names_alone(tmp_path: Path) -> None:
    store = CostFileStore(tmp_path)
    write(store, 10, usage("1", 5, 9))
    ((name, size),) = store.files()
    assert store.part(name, 0, 1 << 20) == store.part(name, 0, 10) + store.part(name, 10, 1 << 20)
    assert len(store.part(name, 0, 1 << 20)) == size
    assert store.part(name, size, 10) == b""
    (tmp_path / "secret").write_text("a secret")
    for other in ("secret", "../secret", "lives.jsonl", ""):
        with pytest.raises(KeyError):
            store.part(other, 0, 10)


def test_totals_that_cannot_be_read_begin_anew(tmp_path: Path) -> None:
    (tmp_path / "totals.json").write_text(json.dumps({"through": "never"}))
    store = CostFileStore(tmp_path)
    write(store, 10, *alive(3_600))
    settle(store, 0, 5_000)
    assert usd(store.totals()) == PRICE
