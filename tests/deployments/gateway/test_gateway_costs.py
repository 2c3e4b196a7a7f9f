"""A gateway tells the directory what its requests took, and which replicas it watched; a bill comes of it."""

import asyncio
import time
from dataclasses import replace
from fractions import Fraction

import pytest

from deployments.accounting.bill import Amounts, Bill, BillLine, Dimension, LineKey, TimeShare, rows_by
from deployments.accounting.facts import FACTS, AttemptUsage, Count
from deployments.accounting.store import bill_in
from deployments.gateway.entrance import digest_of
from deployments.gateway.operators import cost_reporter
from deployments.ownership.takeover import Booking
from deployments.protocol import Finished, Usage
from deployments.starts.phases import Phase
from deployments.starts.start import StartReport
from deployments.wire import from_plain
from tests.deployments.gateway.fake_engine import FakeEngine, dying, pieces, waiting
from tests.deployments.gateway.rig import ASK, MakeRig, Rig, until

KEYS = {"red": "red-key", "blue": "blue-key"}
TENANTS = [{"name": name, "keys": [digest_of(key)]} for name, key in KEYS.items()]


async def add_billed(rig: Rig) -> None:
    """An engine whose start the directory has heard of."""
    engine = await FakeEngine().start()
    rig.engines.append(engine)
    await rig.directory.started(report(engine.facts.replica_id, engine.facts.model))
    await rig.directory.register(engine.facts)
    await until(lambda: rig.uses(engine))


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    """A gateway with one engine, which delivers when the test says so."""
    rig = await make_rig(engines=0)
    await add_billed(rig)
    return rig


def bill_of(rig: Rig) -> Bill:
    with rig.directory.store.reading() as file:
        return bill_in(file)


def report(replica_id: str, model: str, age_s: float = 3.0) -> StartReport:
    return StartReport(replica_id, model, "node", Phase.FIRST_TOKEN, 0.1, {Phase.LOAD: age_s})


async def deliver(rig: Rig) -> None:
    rig.directory.costs._turned_s = -1e9
    await rig.gateway._costs._turn(watch=True)


async def bill_a_request(rig: Rig) -> None:
    await rig.ask()
    await rig.last()
    await deliver(rig)


def work_of(rig: Rig) -> BillLine:
    (work,) = [line for line in bill_of(rig).lines if line.key.share is TimeShare.WORK]
    return work


def shares(bill: Bill) -> dict[TimeShare, float]:
    return {row.share: row.amounts.ns / 1e9 for row in rows_by(bill.lines, ())}


async def test_a_request_is_billed_by_the_engines_count(rig: Rig) -> None:
    await bill_a_request(rig)
    done, work = (await rig.last()).usage, work_of(rig)
    assert done is not None
    assert (work.amounts.prompt_tokens, work.amounts.output_tokens) == (done.prompt_tokens, done.output_tokens)
    assert (work.amounts.requests, work.key.model, work.key.group) == (1, "demo", "default")
    found = shares(bill_of(rig))
    assert found[TimeShare.STARTING] >= 3.0
    assert found[TimeShare.IDLE] > 0
    assert work.key.traffic_class == (await rig.last()).traffic_class


async def test_a_client_that_leaves_pays_for_what_it_had(rig: Rig) -> None:
    rig.engines[0].behave = pieces(b"data: 1\n\n", b"data: 2\n\n", asyncio.Event())
    client = await rig.connect({**ASK, "stream": True})
    await client.reader.readuntil(b"data: 2\n\n")
    client.leave()
    await rig.last()
    await deliver(rig)
    work = work_of(rig)
    assert (work.amounts.estimated, work.amounts.requests, work.amounts.output_tokens) == (1, 0, 0)
    assert work.amounts.estimated_prompt_tokens > 0
    assert work.amounts.estimated_output_tokens >= 1
    assert work.amounts.ns > 0


async def test_what_a_dying_replica_cut_is_nobodys(rig: Rig) -> None:
    """The request was placed again, and finished: its second attempt is paid."""
    await add_billed(rig)
    for engine in rig.engines:
        engine.behave = dying(0.05) if engine is rig.engines[0] else engine.behave
    statuses = [(await rig.ask({**ASK, "user": str(number)}))[0] for number in range(4)]
    assert statuses == [200] * 4
    await rig.last(4)
    await deliver(rig)
    rows = rig.directory.store.rows("select kind, body from facts where kind = 'AttemptUsage'")
    usages = [one for one in (FACTS.read(*row) for row in rows) if isinstance(one, AttemptUsage)]
    cut = [one for one in usages if one.count is Count.CUT]
    assert len({one.attempt_id for one in usages}) == len(usages) == 4 + len(cut)
    assert {one.replica_id for one in cut} <= {rig.engines[0].facts.replica_id}
    assert cut
    amounts = [line.amounts for line in bill_of(rig).lines if line.key.share is TimeShare.UNATTRIBUTED]
    assert sum(one.cut for one in amounts) == len(cut)
    assert sum(one.ns for one in amounts) >= 0.05e9


async def test_requests_that_run_are_known_of_before_they_end(rig: Rig) -> None:
    """If the gateway died now, their time would be unattributed, not idle."""
    release = asyncio.Event()
    rig.engines[0].behave = waiting(release)
    asking = asyncio.create_task(rig.ask())
    await until(lambda: list(rig.service.closing.running()))
    await asyncio.sleep(0.2)
    await deliver(rig)
    assert shares(bill_of(rig)).get(TimeShare.UNATTRIBUTED, 0) >= 0.2
    release.set()
    await asking
    await rig.last()
    await deliver(rig)
    found = shares(bill_of(rig))
    assert found[TimeShare.WORK] >= 0.2
    assert found.get(TimeShare.UNATTRIBUTED, 0) < 0.1


async def test_what_the_directory_does_not_take_is_delivered_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.ask()
    await rig.last()
    bills = rig.directory.costs.bills
    monkeypatch.setattr(bills, "add", lambda *given: False)  # its disk is full
    await deliver(rig)
    assert rig.gateway._costs._waiting
    monkeypatch.undo()
    await deliver(rig)
    assert not rig.gateway._costs._waiting
    assert sum(line.amounts.requests for line in bill_of(rig).lines) == 1


async def test_beyond_its_limit_the_oldest_facts_are_lost_and_said_to_be(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_reporter, "MAX_BYTES", 500)
    monkeypatch.setattr(rig.directory.costs.bills, "add", lambda *given: False)
    for _ in range(5):
        await rig.ask()
    await rig.last(5)
    await deliver(rig)
    costs = rig.gateway._costs
    assert costs._bytes <= 500
    assert costs._health.lost_lines > 0
    assert rig.gateway._logs.failing() == [costs._health]


async def test_requests_of_another_gateway_that_a_replica_dropped_are_told_of(rig: Rig) -> None:
    booking = Booking("other", "id", 1, "red", 90, 5, 2, 90, 190, 5, 0)
    end = Finished("id-1", 499, Usage(0, 0, 0, 0, 0, 0.0, 0.0, 0.0), None, 0.5, booking.encode())
    ours = replace(booking, gateway_id=rig.gateway.gateway_id).encode()
    own = Finished("id-2", 499, Usage(0, 0, 0, 0, 0, 0.0, 0.0, 0.0), None, 0.5, ours)
    for message in (end, own, Finished("id-3", 499, Usage(0, 0, 0, 0, 0, 0.0, 0.0, 0.0), None, 0.5, "no booking")):
        rig.gateway._costs.finished((rig.engines[0].facts, message, time.time_ns()))
    await deliver(rig)
    amounts = [line.amounts for line in bill_of(rig).lines if line.key.share is TimeShare.UNATTRIBUTED]
    assert [(one.cut, one.estimated_prompt_tokens) for one in amounts if one.cut] == [(1, 180)]


async def test_what_a_dead_gateway_did_not_report_is_listed_apart(rig: Rig) -> None:
    """The engine's counts are known here, too; the tenant is not. Own requests are reported as before."""
    await rig.ask()
    await rig.last()
    other = Finished("id-1", 200, Usage(70, 30, 20, 0, 1, 0.1, 0.4, 0.0), 0.1, 0.5)
    rig.gateway._costs.finished((rig.engines[0].facts, other, time.time_ns()))
    await deliver(rig)
    assert sum(line.amounts.cut for line in bill_of(rig).lines) == 0
    rig.gateway._costs.died(["other"])
    await deliver(rig)
    amounts = [line.amounts for line in bill_of(rig).lines]
    assert (sum(one.cut for one in amounts), sum(one.requests for one in amounts)) == (1, 1)
    assert (
        sum(one.estimated_prompt_tokens for one in amounts),
        sum(one.estimated_output_tokens for one in amounts),
    ) == (70, 20)
    rig.gateway._costs.died(["other"])
    await deliver(rig)
    assert sum(line.amounts.cut for line in bill_of(rig).lines) == 1
    after = Finished("id-2", 200, Usage(70, 30, 20, 0, 1, 0.1, 0.4, 0.0), 0.1, 0.5)
    rig.gateway._costs.finished((rig.engines[0].facts, after, time.time_ns()))
    await deliver(rig)
    assert sum(line.amounts.cut for line in bill_of(rig).lines) == 2, "the engine ended it a moment later"


async def test_a_tenant_pays_for_its_own(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0, tenants=TENANTS)
    await rig.add(FakeEngine())
    await rig.directory.started(report(rig.engines[0].facts.replica_id, "demo"))
    for _ in range(3):
        await rig.ask(headers={"authorization": f"Bearer {KEYS['red']}"})
    await rig.last(3)
    await deliver(rig)
    rows = rows_by(bill_of(rig).lines, [Dimension.TENANT])
    assert {row.labels[0]: row.amounts.requests for row in rows if row.share is TimeShare.WORK} == {"red": 3}


async def test_the_page_has_the_bill(rig: Rig) -> None:
    await bill_a_request(rig)
    assert (await rig.get("/raylane/cost", authorization=""))[0] == 401
    status, body = await rig.get("/raylane/cost?by=tenant")
    assert status == 200
    found = from_plain(body, Bill)
    assert sum(line.amounts.requests for line in found.lines) == 1
    assert {line.key.hour_ns for line in found.lines} == {0}
    _, body = await rig.get("/raylane/cost?until_ns=3600")
    assert from_plain(body, Bill).lines == ()
    for query, named in (("since_ns=-1", "since_ns"), ("by=tenanthour", "by"), ("since=1h", "since")):
        status, body = await rig.get(f"/raylane/cost?{query}")
        assert (status, body["error"]["param"]) == (400, named)


async def test_settled_hours_are_metrics(rig: Rig) -> None:
    await bill_a_request(rig)
    rig.gateway._cost_totals.bill = bill_of(rig)
    lines = [line for line in (await rig.page("/metrics")).splitlines() if line.startswith("raylane_cost_")]
    assert any('share="idle"' in line and "replica_seconds" in line for line in lines)
    assert any('kind="output"' in line and 'share="work"' in line and not line.endswith(" 0.0") for line in lines)


async def test_a_tenant_keeps_its_label_as_another_comes(rig: Rig) -> None:
    key = LineKey(0, "here", "demo", "", TimeShare.WORK, "", "interactive", Fraction(1))
    seen = []
    for first in (5, 0):
        keys = [replace(key, tenant=f"t{number:03}") for number in range(first, 105)]
        rig.gateway._cost_totals.bill = Bill(tuple(BillLine(one, Amounts(1)) for one in keys))
        seen.append({labels.partition('tenant="')[2][:4] for labels in await rig.samples("raylane_cost_usd_total")})
    assert seen == [{f"t{number:03}" for number in range(5, 105)}, {*seen[0], "othe"}]
