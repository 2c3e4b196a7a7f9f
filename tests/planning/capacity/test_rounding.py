"""Whole replicas from relaxed programs: they keep all rows, and late ones do, too."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planning.capacity.problem import LaneDemand, Limits, PriceKind, Problem, Quota, Site
from planning.capacity.program import Program, build
from planning.capacity.rounding import dive, round_up
from planning.capacity.solver import Solved, relax, solve

_SHARES = {PriceKind.ON_DEMAND: 1.0, PriceKind.SPOT: 0.5, PriceKind.RESERVED: 0.6}


@st.composite
def _problems(draw: st.DrawFn) -> Problem:
    """One model in one or two hours, with two lanes, three regions, two groups, and any limits."""
    regions, rate = "abc", st.floats(0.1, 20.0)
    hours = draw(st.integers(1, 2))
    lanes = tuple(
        LaneDemand(name, "m", {origin: tuple(draw(rate) for _ in range(hours)) for origin in regions}, ttft_s=1.0)
        for name in ("short", "long")
    )
    sites = tuple(
        Site(
            gpu, "m", region, gpu, 1,
            {"short": draw(st.floats(1.0, 9.0)), "long": draw(st.floats(0.5, 3.0))},
            {kind: draw(st.floats(1.0, 5.0)) * share for kind, share in _SHARES.items()},
        )
        for region in regions
        for gpu in ("small", "large")
    )  # fmt: skip
    limits = Limits(
        utilisation=0.8,
        spot_share=draw(st.sampled_from([0.0, 1 / 3, 1.0])),
        failures=draw(st.sampled_from([0, 1])),
        survive_region=draw(st.booleans()),
    )
    quotas = draw(st.sampled_from([(), (Quota("a", "large", 2), Quota("b", "small", 4))]))
    rtt_s = {(one, other): 0.1 for one in regions for other in regions if one != other}
    return Problem(lanes, sites, (1.0,) * hours, quotas, limits, rtt_s)


def _kept(program: Program, found: Solved) -> bool:
    """Whether bounds, whole columns and rows hold."""
    values = np.array(found.values)
    rows = [program.activity(row, values.tolist()) for row in range(len(program.row_lower))]
    return bool(
        program.allows(values.tolist())
        and np.allclose(values[np.array(program.integer)] % 1, 0.0)
        and (np.array(rows) <= np.array(program.row_upper) + 1e-5).all()
        and (np.array(rows) >= np.array(program.row_lower) - 1e-5).all()
    )


@pytest.mark.whole
@given(_problems())
@settings(max_examples=40, deadline=None)
def test_diving_keeps_all_rows_and_bounds_the_optimum_from_both_sides(problem: Problem) -> None:
    program = build(problem)
    best, found = solve(program, gap=0.0, limit_s=20.0), dive(program, lambda: False)
    if found.values is None:
        assert problem.quotas
        return
    assert _kept(program, found)
    assert found.bound <= best.cost + 1e-6
    assert found.cost >= best.bound - 1e-6
    assert found.cost == pytest.approx(float(np.dot(found.values, program.cost)))


@pytest.mark.whole
@given(_problems())
@settings(max_examples=40, deadline=None)
def test_late_diving_rounds_up_and_keeps_all_rows(problem: Problem) -> None:
    program = build(problem)
    found = dive(program, lambda: True)
    if found.values is None:
        assert problem.quotas or problem.limits.failures
        return
    assert _kept(program, found)
    assert found.bound == pytest.approx(relax(program, limit_s=20.0)[0].cost)


def test_a_replica_gives_way_to_a_cheaper_one_that_is_enough() -> None:
    lane = LaneDemand("chat", "m", {"a": (1.5,)})
    sites = tuple(
        Site(gpu, "m", "a", gpu, 1, {"chat": rate}, {PriceKind.ON_DEMAND: usd})
        for gpu, rate, usd in (("large", 10.0, 6.0), ("small", 1.0, 1.0))
    )
    found = dive(build(Problem((lane,), sites)), lambda: False)
    assert found.cost == 2.0
    assert found.bound == pytest.approx(0.9)


def test_rows_that_cannot_hold_are_proved() -> None:
    lane = LaneDemand("chat", "m", {"a": (3.0,)})
    site = Site("g", "m", "a", "gpu", 1, {"chat": 1.0}, {PriceKind.ON_DEMAND: 1.0})
    found = dive(build(Problem((lane,), (site,), quotas=(Quota("a", "gpu", 2),))), lambda: False)
    assert found.values is None
    assert found.proved


def test_rounding_up_spot_alone_does_not_go_over_its_share() -> None:
    """Without capacity on demand, 1.2 spot replicas beside 3 reserved ones become two, which are more than 30 %."""
    prices = {PriceKind.SPOT: 1.0, PriceKind.RESERVED: 2.0}
    lane = LaneDemand("chat", "m", {"a": (4.2,)})
    site = Site("g", "m", "a", "gpu", 1, {"chat": 1.0}, prices)
    program = build(Problem((lane,), (site,), limits=Limits(spot_share=0.3)))
    relaxed = relax(program, limit_s=20.0)[0]
    assert relaxed.values is not None
    assert round_up(program, relaxed).values is None
    assert _kept(program, dive(program, lambda: False))
