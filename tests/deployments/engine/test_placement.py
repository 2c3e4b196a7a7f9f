"""Placement: what Ray must book for one replica."""

import pytest

from cluster.spec import EngineSettings, Model, Pool, Simulated
from deployments.engine.placement import place


def model(tensor_parallel_size: int = 1, cpus: float = 1.0) -> Model:
    settings = EngineSettings(max_model_len=4096, tensor_parallel_size=tensor_parallel_size, cpus=cpus)
    return Model(name="m", source="org/m", settings=settings)


GPUS = Pool(name="gpus", accelerator="L40S", nodes=2, gpus_per_node=8)


CPUS = Pool(name="cpu")
ON_GPUS, ON_CPUS = ({"raylane.io/pool": f"in({pool},every_pool)"} for pool in ("gpus", "cpu"))


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_replica_is_one_actor_with_all_its_gpus_so_that_no_two_nodes_can_share_it(ranks: int) -> None:
    placement = place(model(ranks, cpus=4), GPUS)
    assert placement.resources == {"CPU": 4, "GPU": ranks, "accelerator_type:L40S": 0.001}
    options = {"num_cpus": 4, "num_gpus": ranks, "accelerator_type": "L40S", "label_selector": ON_GPUS}
    assert placement.serve_options({}) == {"ray_actor_options": options}


def test_each_stage_of_a_pipeline_has_gpus_of_its_own() -> None:
    settings = EngineSettings(max_model_len=4096, tensor_parallel_size=2, pipeline_parallel_size=3)
    placement = place(Model(name="m", source="org/m", settings=settings), GPUS)
    assert placement.resources["GPU"] == 6


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_cpu_replica_books_cores_alone(ranks: int) -> None:
    placement = place(model(ranks, cpus=2.5), CPUS)
    assert placement.resources == {"CPU": 2.5}
    assert placement.serve_options({}) == {"ray_actor_options": {"num_cpus": 2.5, "label_selector": ON_CPUS}}


def test_the_environment_rides_on_the_actors_options() -> None:
    options = place(model(), CPUS).serve_options({"A": "1"})["ray_actor_options"]
    assert options == {"num_cpus": 1.0, "label_selector": ON_CPUS, "runtime_env": {"env_vars": {"A": "1"}}}


def test_a_simulated_replica_books_a_sliver_of_a_core_and_no_gpu() -> None:
    simulated = Model(
        name="m-simulated",
        source="org/m",
        engine="simulated",
        simulated=Simulated(costs="c"),
        settings=EngineSettings(max_model_len=4096),
    )
    assert place(simulated, GPUS).resources == {"CPU": 0.01}


def test_a_pool_with_zones_has_its_replicas_in_one_of_them() -> None:
    pool = Pool(name="cpu", zones=("a", "b"))
    selector = place(model(), pool).serve_options({})["ray_actor_options"]["label_selector"]
    assert selector == {**ON_CPUS, "raylane.io/zone": "in(a,b,every_zone)"}
