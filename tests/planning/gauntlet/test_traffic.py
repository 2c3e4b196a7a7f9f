"""A scenario's requests: as many as the load says, of the mix's classes and SLOs; and what a replica is worth of
them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.gauntlet.serving import CHAT, REASONING, STEP_S, LoadCurve, smoothed
from planning.gauntlet.traffic import CHATS, LoadStream, drawn, rate_of, rate_through

UNTIL_S = 600.0


def test_the_load_is_the_knots_and_the_requests_come_at_its_rate() -> None:
    rng = np.random.default_rng(0)
    work, load = drawn(
        CHAT, [LoadStream(CHATS, [(0, 1.0), (200, 1.0), (200, 3.0), (400, 3.0), (500, 0.0)])], UNTIL_S, rng
    )
    assert (load(0.0), load(195.0), load(200.0), load(399.0), load(599.0)) == pytest.approx((1, 1, 3, 3, 0))
    assert load(450.0) == pytest.approx(1.5, abs=0.1)
    expected = load.mean * UNTIL_S * rate_of(CHAT, CHATS)
    assert len(work) == pytest.approx(expected, abs=4 * expected**0.5)
    assert work.arrived_s.max() < 505
    between = ((work.arrived_s >= 200) & (work.arrived_s < 400)).sum()
    assert between == pytest.approx(3 * (work.arrived_s < 200).sum(), rel=0.3)


def test_each_request_has_its_class_and_its_slo() -> None:
    work, _ = drawn(CHAT, [LoadStream(CHATS, [(0, 2.0)])], UNTIL_S, np.random.default_rng(1))
    slos = {(work.traffic_class[index], float(work.ttft_slo_s[index])) for index in range(len(work))}
    assert slos == {("interactive", 2.0), ("document", 10.0)}


def test_two_streams_add_up() -> None:
    streams = [LoadStream(CHATS, [(0, 1.0)]), LoadStream(CHATS.heavier(2), [(0, 0.5)])]
    work, load = drawn(CHAT, streams, UNTIL_S, np.random.default_rng(2))
    assert load.mean == pytest.approx(1.5)
    assert (np.diff(work.arrived_s) >= 0).all()


@pytest.mark.whole
def test_heavier_prompts_are_more_work_and_a_slow_engine_does_less() -> None:
    assert rate_of(CHAT, CHATS.heavier(3)) < 0.8 * rate_of(CHAT, CHATS)
    assert rate_of(REASONING, CHATS) < rate_of(CHAT, CHATS)
    assert 1.2 < rate_of(CHAT, CHATS) < 2.5


@given(st.lists(st.tuples(st.floats(0, 500), st.floats(0, 5)), min_size=1, max_size=8), st.floats(0.1, 5))
def test_the_rate_goes_through_the_knots_and_ends_in_time(knots: list[tuple[float, float]], per_replica: float) -> None:
    knots = sorted((round(at_s), load) for at_s, load in knots)
    rate = rate_through(knots, per_replica, UNTIL_S)
    assert rate.edges_s[0] == 0
    assert rate.edges_s[-1] == UNTIL_S
    assert (np.diff(rate.edges_s) > 0).all()
    assert rate.expected_requests <= 5 * per_replica * UNTIL_S * (1 + 1e-9)


def test_a_smoothed_load_keeps_the_requests_and_the_ends() -> None:
    arrived_s = np.arange(0, UNTIL_S, 0.5)
    load = smoothed(arrived_s, 2.0, UNTIL_S, 60.0)
    np.testing.assert_allclose(load.replicas, 1.0, rtol=0.02)


def test_a_load_beyond_its_ends_is_that_of_the_ends() -> None:
    load = LoadCurve(np.array([1.0, 2.0, 6.0]))
    assert (load(-5.0), load(STEP_S), load(1e6)) == (1.0, 2.0, 6.0)
    assert load.levelled()(0.0) == 3.0
    assert load.plus(load).mean == 6.0
