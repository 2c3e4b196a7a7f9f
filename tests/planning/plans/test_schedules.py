"""Schedules in steps: never below what an hour needs, within their price, and the same hours in the entries of a
spec."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.spec import BoundsSchedule, parse_spec
from planning.capacity.problem import PriceKind, Quota
from planning.plans.schedules import Smoothed, entries, in_steps, keeps_limits, smoothed
from planning.plans.spec_groups import spec_groups
from planning.plans.write_spec import written_spec
from planning.tune.spec_edit import EditError
from tests.planning.plans import small

Counts = st.lists(st.integers(0, 6), min_size=24, max_size=24) | st.lists(st.integers(0, 3), min_size=168, max_size=168)


def changes(counts: tuple[int, ...]) -> int:
    return sum(counts[hour] != counts[hour - 1] for hour in range(len(counts)))


@pytest.mark.whole
@given(Counts, st.floats(0, 50))
def test_steps_are_never_below_what_an_hour_needs(counts: list[int], switch: float) -> None:
    steps = in_steps(counts, switch)
    assert len(steps) == len(counts)
    assert all(step >= count for step, count in zip(steps, counts, strict=True))
    assert max(steps) == max(counts)
    assert changes(steps) <= changes(tuple(counts))


@given(st.lists(st.integers(0, 3), min_size=5, max_size=5), st.floats(0.1, 8))
def test_steps_are_the_cheapest(counts: list[int], switch: float) -> None:
    """Against all steps of a period of five hours that begins where the fewest are needed."""
    first = min(range(5), key=lambda hour: (counts[hour], -counts[hour - 1]))
    turned = [*counts[first:], *counts[:first]]

    def price(steps: tuple[int, ...]) -> float:
        return sum(steps) + switch * (1 + sum(steps[hour] != steps[hour - 1] for hour in range(1, 5)))

    every = product(*(range(count, max(counts) + 1) for count in turned))
    found = in_steps(counts, switch)
    assert price((*found[first:], *found[:first])) == pytest.approx(min(map(price, every)))


def scheduled(counts: list[int]) -> list[int]:
    """What the entries say by hour, as a spec reads them."""
    listed: list[dict[str, Any]] = entries(counts)
    schedule = BoundsSchedule.model_validate({"time_zone": "UTC", "entries": listed}) if listed else None
    return small.lowest(min(counts), schedule, len(counts))


@pytest.mark.whole
@given(Counts)
def test_entries_say_what_each_hour_takes(counts: list[int]) -> None:
    assert scheduled(counts) == counts


def test_a_night_is_one_entry_and_days_that_are_alike_share_theirs() -> None:
    night = [3] * 6 + [1] * 16 + [3] * 2
    assert [(one["begin"], one["end"]) for one in entries(night)] == [("22:00", "06:00")]
    week = ([1] * 8 + [4] * 10 + [1] * 6) * 5 + [1] * 48
    (entry,) = entries(week)
    days = ["mon", "tue", "wed", "thu", "fri"]
    assert entry == {"name": "mon-08", "begin": "08:00", "end": "18:00", "min": 4, "days": days}
    weekend = [1] * 120 + [2] * 48
    assert [(one["begin"], one["end"], one["days"]) for one in entries(weekend)] == [("00:00", "24:00", ["sat", "sun"])]


SHAPE = [1, 2, 2, 1, 1, 2, 4, 5, 4, 6, 7, 6, 6, 7, 8, 7, 6, 5, 6, 5, 4, 3, 2, 3]
BUSY = small.chat(rates=[{"region": "us-east-1", "hourly_requests_per_s": SHAPE}])


def usd(done: Smoothed) -> float:
    return sum(one.price.usd_per_replica_hour * sum(one.counts) for one in done.groups)


@pytest.mark.whole
@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.5])
def test_smoothing_keeps_its_price(tmp_path: Path, share: float) -> None:
    groups = spec_groups(small.plan(tmp_path, BUSY).groups)
    plain, done = smoothed(groups, 0.0), smoothed(groups, share)
    assert done.entries <= done.before == plain.entries
    assert usd(done) <= (1 + share) * usd(plain) + 1e-9
    assert done.usd_per_hour == pytest.approx((usd(done) - usd(plain)) / 24)
    for one, old in zip(done.groups, groups, strict=True):
        assert all(new >= count for new, count in zip(one.counts, old.counts, strict=True))
    if share == 0.5:
        assert done.entries < done.before


@pytest.mark.whole
def test_smoothing_keeps_quotas_and_the_share_of_spot(tmp_path: Path) -> None:
    plan = small.plan(tmp_path, BUSY | {"prices": {"spot": {"max_share": 0.5}}})
    groups = spec_groups(plan.groups)
    hours = range(24)
    most = max(sum(one.offer.gpus * one.counts[hour] for one in groups if one.offer.gpu == "L4") for hour in hours)
    quota = Quota("us-east-1", "L4", most)
    keeps = keeps_limits((quota,), 0.5)
    assert keeps(groups)
    done = smoothed(groups, 0.5, keeps)
    assert keeps(done.groups)
    for hour in hours:
        spot = sum(one.counts[hour] for one in done.groups if one.spot)
        assert spot <= 0.5 * sum(one.counts[hour] for one in done.groups)
    assert not keeps_limits((Quota("us-east-1", "L4", 0, PriceKind.SPOT),), 1.0)(groups)


@pytest.mark.whole
def test_the_written_spec_with_fewer_entries_is_never_below_the_plan(tmp_path: Path) -> None:
    plan = small.plan(tmp_path, BUSY)
    plain, fewer = (written_spec(plan, tmp_path / "spec.yaml", tmp_path / "planned.yaml", share) for share in (0, 0.3))
    assert fewer.smoothed.entries < plain.smoothed.entries
    assert f"instead of {plain.smoothed.entries}, for $" in fewer.in_words()
    (model,) = parse_spec(fewer.text, folder=tmp_path).models
    for view in model.views:
        lowest = small.lowest(view.replicas.min, view.replicas.schedule, 24)
        (one,) = (one for one in spec_groups(plan.groups) if one.name == view.group)
        assert all(low >= count for low, count in zip(lowest, one.counts, strict=True))


@pytest.mark.whole
def test_a_fixed_number_is_the_same_at_all_hours(tmp_path: Path) -> None:
    """Its pool has to hold it at all hours, too, beside those of other models."""
    plan = small.plan(tmp_path, BUSY, spec={"autoscaling": {"policy": "fixed"}})
    done = written_spec(plan, tmp_path / "spec.yaml", tmp_path / "planned.yaml", 0.1)
    (model,) = parse_spec(done.text, folder=tmp_path).models
    for view, group in zip(model.views, spec_groups(plan.groups), strict=True):
        counts = view.replicas
        assert (counts.min, counts.count, counts.schedule) == (max(group.counts), max(group.counts), None)
    assert all(len(set(one.counts)) == 1 for one in done.smoothed.groups)
    extra = usd(done.smoothed) / 24 - sum(
        one.price.usd_per_replica_hour * sum(one.counts) / 24 for one in spec_groups(plan.groups)
    )
    assert f"${extra:,.2f} an hour more" in done.in_words()


def test_a_fixed_number_that_exceeds_a_quota_is_refused(tmp_path: Path) -> None:
    """Short requests come by day and long ones at night: their groups are at their largest one after the other."""
    day, night = (
        [{"region": "us-east-1", "hourly_requests_per_s": hours}]
        for hours in ([4] * 12 + [0] * 12, [0] * 12 + [4] * 12)
    )
    long = small.CHAT | {"name": "long", "rates": night, "input_tokens": {"mean": 3_000}, "residency": ["us-east-1"]}
    sheet = {
        "demand": [
            small.CHAT | long | {"name": "short", "rates": day, "input_tokens": {"mean": 100}},
            small.CHAT | long,
        ],
        "candidates": [
            small.SHEET["candidates"][0],
            small.SHEET["candidates"][1] | {"gpu": "L4", "lanes": ["medium", "long"]},
        ],
        "quotas": [
            {"gpu": "L4", "region": name, "gpus": gpus} for name, gpus in (("us-east-1", 5), ("eu-central-1", 0))
        ],
    }
    plan = small.plan(tmp_path, sheet, spec={"autoscaling": {"policy": "fixed"}})
    with pytest.raises(EditError, match=r"autoscaling\.policy = 'fixed' for demo: .* exceed a quota"):
        written_spec(plan, tmp_path / "spec.yaml", tmp_path / "planned.yaml")


def test_a_model_whose_policy_the_text_leaves_open_follows_the_plan(tmp_path: Path) -> None:
    open_model = small.SPEC["models"][0] | {"replicas": {"count": 3}}
    plan = small.plan(tmp_path, BUSY, spec={"models": [open_model], "autoscaling": {}})
    text = written_spec(plan, tmp_path / "spec.yaml", tmp_path / "planned.yaml").text
    spec = parse_spec(text, folder=tmp_path)
    for view, group in zip(spec.models[0].views, spec_groups(plan.groups), strict=True):
        assert small.lowest(view.replicas.min, view.replicas.schedule, 24) == list(group.counts)
        assert spec.autoscaling_of(view).policy == "backlog"
