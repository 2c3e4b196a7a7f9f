"""Each nanosecond of each replica is on one line, and each token that an engine counted."""

import random
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from deployments.accounting.bill import HOUR_NS, Amounts, Bill, Dimension, TimeShare, rounded, rows_by, total_of
from deployments.accounting.billing import bill_of
from deployments.accounting.facts import (
    NS,
    AttemptUsage,
    Count,
    Fact,
    ReplicaBegun,
    ReplicaGone,
    ReplicaReady,
    ReplicasAlive,
    Tariff,
    Watched,
)
from deployments.accounting.gathering import gathered
from deployments.accounting.pricing import Pricing, StepPricing, TokenPricing
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from tests.deployments.accounting.replicas import BEGIN, PRICE, TARIFF, ImaginedCell, imagined

STEPS = StepPricing(CostModel(line(0.005, 2e-5), line(0.0, 1e-5), plain_attention(2e-8, 1e-10)), 2_048, "a test")


def by_steps(tariff: Tariff) -> Pricing:
    return STEPS


SERVING: tuple[Fact, ...] = (TARIFF, ReplicaBegun(BEGIN, "r", "m"), ReplicaReady(BEGIN, "r"))
"""A replica that serves from the beginning of the hour."""


def billed(facts: Iterable[Fact], hours: Iterable[int] = (BEGIN,)) -> Bill:
    return bill_of(gathered((None, fact) for fact in facts), hours, by_steps)


def sums(bill: Bill, *by: Dimension) -> dict[tuple[tuple[str, ...], TimeShare], Amounts]:
    return {(row.labels, row.share): row.amounts for row in rows_by(bill.lines, by)}


def shares(bill: Bill) -> dict[TimeShare, int]:
    return {share: amounts.ns for (_, share), amounts in sums(bill).items()}


@pytest.mark.whole
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1 << 30))
def test_ten_thousand_requests_add_up(seed: int) -> None:
    _check(imagined(seed, 10_000))


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1 << 30))
def test_all_lines_add_up_to_replica_seconds_times_price(seed: int) -> None:
    _check(imagined(seed, 60))


def _check(cell: ImaginedCell) -> None:
    bill = billed(cell.facts, cell.hours)
    for by in ((), (Dimension.TENANT,), (Dimension.HOUR, Dimension.CLASS), tuple(Dimension)):
        total = total_of(rows_by(bill.lines, by))
        assert total.usd == cell.usd
        assert total.shown == rounded([cell.usd])[0]
        assert total.amounts.ns == cell.occupied_ns
    found = sums(bill, Dimension.TENANT)
    counted = {key[0][0]: (one.prompt_tokens, one.output_tokens) for key, one in found.items() if key[0][0]}
    assert counted == cell.tokens
    whole = total_of(rows_by(bill.lines, ())).amounts
    assert (whole.cut, whole.estimated) == (cell.cut, cell.estimated)
    assert (shares(bill).get(TimeShare.STARTING, 0), shares(bill).get(TimeShare.IDLE, 0)) == (
        cell.starting_ns,
        cell.idle_ns,
    )


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 1 << 30))
def test_the_order_and_the_number_of_deliveries_change_nothing(seed: int) -> None:
    cell, rng = imagined(seed, 60), random.Random(seed)
    again = [*cell.facts, *rng.sample(cell.facts, len(cell.facts) // 2)]
    rng.shuffle(again)
    assert billed(again, cell.hours) == billed(cell.facts, cell.hours)


def test_a_tenant_that_sends_nothing_pays_nothing() -> None:
    cell = imagined(3, 200, tenants=("a", "b"))
    bill = billed(cell.facts, cell.hours)
    assert {line.key.tenant for line in bill.lines if line.key.share is TimeShare.WORK} == {"a", "b"}
    assert {line.key.tenant for line in bill.lines if line.key.share is not TimeShare.WORK} == {""}


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(5))
def test_equal_requests_pay_the_same_and_ten_fold_prompts_what_the_model_says(seed: int) -> None:
    """Requests of three tenants come mixed by chance."""
    rng = random.Random(seed)
    lengths = {"one": 200, "other": 200, "ten": 2_000}
    facts: list[Fact] = [*SERVING, ReplicaGone(BEGIN + HOUR_NS, "r")]
    for number in range(3_000):
        tenant = ("one", "other", "ten")[number % 3]
        begin = BEGIN + rng.randrange(HOUR_NS - 20 * NS)
        facts.append(_usage(str(number), begin, begin + rng.randrange(NS, 20 * NS), tenant, lengths[tenant], 100))
    bill = billed(facts)
    paid = {row.labels[0]: row for row in rows_by(bill.lines, [Dimension.TENANT]) if row.share is TimeShare.WORK}
    assert float(paid["one"].usd / paid["other"].usd) == pytest.approx(1, rel=0.02)
    batch = 3_000 * 10.5 / 3_600
    works = {
        tenant: STEPS.work(_usage("", 0, 1, tenant, lengths[tenant], 100), batch, 900) for tenant in ("one", "ten")
    }
    says = (works["ten"].prefill + works["ten"].decode) / (works["one"].prefill + works["one"].decode)
    assert says > 1.5
    assert float(paid["ten"].usd / paid["one"].usd) == pytest.approx(says, rel=0.03)


def test_what_ran_over_an_hours_end_is_in_both_hours_and_its_tokens_in_the_second() -> None:
    end = BEGIN + HOUR_NS
    facts = [
        *SERVING,
        _usage("1", end - 30 * NS, end + 10 * NS, "a", 100, 50),
        ReplicaGone(end + 10 * NS, "r"),
    ]
    bill = billed(facts, [BEGIN, end])
    work = {line.key.hour_ns: line.amounts for line in bill.lines if line.key.share is TimeShare.WORK}
    assert (work[BEGIN].ns, work[BEGIN].output_tokens) == (30 * NS, 0)
    assert (work[end].ns, work[end].output_tokens) == (10 * NS, 50)


def test_requests_of_a_gateway_that_died_are_unattributed() -> None:
    """It had reported since when it had requests there, and nothing of them afterwards; the other gateway saw the
    replica."""
    facts = [
        *SERVING,
        Watched(BEGIN + 50 * NS, "dead", {"r": BEGIN}, {"r": BEGIN + 20 * NS}),
        Watched(BEGIN + 100 * NS, "alive", {"r": BEGIN}),
        _usage("1", BEGIN + 40 * NS, BEGIN + 60 * NS, "a", 100, 50),
        ReplicaGone(BEGIN + 100 * NS, "r"),
    ]
    bill = billed(facts)
    assert shares(bill) == {TimeShare.WORK: 20 * NS, TimeShare.IDLE: 60 * NS, TimeShare.UNATTRIBUTED: 20 * NS}


def test_nobody_pays_for_what_was_cut_and_two_words_on_it_count_once() -> None:
    """Another gateway tells of it first, and knows less: that it was cut."""
    reported = _usage("1", BEGIN, BEGIN + 10 * NS, "a", 100, 50)
    cut = AttemptUsage("1", "r", "m", "a", "", BEGIN, BEGIN + 10 * NS, Count.CUT, 90, 0, 0)
    facts = [*SERVING, ReplicaGone(BEGIN + 10 * NS, "r")]
    for order in ([cut, reported], [reported, cut]):
        bill = billed([*facts, *order])
        assert shares(bill) == {TimeShare.WORK: 10 * NS}
    bill = billed([*facts, cut])
    assert shares(bill) == {TimeShare.UNATTRIBUTED: 10 * NS}
    (line,) = bill.lines
    assert (line.amounts.cut, line.amounts.estimated_prompt_tokens, line.amounts.prompt_tokens) == (1, 90, 0)
    assert line.key.tenant == ""


def test_an_end_is_none_where_a_beginning_follows_and_not_where_a_clock_was_ahead_for_a_moment() -> None:
    facts = [*SERVING, ReplicasAlive(BEGIN + 90 * NS, ("r",)), ReplicaGone(BEGIN + 10 * NS, "r")]
    assert shares(billed(facts)) == {TimeShare.UNATTRIBUTED: 10 * NS}
    again = ReplicaBegun(BEGIN + 20 * NS, "r", "m")
    assert shares(billed([*facts, again])) == {TimeShare.UNATTRIBUTED: 90 * NS}


def test_a_price_counts_for_replicas_that_begin_under_it() -> None:
    late = Tariff(BEGIN + 5 * NS, "m", "default", "here", "h100", 1, Fraction(100), "", 2_048, 4.0)
    facts = [TARIFF, late]
    for name, at in (("early", 0), ("later", 6)):
        facts += [ReplicaBegun(BEGIN + at * NS, name, "m"), ReplicaGone(BEGIN + 10 * NS, name)]  # type: ignore[list-item]
    bill = billed(facts)
    assert {line.key.usd_per_hour: line.amounts.ns for line in bill.lines} == {PRICE: 10 * NS, Fraction(100): 4 * NS}


def test_the_tenant_of_a_handed_over_request_pays_where_the_work_was_done() -> None:
    """With its home's name; all lines still add up."""
    own = _usage("1", BEGIN, BEGIN + 10 * NS, "a", 100, 50)
    guest = replace(_usage("2", BEGIN, BEGIN + 10 * NS, "a", 100, 50), home="far")
    facts: list[Fact] = [*SERVING, own, guest]
    facts += [Watched(BEGIN + 20 * NS, "g", {"r": BEGIN}), ReplicaGone(BEGIN + 20 * NS, "r")]
    bill = billed(facts)
    found = sums(bill, Dimension.TENANT, Dimension.REGION, Dimension.HOME)
    assert {key: amounts.ns for key, amounts in found.items()} == {
        (("a", "here", ""), TimeShare.WORK): 5 * NS,
        (("a", "here", "far"), TimeShare.WORK): 5 * NS,
        (("", "here", ""), TimeShare.IDLE): 10 * NS,
    }
    assert sums(bill, Dimension.TENANT)[("a",), TimeShare.WORK].prompt_tokens == 200
    assert total_of(rows_by(bill.lines, [Dimension.HOME])).usd == Fraction(20 * NS, HOUR_NS) * PRICE


def test_without_a_step_model_the_schedulers_cost_counts() -> None:
    pricing = TokenPricing(4.0)
    work = pricing.work(_usage("1", 0, 1, "a", 100, 50), 3.0, 0.0)
    assert (work.prefill, work.decode) == (100.0, 200.0)
    assert "scheduler's cost" in pricing.basis


def _usage(attempt_id: str, begin: int, end: int, tenant: str, prompt: int, output: int) -> AttemptUsage:
    return AttemptUsage(attempt_id, "r", "m", tenant, "chat", begin, end, Count.ENGINE, prompt, 0, output)
