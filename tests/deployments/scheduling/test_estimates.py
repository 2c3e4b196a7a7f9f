"""What the scheduler learns: output lengths, prefixes, rates, waits. Each against data whose truth is known."""

import heapq
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from deployments.scheduling.eta import LaneEta, Outlook, WaitEstimate, Way
from deployments.scheduling.learned_state import OutputLengths, PrefixIndex
from deployments.scheduling.outlook import Offered, Promotions, Queue, fair_rates, work_before
from deployments.scheduling.request import Job
from tests.deployments.scheduling.world import make_request


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


@pytest.mark.whole
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


@pytest.mark.whole
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(1, 12)), max_size=40))
def test_the_longest_known_prefix_is_what_a_scan_would_find(prompts: list[tuple[str, int, int]]) -> None:
    index = PrefixIndex()
    sent: dict[str, set[int]] = {}
    for replica, family, length in prompts:
        prefix = tuple(family * 100 + chunk for chunk in range(length))
        known = {name: sum(chunk in hashes for chunk in prefix) for name, hashes in sent.items()}
        longest, submitters = index.longest(prefix)
        assert longest == max(known.values(), default=0)
        assert submitters == {name for name, count in known.items() if count == longest > 0}
        assert all(index.known(prefix, name) == count for name, count in known.items())
        index.add(prefix, replica, 1_000)
        sent.setdefault(replica, set()).update(prefix)
    for replica in "abc":
        index.forget(replica)
    assert index.longest((0, 1)) == (0, frozenset())


def test_coverage_of_the_p95_is_95_percent_though_the_forecast_is_wrong_and_the_traffic_shifts() -> None:
    random_source = random.Random(2)
    eta = LaneEta()
    for number in range(6_000):
        forecast = random_source.uniform(0.05, 5)
        scale = 0.5 if number < 3_000 else 3.0
        wait_estimate = eta.wait_estimate(Outlook(forecast))
        eta.observe(wait_estimate, forecast * scale * random_source.lognormvariate(0, 0.6), Way.TURN, 0.3 * number)
    assert eta.p95.within / eta.p95.total == pytest.approx(0.95, abs=0.01)
    assert eta.p50.within / eta.p50.total == pytest.approx(0.5, abs=0.03)


@settings(max_examples=20)
@given(st.floats(0.0, 0.9), st.integers(0, 1 << 30))
@pytest.mark.whole
def test_coverage_holds_where_some_are_promoted_and_nobody_knows_who(share: float, seed: int) -> None:
    """The promoted wait a minute instead of a second; that one is promoted is known when its time has come."""
    random_source = random.Random(seed)
    eta = LaneEta()
    pending: list[tuple[float, int, WaitEstimate, float, Way]] = []
    for number in range(4_000):
        now = 0.3 * number
        while pending and pending[0][0] <= now:
            at, _, wait_estimate, wait_s, way = heapq.heappop(pending)
            if way is Way.PROMOTED and wait_s > 0:
                eta.promoted(wait_estimate, at)
                heapq.heappush(pending, (at - 50.0 + wait_s, number, wait_estimate, -wait_s, way))
            else:
                eta.observe(wait_estimate, abs(wait_s), way, at)
        way = Way.PROMOTED if random_source.random() < share else Way.TURN
        promoted = way is Way.PROMOTED
        wait_s = random_source.uniform(50, 70) if promoted else min(5.0, random_source.lognormvariate(0, 0.4))
        wait_estimate = eta.wait_estimate(Outlook(1.0, 50.0, 10.0))
        heapq.heappush(pending, (now + (50.0 if promoted else wait_s), number, wait_estimate, wait_s, way))
    assert eta.p95.within / eta.p95.total == pytest.approx(0.95, abs=0.04)
    assert eta.p50.within / eta.p50.total == pytest.approx(0.5, abs=0.12)


@given(st.floats(0, 1e6), st.floats(0.1, 10), st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.1, 10)), max_size=4))
def test_work_before_is_bounded_by_the_lanes_own_work_and_all_work(
    own: float, weight: float, others: list[tuple[float, float]]
) -> None:
    placed = work_before(own, weight, others)
    assert own <= placed <= own + sum(work for work, _ in others) + 1e-6


@given(st.floats(0.1, 1e4), st.lists(st.tuples(st.floats(0, 1e4), st.floats(0.01, 10)), min_size=1, max_size=5))
def test_fair_rates_share_all_that_is_asked_for_and_favour_nobody(
    rate: float, flows: list[tuple[float, float]]
) -> None:
    given_rates = fair_rates(rate, flows)
    assert sum(given_rates) == pytest.approx(min(rate, sum(offered for offered, _ in flows)), abs=1e-6)
    level = max(got / weight for got, (_, weight) in zip(given_rates, flows, strict=True))
    for got, (offered, weight) in zip(given_rates, flows, strict=True):
        assert got <= offered + 1e-9
        assert got == pytest.approx(offered) or got / weight >= level - 1e-6 * max(1.0, level)


def waiting_job(name: str, cost: float) -> Job:
    """A job that waits for its promotion."""
    job = Job(make_request(name, 1, 1), 0)
    job.cost = cost
    return job


def test_a_wave_of_promotions_is_seen_before_it_comes() -> None:
    """600 of work wait in a lane that gets no more than arrives there, and are promoted 40 s later."""
    promotions = Promotions(48.0)
    lanes, nobody = (Offered(0, 50.0, 0.5, 48.0), Offered(1, 40.0, 0.4, 48.0)), Queue(0.0, 0.1)
    before = promotions.queue(48.0, 100.0, lanes, nobody, 0.0, ask_only=True)
    jobs = [waiting_job(str(number), 100.0) for number in range(6)]
    for job in jobs:
        promotions.add(job, 40.5)
    seen = promotions.queue(48.0, 100.0, lanes, nobody, 0.0, ask_only=True)
    assert seen.work_per_s == pytest.approx(100 * 0.1 / 1.0)
    spare = 40 * 10.0  # what the lanes' arrivals leave until then, and the promoted after it
    assert (before.work, seen.work) == (0.0, pytest.approx(600 - spare - 9 * 10.0))  # in eight seconds and a slice
    for job in jobs[:3]:
        promotions.left(job)
    fewer = promotions.queue(48.0, 100.0, lanes, nobody, 0.0, ask_only=True)
    assert fewer.work == pytest.approx(0.0)


def test_looking_at_the_promoted_changes_no_decision() -> None:
    promotions, lanes = Promotions(48.0), (Offered(0, 0.0, 0.9, 48.0),)
    promotions.queue(48.0, 10.0, lanes, Queue(50.0, 0.1), 0.0, ask_only=True)
    assert promotions.known(48.0, 0.1) is None
    found = promotions.queue(48.0, 10.0, lanes, Queue(1_000.0, 0.1), 0.1, ask_only=False)
    assert promotions.known(48.0, 0.5) is found
    assert promotions.known(48.0, 0.6) is None, "it is half a second old"
    assert promotions.known(48.0, 0.7) is None
    assert promotions.known(48.0, 0.0) is None, "it is of a later time"
