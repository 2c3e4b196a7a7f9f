"""From the spec's words to a policy, bounds and a plant."""

import math
from pathlib import Path
from typing import Any

import pytest

from autoscaling.from_spec import choices_of, scaling_problems, setup_of
from autoscaling.policies.backlog.policy import BacklogPolicy
from autoscaling.policies.fixed import FixedPolicy
from autoscaling.policies.registry import PolicyChoice
from autoscaling.policies.settings import PolicyError
from cluster.spec import ClusterSpec
from deployments.engine_model.cost_file import CostFileError
from tests.autoscaling.setups import setup, spec_of, stream
from tests.deployments.accounting import test_tariffs as tariffs

COSTS = Path(__file__).resolve().parents[2] / "infra/specs/simulated-h100.costs.json"


def test_a_fixed_policy_wants_the_specs_count_and_nothing_bounds_it() -> None:
    made = setup("fixed", count=3, minimum=1, maximum=None)
    assert (made.bounds.minimum, made.bounds.maximum, made.bounds.ceiling) == (0, 3, None)
    policy = made.policy.make(made.replica_profile)
    assert isinstance(policy, FixedPolicy)
    assert (policy.count, policy.period_s) == (3, made.period_s)
    assert PolicyChoice("fixed", {"replicas": 3}).make(made.replica_profile).decide(next(stream(1))).replicas == 3
    with pytest.raises(PolicyError, match=r"replicas=-1: .*greater than or equal to 0"):
        PolicyChoice("fixed", {"replicas": -1}).make(made.replica_profile)


def test_the_backlog_policy_gets_its_settings_and_period() -> None:
    made = setup("backlog", period_s=0.5, backlog={"short_cost": 4}, up_per_minute=6)
    policy = made.policy.make(made.replica_profile)
    assert isinstance(policy, BacklogPolicy)
    assert (policy.settings.short_cost, policy.period_s) == (4.0, 0.5)
    assert (made.bounds.minimum, made.bounds.maximum, made.bounds.up_per_min, made.bounds.down_per_min) == (
        0,
        8,
        6.0,
        math.inf,
    )


def test_another_policy_goes_by_its_own_settings_and_a_shadow_beside() -> None:
    spec = spec_of("other", settings={"knob": 2}, shadow={"policy": "backlog"})
    active, shadow = choices_of(spec, spec.models[0])
    assert (active.name, dict(active.settings)) == ("other", {"knob": 2})
    assert shadow is not None
    assert shadow.name == "backlog"


@pytest.mark.parametrize(("usd", "maximum"), [(3.0, 1), (9.0, 3), (8.99, 2), (1e6, 333_333)])
def test_a_cost_ceiling_pays_for_whole_replicas(usd: float, maximum: int) -> None:
    assert setup("backlog", usd_per_hour=usd).bounds.ceiling == maximum


def test_a_cost_ceiling_counts_the_price_of_instances_where_the_pool_has_none() -> None:
    spec = tariffs.spec_of({**tariffs.GPUS, "spot": True}, {"autoscaling": {"usd_per_hour": 16}}, deploy=tariffs.AWS)
    priced = ClusterSpec.model_validate({**spec.model_dump(), "hardware": tariffs.PRICES})
    assert setup_of(priced, priced.models[0], priced.regions[0]).bounds.ceiling == 3  # of two GPUs of eight, at 20


def test_costs_are_those_that_are_named() -> None:
    made = setup("backlog", costs=str(COSTS))
    assert made.replica_profile.cost is not None
    assert made.replica_profile.limits.sequences == 32  # the spec's, below the file's
    assert setup("backlog").replica_profile.cost is None


def test_a_simulated_engine_has_its_own_costs_at_its_speed() -> None:
    spec = simulated(speed=2.0, start_up_s=30.0)
    made = setup_of(spec, spec.models[0], spec.regions[0])
    plain = simulated(speed=1.0)
    slow = setup_of(plain, plain.models[0], plain.regions[0])
    assert made.replica_profile.cost is not None
    assert slow.replica_profile.cost is not None
    assert made.replica_profile.cost.step_s([], 8, 1_000, 0) == pytest.approx(
        slow.replica_profile.cost.step_s([], 8, 1_000, 0) / 2
    )
    assert made.replica_profile.start_up_s > 30


def test_what_cannot_be_followed_is_told_by_model() -> None:
    assert scaling_problems(spec_of("backlog")) == []
    (problem,) = scaling_problems(spec_of("magic"))
    assert problem.startswith("models.m: autoscaling: policy 'magic': no such policy; allowed: ")
    (problem,) = scaling_problems(spec_of("backlog", shadow={"policy": "magic"}))
    assert "magic" in problem
    (problem,) = scaling_problems(spec_of("backlog", costs="/nowhere.json"))
    assert "/nowhere.json" in problem
    assert scaling_problems(spec_of("backlog", costs="/nowhere.json"), read_costs=False) == []
    assert len(scaling_problems(spec_of("magic", costs="/nowhere.json"), read_costs=False)) == 1


@pytest.mark.parametrize(
    ("usd", "price", "told"),
    [
        (6, 3.0, None),
        (5.99, 3.0, "usd_per_hour = 5.99 in region here: allowed: at least 6, which replicas.min = 2 costs"),
        (6, 0, "usd_per_hour = 6.0 in region here: no price of pool h100 is known; allowed: with `price_usd_per_hour`"),
    ],
)
def test_a_cost_ceiling_that_would_be_none_is_told(usd: float, price: float, told: str | None) -> None:
    spec = spec_of("backlog", count=2, minimum=2, usd_per_hour=usd).model_dump()
    spec["regions"][0]["pools"][0]["price_usd_per_hour"] = price
    problems = [] if told is None else [f"models.m: autoscaling: {told}"]
    assert scaling_problems(ClusterSpec.model_validate(spec)) == problems


def test_a_cost_file_that_is_missing_is_an_error_unless_none_is_read() -> None:
    spec = spec_of("backlog", costs="/nowhere.json")
    with pytest.raises(CostFileError):
        setup_of(spec, spec.models[0], spec.regions[0])
    assert setup_of(spec, spec.models[0], spec.regions[0], read_costs=False).replica_profile.cost is None


def simulated(**given: Any) -> ClusterSpec:
    plain = spec_of().model_dump()
    model = {
        **plain["models"][0],
        "name": "m-simulated",
        "engine": "simulated",
        "simulated": {"costs": str(COSTS), **given},
    }
    return ClusterSpec.model_validate({**plain, "models": [model]})
