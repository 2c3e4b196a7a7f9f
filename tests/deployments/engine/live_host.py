"""A process that owns a private Ray cluster with a directory and one engine replica, for `test_replica_live.py`.

It obeys one word a line on stdin and answers one JSON line: `replicas` (the directory's list), `delete` (ends the application as Serve does,
draining). At the end of stdin it takes everything down.
"""

import dataclasses
import sys
from pathlib import Path

from private_ray import answer, private_ray


def main(folder: Path, secret: str, model_json: str) -> None:
    with private_ray(folder, num_cpus=4):
        import ray
        from ray import serve

        from cluster.spec import Model, Pool
        from deployments.directory import start_directory
        from deployments.engine.deployment import engine_deployment

        directory = start_directory(secret)
        application = engine_deployment(Model.model_validate_json(model_json), Pool(name="cpu"), total_timeout_s=60)
        serve.run(application, name="engine", route_prefix=None)
        answer({"ready": True})
        for line in sys.stdin:
            if line.strip() == "replicas":
                listing = ray.get(directory.watch.remote(-1, 1.0))
                answer([dataclasses.asdict(facts) for facts in listing.replicas])
            elif line.strip() == "delete":
                serve.delete("engine", _blocking=False)
                answer({})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
