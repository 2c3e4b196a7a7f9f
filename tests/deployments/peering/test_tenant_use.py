"""A tenant's limit counts once across cells: what all cells together admit is bounded, whatever the digests do."""

import random
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from deployments.peering.tenant_use import WINDOW_S, UseElsewhere
from deployments.scheduling import RejectCause, TenantPolicy, TenantUse
from deployments.scheduling.policy import TenantLimits, booked_tokens
from deployments.scheduling.request import Job
from tests.deployments.peering.setups import MODEL, make_request

LIMIT, PER_S = 60.0, 1.0
EVER = 1e9


@dataclass
class Cell:
    """One cell's limits of tenant `a`, what it admitted (time, tokens), and what it knows of the others."""

    policy: TenantPolicy
    limits: TenantLimits = field(default_factory=TenantLimits)
    elsewhere: UseElsewhere = field(default_factory=lambda: UseElsewhere(EVER))
    admitted: list[tuple[float, int]] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    epoch: int = 1

    def __post_init__(self) -> None:
        self.limits.configure({"a": self.policy}, 0.0)

    def ask(self, now: float, prompt: int = 1) -> RejectCause | None:
        """A request of the tenant arrives."""
        job = Job(make_request("q", now, prompt=prompt, tenant="a"), 1)
        over = self.limits.reject(job, now)
        if over is not None:
            return over[0]
        self.limits.begin(job)
        self.jobs.append(job)
        self.admitted.append((now, booked_tokens(job)))
        return None

    def hear(self, cells: "list[Cell]", asked_s: float, now: float) -> None:
        """Answers of all others come to questions that were asked then, and are passed on."""
        for number, other in enumerate(cells):
            if other is not self:
                self.elsewhere.heard(str(number), other.epoch, MODEL, other.limits.used(), asked_s)
        self.limits.used_elsewhere(self.elsewhere.news(MODEL, now), now)


def three(**limits: float) -> list[Cell]:
    """Cells that have heard each other's first digests."""
    cells = [Cell(TenantPolicy(**limits)) for _ in range(3)]  # type: ignore[arg-type]
    for cell in cells:
        cell.hear(cells, 0.0, 0.0)
    return cells


Steps = list[tuple[float, int, int, bool]]
"""Seconds since the step before, the cell that is asked, for how many tokens, and whether it hears its peers first."""


def drawn(seed: int) -> Steps:
    """Some minutes of a tenant that asks for several times its limit, in bursts."""
    rng = random.Random(seed)
    return [
        (rng.choice((0.0, rng.uniform(0, 3))), rng.randrange(3), rng.randint(1, 90), rng.random() < 0.2)
        for _ in range(200)
    ]


STEPS = st.integers(0, 1 << 30).map(drawn)


def check_spans(admitted: list[tuple[float, int]], allowed_at_once: float) -> None:
    """In each span from one admission to another, no more than `allowed_at_once` beyond what the limit lets through."""
    admitted.sort()
    for first, (begin_s, _) in enumerate(admitted):
        total = 0
        for at_s, tokens in admitted[first:]:
            total += tokens
            assert total <= allowed_at_once + PER_S * (at_s - begin_s) + 1e-6


@pytest.mark.whole
@given(STEPS, st.floats(0.5, 5))
def test_all_cells_together_admit_no_more_than_the_bound(steps: Steps, period_s: float) -> None:
    """Digests come when the schedule says so, at the latest after `period_s`; those that came are that old at most."""
    cells = three(tokens_per_minute=LIMIT)
    now, heard_s, largest = 0.0, [0.0] * 3, LIMIT
    for passed_s, number, tokens, hears in steps:
        now += passed_s
        for index, cell in enumerate(cells):
            while now - heard_s[index] >= period_s or (hears and index == number):
                heard_s[index] = now if hears and index == number else heard_s[index] + period_s
                cell.hear(cells, heard_s[index], max(heard_s[index], now))
                hears = hears and index != number
        if cells[number].ask(now, tokens) is None:
            largest = max(largest, tokens)
    admitted = [one for cell in cells for one in cell.admitted]
    check_spans(admitted, 3 * largest + 2 * PER_S * period_s)


@pytest.mark.whole
@settings(max_examples=25)
@given(STEPS)
def test_where_all_hear_of_each_admission_at_once_three_cells_are_as_one(steps: Steps) -> None:
    """One bucket, without the cells' factor."""
    cells, alone = three(tokens_per_minute=LIMIT), Cell(TenantPolicy(tokens_per_minute=LIMIT))
    now = 0.0
    for passed_s, number, tokens, _ in steps:
        now += passed_s
        for cell in cells:
            cell.hear(cells, now, now)
        assert cells[number].ask(now, tokens) == alone.ask(now, tokens)
        for cell in cells:
            cell.hear(cells, now, now)


def test_what_was_too_much_is_paid_back() -> None:
    cells = three(tokens_per_minute=LIMIT)
    for cell in cells:
        assert cell.ask(0.0, 60) is None
    for cell in cells:
        cell.hear(cells, 1.0, 1.0)
    for now in range(1, 120):
        assert [cell.ask(float(now), 1) for cell in cells] == [RejectCause.TENANT_TOKENS] * 3
    assert cells[0].ask(121.5, 1) is None


def test_cells_without_digests_have_the_limit_each() -> None:
    """What the bound is compared with."""
    cells = [Cell(TenantPolicy(tokens_per_minute=LIMIT)) for _ in range(3)]
    asked = [cell.ask(float(now), 1) for now in range(1_200) for cell in cells for _ in range(2)]
    assert asked.count(None) == pytest.approx(3 * (60 + 1_200), abs=6)


def test_requests_at_once_count_as_long_as_the_digest_is_fresh() -> None:
    here, there = (Cell(TenantPolicy(max_concurrency=3), elsewhere=UseElsewhere(2.0)) for _ in range(2))
    assert [there.ask(0.0), there.ask(0.0), here.ask(0.0)] == [None] * 3
    here.hear([there, here], 0.5, 0.5)
    assert here.ask(0.5) is RejectCause.TENANT_CONCURRENCY
    here.limits.used_elsewhere(here.elsewhere.news(MODEL, 2.6), 2.6)
    assert here.ask(2.6) is None
    there.limits.end(there.jobs[0])
    here.hear([there, here], 3.0, 3.0)
    assert here.ask(3.0) is RejectCause.TENANT_CONCURRENCY, "two here, one there"


def test_a_peer_that_starts_anew_counts_from_zero() -> None:
    use = UseElsewhere(EVER)
    use.heard("us", 1, MODEL, [TenantUse("a", 5, 500, 2)], 0.0)
    assert use.news(MODEL, 0.0) == (TenantUse("a", 0.0, 0.0, 2),), "the first word says only from where on"
    use.heard("us", 1, MODEL, [TenantUse("a", 7, 650, 1)], 1.0)
    use.heard("us", 2, MODEL, [TenantUse("a", 1, 30, 1)], 2.0)
    assert use.news(MODEL, 2.0) == (TenantUse("a", 3.0, 180.0, 1),)
    assert use.news(MODEL, 2.0) == (TenantUse("a", 0.0, 0.0, 1),), "passed on once"


def test_after_a_partition_the_last_minute_counts() -> None:
    use = UseElsewhere(EVER)
    use.heard("us", 1, MODEL, [], 0.0)
    use.heard("us", 1, MODEL, [TenantUse("a", 600, 6_000, 0)], 10 * WINDOW_S)
    assert use.news(MODEL, 600.0) == (TenantUse("a", 60.0, 600.0, 0),)


def test_models_and_tenants_are_kept_apart() -> None:
    use = UseElsewhere(EVER)
    use.heard("us", 1, MODEL, [], 0.0)
    use.heard("us", 1, "other", [], 0.0)
    use.heard("ap", 1, MODEL, [], 0.0)
    use.heard("us", 1, MODEL, [TenantUse("a", 1, 10, 1), TenantUse("b", 2, 20, 0)], 1.0)
    use.heard("ap", 1, MODEL, [TenantUse("a", 4, 40, 3)], 1.0)
    use.heard("us", 1, "other", [TenantUse("a", 8, 80, 0)], 1.0)
    assert use.news(MODEL, 1.0) == (TenantUse("a", 5.0, 50.0, 4), TenantUse("b", 2.0, 20.0, 0))
    assert use.news("other", 1.0) == (TenantUse("a", 8.0, 80.0, 0),)


def test_a_tenant_without_limits_is_in_no_digest() -> None:
    limits = TenantLimits()
    limits.configure({"a": TenantPolicy(weight=2.0), "b": TenantPolicy(requests_per_minute=9.0)}, 0.0)
    for tenant in ("a", "b", "b"):
        job = Job(make_request(tenant=tenant, prompt=7), 1)
        limits.begin(job)
    assert limits.used() == (TenantUse("b", 2, 14, 2),)
    limits.used_elsewhere((TenantUse("nobody", 1.0, 1.0, 1),), 0.0)
