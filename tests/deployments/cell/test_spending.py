"""What is reserved and spent of a budget is never above it, in whatever order things happen, whoever is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.accounting.bill import TimeShare
from deployments.accounting.facts import FACTS, ExternalUsage
from deployments.accounting.store import bill_in
from deployments.cell.directory import Directory
from deployments.cell.spending import Reservation, Spending
from deployments.wire import decoder, encode

BUDGET = {"a": 100, "b": 40}
ACT = st.one_of(
    st.tuples(st.just("reserve"), st.integers(0, 30), st.sampled_from("ab"), st.integers(0, 60)),
    st.tuples(st.just("settle"), st.integers(0, 30), st.just(""), st.integers(0, 100)),
    st.tuples(st.just("day"), st.integers(-2, 2), st.just(""), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(""), st.just(0)),
)


@given(st.lists(ACT, max_size=200))
def test_reserved_and_spent_is_never_above_the_budget(acts: list[tuple[str, int, str, int]]) -> None:
    spending, day, latest = Spending(), 20_000, 20_000
    granted: dict[str, tuple[int, str, int]] = {}
    """By attempt: the day for which it was granted, the tenant, and the most that it may cost."""
    cost: defaultdict[tuple[int, str], int] = defaultdict(int)
    """What was really granted and not given back, by day and tenant."""
    for act, number, tenant, amount in acts:
        attempt = str(number)
        if act == "reserve":
            wanted = Reservation(tenant, amount)
            found = spending.reserve(attempt, wanted, BUDGET[tenant], day)
            if found is not None:
                if attempt not in spending.reserved or found.day != spending.day:
                    granted[attempt] = found.day, tenant, amount
                    cost[found.day, tenant] += amount
                spending = found
        elif act == "settle" and attempt in granted:
            of_day, whose, most = granted[attempt]
            before, took = spending, most * amount // 100
            spending = spending.settle(attempt, took)
            if attempt in before.reserved:
                cost[of_day, whose] -= most - took
                assert spending.settle(attempt, took) == spending, "a fact that comes twice counts once"
        elif act == "day":
            day = max(latest - 1, day + number)
            latest = max(latest, day)
        elif act == "restart":
            spending = decoder(Spending)(encode(spending))
        for (_, whose), sum_of_day in cost.items():
            assert sum_of_day <= BUDGET[whose]
        for whose, budget in BUDGET.items():
            assert spending.taken(whose) <= budget


def test_a_clock_that_was_a_year_ahead_once_does_not_block_the_year() -> None:
    full = Spending().reserve("q1", Reservation("a", 100), 100, 20_365)
    assert full is not None
    assert full.reserve("q2", Reservation("a", 1), 100, 20_364) is None
    today = full.reserve("q2", Reservation("a", 60), 100, 20_000)
    assert today is not None
    assert (today.day, today.taken("a")) == (20_000, 60)


def usage(attempt_id: str, pico_usd: int) -> bytes:
    return FACTS.encode(ExternalUsage(time.time_ns(), attempt_id, "m", "a", "chat", "here", False, 7, 2, pico_usd, 0))


async def test_a_fact_of_the_bill_settles_a_reservation(tmp_path: Path) -> None:
    directory = Directory("secret", run_dir=str(tmp_path))
    assert await directory.reserve("q1", Reservation("a", 60), 100)
    assert not await directory.reserve("q2", Reservation("a", 60), 100)
    for _ in range(2):  # delivered at least once
        assert await directory.cost_facts([usage("q1", 25)], [])
    directory.store.close()
    again = Directory("secret", run_dir=str(tmp_path))
    assert again.costs.spending.taken("a") == 25
    assert await again.reserve("q2", Reservation("a", 75), 100)
    assert not await again.reserve("q3", Reservation("a", 1), 100), "nobody says what became of q2: it stands"
    with again.store.reading() as file:
        (line,) = bill_in(file).lines
    assert (line.key.share, line.key.tenant, line.key.group) == (TimeShare.EXTERNAL, "a", "external")
    assert (line.amounts.requests, line.amounts.prompt_tokens, line.amounts.external_in) == (1, 7, 25)
    assert line.usd * 10**12 == 25
    again.store.close()


async def test_a_fact_that_is_none_keeps_its_reservation_and_no_other_fact_from_the_bill() -> None:
    directory = Directory("secret")
    for name in ("q1", "q2"):
        assert await directory.reserve(name, Reservation("a", 30), 100)
    assert await directory.cost_facts([usage("q1", -1), usage("q2", 25)], []), "else it would come again for ever"
    assert directory.costs.spending.taken("a") == 30 + 25
    assert directory.store.health.lost_lines == 1


RESERVING = """
import asyncio, sys
from deployments.cell.directory import Directory
from deployments.cell.spending import Reservation

async def main():
    directory = Directory("secret", run_dir=sys.argv[1])
    number = 0
    while await directory.reserve(f"{sys.argv[2]}-{number}", Reservation("a", 1), 1_000_000):
        print(number := number + 1, flush=True)

asyncio.run(main())
"""


@pytest.mark.whole
def test_what_was_granted_is_kept_though_the_directory_is_killed(tmp_path: Path) -> None:
    granted = 0
    for turn in range(3):
        command = [sys.executable, "-c", RESERVING, str(tmp_path), str(turn)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(20 + 7 * turn):
                process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
            granted += 20 + 7 * turn + len(process.stdout.readlines())
    directory = Directory("secret", run_dir=str(tmp_path))
    taken = directory.costs.spending.taken("a")
    assert granted <= taken <= granted + 3, "of each killed one, one grant may have been kept and not heard of"
    assert not asyncio.run(directory.reserve("x", Reservation("a", 1), taken))
    directory.store.close()
