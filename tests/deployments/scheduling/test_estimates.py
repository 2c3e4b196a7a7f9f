"""What the scheduler learns: output lengths, prefixes, rates, waits. Each against data whose truth is known."""

import heapq
import math
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from deployments.scheduling.drain import work_before
from deployments.scheduling.eta import LaneEta, Outlook, Promise
from deployments.scheduling.outputs import OutputLengths
from deployments.scheduling.prefixes import PrefixIndex
from deployments.scheduling.rate import Meter
from deployments.scheduling.retry import LEAST_S, MOST_S, RetryQueue


def test_output_lengths_are_learned_by_prompt_length() -> None:
    random_source = random.Random(1)
    outputs = OutputLengths()
    assert outputs.expect(100, 40) == (40, 40)
    for _ in range(2_000):
        outputs.observe(100, 0, round(random_source.lognormvariate(4, 0.5)))
        outputs.observe(3_000, 0, 16)
    mean, p90 = outputs.expect(100, None)
    assert mean == pytest.approx(54.6 * 2.718 ** (0.5**2 / 2), rel=0.15)
    assert p90 == pytest.approx(54.6 * 2.718 ** (1.2816 * 0.5), rel=0.2)
    assert outputs.expect(3_000, None) == (16, 16)
    assert outputs.expect(100, 20)[0] <= 20


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=80), st.one_of(st.none(), st.integers(1, 5_000)))
def test_expected_output_never_exceeds_the_clients_bound(lengths: list[int], limit: int | None) -> None:
    outputs = OutputLengths()
    for length in lengths:
        outputs.observe(10, 0, length)
    mean, p90 = outputs.expect(10, limit)
    assert mean >= 0
    if limit is not None:
        assert mean <= limit
        assert p90 <= limit


def test_output_lengths_follow_a_change() -> None:
    outputs = OutputLengths()
    for _ in range(3_000):
        outputs.observe(100, 0, 500)
    for _ in range(3_000):
        outputs.observe(100, 0, 20)
    assert outputs.expect(100, None)[0] < 80


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(1, 12)), max_size=40))
def test_the_longest_known_prefix_is_what_a_scan_would_find(prompts: list[tuple[str, int, int]]) -> None:
    index = PrefixIndex()
    sent: dict[str, set[int]] = {}
    for replica, family, length in prompts:
        prefix = tuple(family * 100 + chunk for chunk in range(length))
        known = {name: sum(chunk in hashes for chunk in prefix) for name, hashes in sent.items()}
        longest, holders = index.longest(prefix)
        assert longest == max(known.values(), default=0)
        assert holders == {name for name, count in known.items() if count == longest > 0}
        assert all(index.known(prefix, name) == count for name, count in known.items())
        index.add(prefix, replica, 1_000)
        sent.setdefault(replica, set()).update(prefix)
    for replica in "abc":
        index.forget(replica)
    assert index.longest((0, 1)) == (0, frozenset())


def test_prefixes_are_bounded_and_keep_the_shared_beginnings() -> None:
    index = PrefixIndex()
    for number in range(100):
        index.add((1, 2, *range(1_000 + 10 * number, 1_008 + 10 * number)), "r0", 50)
    assert index.longest((1, 2, 3)) == (2, frozenset({"r0"}))
    assert len(index._by_replica["r0"]) == len(index._by_hash) == 50


def test_trust_follows_what_the_engine_really_had_cached() -> None:
    index = PrefixIndex()
    for _ in range(500):
        index.observe(100, 40)
    assert index.trust == pytest.approx(0.4, abs=0.02)


def test_coverage_of_the_p95_is_95_percent_though_the_forecast_is_wrong_and_the_traffic_shifts() -> None:
    random_source = random.Random(2)
    eta = LaneEta()
    for number in range(6_000):
        forecast = random_source.uniform(0.05, 5)
        scale = 0.5 if number < 3_000 else 3.0
        promise = eta.promise(Outlook(forecast, math.inf, forecast))
        eta.observe(promise, forecast * scale * random_source.lognormvariate(0, 0.6), False, 0.3 * number)
    assert eta.p95.within / eta.p95.total == pytest.approx(0.95, abs=0.01)
    assert eta.p50.within / eta.p50.total == pytest.approx(0.5, abs=0.03)


@settings(max_examples=20)
@given(st.floats(0.0, 0.9), st.integers(0, 1 << 30))
def test_coverage_holds_where_some_come_late_and_nobody_knows_who(share_late: float, seed: int) -> None:
    """Late ones wait a minute instead of a second; that one is late is known when its latest start has passed, how long it waited much later."""
    random_source = random.Random(seed)
    eta = LaneEta()
    pending: list[tuple[float, int, Promise, float, bool]] = []
    for number in range(4_000):
        now = 0.3 * number
        while pending and pending[0][0] <= now:
            at, _, promise, wait_s, late = heapq.heappop(pending)
            if late and wait_s > 5.0:
                eta.came_late(promise, at)
                heapq.heappush(pending, (at - 5.0 + wait_s, number, promise, -wait_s, late))
            else:
                eta.observe(promise, abs(wait_s), late, at)
        late = random_source.random() < share_late
        wait_s = random_source.uniform(50, 70) if late else min(5.0, random_source.lognormvariate(0, 0.4))
        promise = eta.promise(Outlook(1.0, 5.0, 60.0))
        heapq.heappush(pending, (now + min(5.0, wait_s), number, promise, wait_s, late))
    assert eta.p95.within / eta.p95.total == pytest.approx(0.95, abs=0.03)
    assert eta.p50.within / eta.p50.total == pytest.approx(0.5, abs=0.12)


def test_a_wait_given_up_early_is_censored_and_one_given_up_late_is_a_miss() -> None:
    eta = LaneEta()
    promise = Promise(Outlook(1.0, 5.0, 9.0), 1.0, 2.0, (False, False))
    eta.gave_up(promise, 1.5)
    assert (eta.p95.total, eta.p95.censored) == (0, 1)
    eta.gave_up(promise, 2.5)
    assert (eta.p95.total, eta.p95.within) == (1, 0)


@given(st.floats(0, 1e6), st.floats(0.1, 10), st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.1, 10)), max_size=4))
def test_work_before_is_bounded_by_the_lanes_own_work_and_all_work(own: float, weight: float, others: list[tuple[float, float]]) -> None:
    placed = work_before(own, weight, others)
    assert own <= placed <= own + sum(work for work, _ in others) + 1e-6


def test_only_time_with_a_backlog_counts_for_the_rate() -> None:
    meter = Meter()
    meter.run(True, 0.0)
    for second in range(1, 31):
        meter.add(100.0, float(second))
    meter.run(False, 30.0)
    meter.run(True, 3_000.0)
    meter.add(100.0, 3_001.0)
    assert meter.per_s == pytest.approx(100.0, rel=0.05)


def test_a_storm_of_rejected_callers_comes_back_no_faster_than_the_cluster_serves() -> None:
    queue = RetryQueue()
    returns = sorted(queue.retry_after_s(f"q{number}", 50.0, 1_000.0, 500.0, 0.0) for number in range(1_000))
    assert all(LEAST_S <= wait <= MOST_S for wait in returns)
    assert returns[0] <= 3
    for start in (10, 30, 60, 80):
        within = sum(start <= wait < start + 10 for wait in returns)
        assert within * 50.0 <= 1.35 * 10 * 500.0
    assert queue.retry_after_s("again", 50.0, 0.0, 500.0, 10_000.0) <= 2
