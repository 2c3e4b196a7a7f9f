"""A process that owns a private Ray cluster with a directory and one engine replica, for `test_replica_live.py`.

A process of its own, because Ray reads its authentication settings when it is imported, and a test process may have imported it before. It obeys one
word a line on stdin and answers one JSON line on stdout: `replicas` (the directory's list), `delete` (ends the application as Serve does, draining).
At the end of stdin it takes everything down.
"""

import dataclasses
import json
import os
import secrets
import sys
from pathlib import Path


def main(folder: Path, secret: str, model_json: str) -> None:
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token), RAY_USAGE_STATS_ENABLED="0")

    import ray
    from ray import serve

    from cluster.spec import Model, Pool
    from deployments.directory import start_directory
    from deployments.engine.deployment import engine_deployment

    ray.init(include_dashboard=False, num_cpus=4, _temp_dir=str(folder / "ray"), namespace=f"test-{secrets.token_hex(4)}", log_to_driver=False)
    try:
        directory = start_directory(secret)
        serve.start(proxy_location="Disabled")
        application = engine_deployment(Model.model_validate_json(model_json), Pool(name="cpu"), total_timeout_s=60)
        serve.run(application, name="engine", route_prefix=None)
        answer({"ready": True})
        for line in sys.stdin:
            if line.strip() == "replicas":
                _, replicas = ray.get(directory.watch.remote(-1, 1.0))
                answer([dataclasses.asdict(facts) for facts in replicas])
            elif line.strip() == "delete":
                serve.delete("engine", _blocking=False)
                answer({})
    finally:
        serve.shutdown()
        ray.shutdown()


def answer(content: object) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
