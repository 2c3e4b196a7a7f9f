"""What a replica costs an hour, by the spec."""

from fractions import Fraction
from typing import Any

import pytest

from cluster.spec import ClusterSpec
from deployments.accounting.tariffs import tariffs_of

SETTINGS = {"max_model_len": 4_096, "tensor_parallel_size": 2}


def spec_of(pool: dict[str, Any], model: dict[str, Any] | None = None, **region: Any) -> ClusterSpec:
    return ClusterSpec.model_validate(
        {
            "name": "test",
            "regions": [{"name": "us-east-1", "pools": [{"name": "gpus", **pool}], **region}],
            "models": [{"name": "m", "source": "demo", "settings": SETTINGS, **(model or {})}],
        }
    )


def price(spec: ClusterSpec) -> Fraction:
    (tariff,) = tariffs_of(spec, spec.regions[0], 7)
    return tariff.usd_per_hour


GPUS = {"accelerator": "H100", "gpus_per_node": 8}


def test_a_replica_pays_for_each_of_its_gpus_exactly() -> None:
    spec = spec_of({**GPUS, "price_usd_per_hour": 2.1})
    (tariff,) = tariffs_of(spec, spec.regions[0], 7)
    assert (tariff.usd_per_hour, tariff.gpus) == (Fraction(42, 10), 2)
    assert (tariff.at_ns, tariff.model, tariff.group, tariff.region, tariff.pool) == (
        7,
        "m",
        "default",
        "us-east-1",
        "gpus",
    )
    assert (tariff.step_tokens, tariff.decode_weight, tariff.costs) == (2_048, 4.0, "")


@pytest.mark.parametrize(("cpus_per_node", "share"), [(None, 1), (16, Fraction(1, 4)), (4, 1)])
def test_on_cpus_a_replica_pays_for_its_cores(cpus_per_node: int | None, share: Fraction) -> None:
    settings = {**SETTINGS, "cpus": 4}
    spec = spec_of({"price_usd_per_hour": 0.3, "cpus_per_node": cpus_per_node}, {"settings": settings})
    assert price(spec) == Fraction(3, 10) * share


def test_each_group_has_its_own_price() -> None:
    pools = [
        {"name": "cheap", "accelerator": "L4", "gpus_per_node": 8, "price_usd_per_hour": 0.7},
        {"name": "dear", "accelerator": "H100", "gpus_per_node": 8, "price_usd_per_hour": 2.5},
    ]
    groups = [{"name": "small", "pool": "cheap"}, {"name": "large", "pool": "dear"}]
    spec = spec_of({}, {"settings": {"max_model_len": 4_096}, "groups": groups}, pools=pools)
    found = {one.group: (one.pool, one.usd_per_hour) for one in tariffs_of(spec, spec.regions[0], 0)}
    assert found == {"small": ("cheap", Fraction(7, 10)), "large": ("dear", Fraction(5, 2))}


AWS = {
    "provider": "aws",
    "image": "ami-12345678",
    "subnet_ids": ["subnet-12345678"],
    "security_group_ids": ["sg-12345678"],
    "instance_profile": "nodes",
    "pools": [{"pool": "gpus", "instance_type": "p5.48xlarge"}],
}
PRICES = {"prices": [{"instance": "p5.48xlarge", "region": "us-east-1", "on_demand_usd": 80.0, "spot_usd": 20.0}]}


@pytest.mark.parametrize(("spot", "instance_usd"), [(False, 80), (True, 20)])
def test_a_pool_without_a_price_has_that_of_its_instances(spot: bool, instance_usd: int) -> None:
    spec = spec_of({**GPUS, "spot": spot}, deploy=AWS)
    priced = ClusterSpec.model_validate({**spec.model_dump(), "hardware": PRICES})
    assert price(priced) == Fraction(instance_usd * 2, 8)


def test_without_any_price_a_replica_costs_nothing() -> None:
    assert price(spec_of(GPUS)) == 0
