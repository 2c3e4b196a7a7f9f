"""Placement: what Ray must book for one replica."""

import pytest

from cluster.spec import EngineSettings, Model, Pool, Simulated
from deployments.engine.placement import place


def model(tensor_parallel_size: int = 1, cpus: float = 1.0) -> Model:
    settings = EngineSettings(max_model_len=4096, tensor_parallel_size=tensor_parallel_size, cpus=cpus)
    return Model(name="m", source="org/m", settings=settings)


GPUS = Pool(name="gpus", accelerator="L40S", nodes=2, gpus_per_node=8)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_the_gpus_of_a_replica_are_one_bundle_that_no_two_nodes_can_share(ranks: int) -> None:
    placement = place(model(ranks, cpus=4), GPUS)
    assert placement.bundles == ({"CPU": 4, "GPU": ranks, "accelerator_type:L40S": 0.001},)
    options = placement.serve_options({})
    assert options["placement_group_strategy"] == "STRICT_PACK"
    assert len(options["placement_group_bundles"]) == 1


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_the_actor_fits_its_bundle(ranks: int) -> None:
    placement = place(model(ranks, cpus=4), GPUS)
    assert placement.actor_options == {"num_cpus": 4, "num_gpus": ranks}
    assert placement.actor_options["num_gpus"] <= placement.bundles[0]["GPU"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_cpu_replica_books_cores_and_no_group(ranks: int) -> None:
    placement = place(model(ranks, cpus=2.5), Pool(name="cpu"))
    assert placement.actor_options == {"num_cpus": 2.5}
    assert "placement_group_bundles" not in placement.serve_options({})


def test_the_environment_rides_on_the_actors_options() -> None:
    options = place(model(), Pool(name="cpu")).serve_options({"A": "1"})
    assert options == {"ray_actor_options": {"num_cpus": 1.0, "runtime_env": {"env_vars": {"A": "1"}}}}


def test_a_simulated_replica_books_a_sliver_of_a_core_and_no_gpu() -> None:
    simulated = Model(
        name="m-simulated",
        source="org/m",
        engine="simulated",
        simulated=Simulated(costs="c"),
        settings=EngineSettings(max_model_len=4096),
    )
    assert place(simulated, GPUS).serve_options({}) == {"ray_actor_options": {"num_cpus": 0.01}}
