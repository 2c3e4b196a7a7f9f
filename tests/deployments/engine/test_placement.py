"""Placement: what Ray must book for one replica."""

from typing import Any

import pytest

from cluster.spec import Model, Pool
from deployments.engine.placement import place


def model(**settings: Any) -> Model:
    return Model.model_validate({"name": "m", "source": "org/m", "settings": {"max_model_len": 4096, **settings}})


GPUS = Pool(name="gpus", accelerator="L40S", nodes=2, gpus_per_node=8)
CPUS = Pool(name="cpu")
ON_GPUS, ON_CPUS = ({"raylane.io/pool": f"in({pool},every_pool)"} for pool in ("gpus", "cpu"))
KIND = "accelerator_type:L40S"
ENGINE = {"engine": "simulated", "simulated": {"costs": "c"}}
SIMULATED = Model.model_validate({**model().model_dump(exclude_defaults=True), "name": "m-simulated", **ENGINE})


@pytest.mark.parametrize(
    ("asked", "pool", "resources"),
    [
        *((model(tensor_parallel_size=ranks), GPUS, {"CPU": 1, "GPU": ranks, KIND: 0.001}) for ranks in (1, 2, 8)),
        (model(tensor_parallel_size=2, pipeline_parallel_size=3), GPUS, {"CPU": 1, "GPU": 6, KIND: 0.001}),
        *((model(tensor_parallel_size=ranks, cpus=2.5), CPUS, {"CPU": 2.5}) for ranks in (1, 2)),
        (SIMULATED, GPUS, {"CPU": 0.01}),
    ],
    ids=["one GPU", "2 ranks", "8 ranks", "stages of a pipeline", "CPU", "2 ranks on a CPU", "simulated"],
)
def test_what_a_replica_books(asked: Model, pool: Pool, resources: dict[str, float]) -> None:
    assert place(asked, pool).resources == resources


def test_a_replica_is_one_actor_with_all_its_gpus_so_that_no_two_nodes_can_share_it() -> None:
    options = {"num_cpus": 4, "num_gpus": 8, "accelerator_type": "L40S", "label_selector": ON_GPUS}
    assert place(model(tensor_parallel_size=8, cpus=4), GPUS).serve_options({}) == {"ray_actor_options": options}


def test_the_environment_rides_on_the_actors_options() -> None:
    options = place(model(), CPUS).serve_options({"A": "1"})["ray_actor_options"]
    assert options == {"num_cpus": 1.0, "label_selector": ON_CPUS, "runtime_env": {"env_vars": {"A": "1"}}}


def test_a_pool_with_zones_has_its_replicas_in_one_of_them() -> None:
    pool = Pool(name="cpu", zones=("a", "b"))
    selector = place(model(), pool).serve_options({})["ray_actor_options"]["label_selector"]
    assert selector == {**ON_CPUS, "raylane.io/zone": "in(a,b,every_zone)"}
