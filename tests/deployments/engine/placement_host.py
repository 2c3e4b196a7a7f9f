"""A process that places replicas on a node that claims to have four L40S, for `test_placement_live.py`.

Answers, for each placement, the GPUs that the replica's process was given, or None when Ray found no place for it.
"""

import os
import sys
import time
from pathlib import Path

from private_ray import answer, private_ray

from cluster.node_labels import POOL

PATIENCE_S = 60.0
NO_PLACE_S = 5.0
"""A placement that can be made is made in less."""


class Given:
    """A stand-in for an engine: what matters here is what Ray gives it."""

    def gpus(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")


def given(ranks: int, accelerator: str, patience_s: float) -> str | None:
    from ray import serve

    from cluster.spec import EngineSettings, Model, Pool
    from deployments.engine.placement import place

    model = Model(name="m", source="org/m", settings=EngineSettings(max_model_len=4096, tensor_parallel_size=ranks))
    options = place(model, Pool(name="gpus", accelerator=accelerator, gpus_per_node=8)).serve_options({})
    handle = serve._run(
        serve.deployment(graceful_shutdown_timeout_s=0, **options)(Given).bind(),
        name="given",
        route_prefix=None,
        _blocking=False,
    )
    limit = time.monotonic() + patience_s
    while serve.status().applications["given"].status != "RUNNING":
        if time.monotonic() > limit:
            serve.delete("given")
            return None
        time.sleep(0.1)
    gpus: str = handle.gpus.remote().result(timeout_s=PATIENCE_S)
    serve.delete("given")
    return gpus


def main(folder: Path) -> None:
    with private_ray(folder, num_cpus=4, num_gpus=4, resources={"accelerator_type:L40S": 1}, labels={POOL: "gpus"}):
        for ranks in (1, 2, 4):
            answer([ranks, "L40S", given(ranks, "L40S", PATIENCE_S)])
        for ranks, accelerator in ((8, "L40S"), (2, "H100")):
            answer([ranks, accelerator, given(ranks, accelerator, NO_PLACE_S)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
