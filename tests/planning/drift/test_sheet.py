from pathlib import Path
from typing import Any

import pytest

from cluster.spec import ClusterSpec
from deployments.traffic.counts import Stream
from planning.capacity.problem import PriceKind
from planning.drift.comparison import ComparedFigure, DriftQuantity, HourlyFigure
from planning.drift.sheet import as_recorded, case_as_recorded, expected_from, plan_change, price_drifts
from planning.plans.planner import PlanLimits, planned
from planning.plans.question import Case
from planning.worksheet.sheet import Worksheet
from tests.planning.plans import small

US, EU = (Stream("demo", "interactive", region) for region in ("us-east-1", "eu-central-1"))


def off(stream: Stream, quantity: DriftQuantity, expected: float, observed: float) -> ComparedFigure:
    bounds = (expected * 0.9, expected * 1.1)
    whole = HourlyFigure(0, 1.0, expected, observed, observed, observed, *bounds)
    return ComparedFigure(stream, quantity, whole, (whole,))


def plan_of(case: Case) -> Any:
    return planned(case, small.rates(case), 0.9, PlanLimits(gap=0.001, limit_s=300), lambda text: None)


def test_a_worksheet_expects_its_streams(tmp_path: Path) -> None:
    case = small.case(tmp_path, small.chat(prefix_share=0.25) | {"time_zone": "Europe/Berlin"})
    expected = {one.stream: one for one in expected_from(case.sheet, case.streams)}
    us, eu = expected[US], expected[EU]
    assert (us.hourly, us.time_zone) == ((0.5,) * 8 + (4.0,) * 10 + (0.5,) * 6, "Europe/Berlin")
    assert eu.hourly == (1.0,) * 24
    assert us.prompt_tokens == pytest.approx((0.9 * 100 + 0.1 * 3_000,) * 24, rel=0.01)
    assert us.prefix_share == pytest.approx((0.9 * 16 + 0.1 * 736) / 390, rel=0.01), "whole blocks of 16 tokens"
    assert us.growth == 1
    assert expected_from(case.sheet, small.case(tmp_path).streams)[0].prefix_share is None, "none is stated"


def test_streams_of_one_class_are_expected_together(tmp_path: Path) -> None:
    night = {"region": "us-east-1", "hourly_requests_per_s": [2.0] * 8 + [0.0] * 16}
    digests = small.CHAT | {"name": "digests", "rates": [night], "input_tokens": {"mean": 1_500}}
    case = small.case(tmp_path, {"demand": [small.CHAT, digests]})
    expected = next(one for one in expected_from(case.sheet, case.streams) if one.stream == US)
    assert expected.hourly == pytest.approx((2.5,) * 8 + (4.0,) * 10 + (0.5,) * 6)
    assert expected.prompt_tokens[12] == pytest.approx(390, rel=0.02)
    assert expected.prompt_tokens[2] == pytest.approx((0.5 * 390 + 2 * 1_500) / 2.5, rel=0.02)


def test_streams_as_recorded(tmp_path: Path) -> None:
    case = small.case(tmp_path, small.chat(prefix_share=0.5))
    drifts = [
        off(US, DriftQuantity.RATE, 1, 3),
        off(US, DriftQuantity.PROMPT_TOKENS, 390, 780),
        off(EU, DriftQuantity.PROMPT_TOKENS, 390, 780),
        off(US, DriftQuantity.PREFIX_SHARE, 0.5, 0.0),
        off(EU, DriftQuantity.PREFIX_SHARE, 0.5, 0.0),
    ]
    (before,), (after,) = case.streams, as_recorded(case.streams, drifts)
    assert after.rates["us-east-1"] == tuple(3 * rate for rate in before.rates["us-east-1"])
    assert after.rates["eu-central-1"] == before.rates["eu-central-1"]
    assert after.lengths.prompts.mean() == pytest.approx(2 * before.lengths.prompts.mean(), rel=0.01)
    assert (after.lengths.outputs == before.lengths.outputs).all()
    assert not after.lengths.cached.any()
    assert as_recorded(case.streams, [])[0].rates == before.rates


@pytest.mark.whole
def test_a_rate_that_triples_needs_more_replicas(tmp_path: Path) -> None:
    case = small.case(tmp_path)
    before = plan_of(case)
    after = plan_of(case_as_recorded(case, [off(US, DriftQuantity.RATE, 1, 3)], ()))
    change = plan_change(before, after)
    assert change.expected_usd_per_hour is not None
    assert change.needed_usd_per_hour is not None
    assert change.needed_usd_per_hour > 1.5 * change.expected_usd_per_hour
    assert sum(one.needed[1] for one in change.groups) > sum(one.expected[1] for one in change.groups)


def with_price(spec: ClusterSpec, usd: float | None) -> ClusterSpec:
    pools = tuple(
        region.model_copy(
            update={"pools": tuple(pool.model_copy(update={"price_usd_per_hour": usd}) for pool in region.pools)}
        )
        for region in spec.regions[:1]
    )
    return spec.model_copy(update={"regions": (*pools, *spec.regions[1:])})


@pytest.mark.whole
def test_prices_of_the_cluster_beside_the_worksheets(tmp_path: Path) -> None:
    case = small.case(tmp_path)
    assert price_drifts(case.sheet, case.spec, case.spec) == ()
    assert price_drifts(case.sheet, case.spec, with_price(case.spec, 1.0)) == ()
    (found,) = price_drifts(case.sheet, case.spec, with_price(case.spec, 3.0))
    assert (found.gpu, found.region, found.kind) == ("L4", "us-east-1", PriceKind.ON_DEMAND)
    assert (found.expected_usd, found.observed_usd) == (1.0, 3.0)
    without = case.sheet.model_copy(update={"gpu_prices": ()})
    assert price_drifts(without, with_price(case.spec, 2.0), with_price(case.spec, 3.0))[0].expected_usd == 2.0
    dearer = case_as_recorded(case, [], [found])
    stated = {
        (one.gpu, one.region): (one.on_demand_usd_per_gpu_hour, one.spot_usd_per_gpu_hour)
        for one in dearer.sheet.gpu_prices
        if one.on_demand_usd_per_gpu_hour is not None
    }
    assert stated["L4", "us-east-1"][0] == 3.0
    assert stated["L4", "eu-central-1"] == (1.0, 0.5)
    kept = [one for one in dearer.sheet.gpu_prices if (one.gpu, one.region) == ("L4", "us-east-1")]
    assert [one.spot_usd_per_gpu_hour for one in kept] == [None, 0.5]
    question = plan_of(dearer).question
    prices = [
        priced[PriceKind.ON_DEMAND].usd_per_replica_hour
        for site, priced in zip(question.problem.sites, question.prices, strict=True)
        if (site.gpu, site.region) == ("L4", "us-east-1")
    ]
    assert prices == [3.0]


@pytest.mark.parametrize(("cpus", "off"), [(8, False), (16, True)])
def test_prices_on_cpus_are_of_a_replica(cpus: int, off: bool) -> None:
    """A quarter of a node costs a quarter of its price."""
    pool = {"name": "cpus", "cpus_per_node": 32, "price_usd_per_hour": 1.6}
    model = small.SPEC["models"][0] | {"settings": {"cpus": cpus, "max_model_len": 512}}
    spec = ClusterSpec.model_validate(small.SPEC | {"models": [model], "regions": [{"name": "here", "pools": [pool]}]})
    own = {"gpu": "cpu", "region": "here", "on_demand_usd_per_gpu_hour": 0.4}
    sheet = Worksheet.model_validate(small.SHEET | {"gpu_prices": [own]})
    assert [(one.expected_usd, one.observed_usd) for one in price_drifts(sheet, spec, spec)] == [(0.4, 0.8)] * off


@pytest.mark.whole
def test_a_change_names_each_models_groups(tmp_path: Path) -> None:
    models = [small.SPEC["models"][0], small.SPEC["models"][0] | {"name": "other"}]
    sheet = {
        "demand": [small.CHAT, small.CHAT | {"name": "other", "model": "other"}],
        "candidates": [*small.SHEET["candidates"], *(one | {"model": "other"} for one in small.SHEET["candidates"])],
    }
    plan = plan_of(small.case(tmp_path, sheet, {"models": models}))
    assert {one.model for one in plan_change(plan, plan).groups} == {"demo", "other"}


def test_rates_between_now_and_after_the_growth_are_expected(tmp_path: Path) -> None:
    case = small.case(tmp_path, small.chat(growth={"percent_per_month": 10, "months": 12}))
    expected = expected_from(case.sheet, case.streams)[0]
    assert expected.hourly[0] == pytest.approx(0.5)
    assert expected.growth == pytest.approx(1.1**12)
