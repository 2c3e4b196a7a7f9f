"""Redeploys the gateways of a running cluster, as an upgrade does: `python -m tests.live.rollout ADDRESS SPEC RUN_DIR`.
Ends once all are new.

A process of its own, since Ray reads its authentication settings when it is imported; the caller sets them in the
environment.
"""

import sys
import time
from pathlib import Path


def main(address: str, spec_file: str, run_dir: str) -> None:
    """Serve starts new gateways and stops the old ones, each in its own way out."""
    import ray
    from ray import serve

    from cluster.spec import parse_spec
    from deployments.app import GATEWAY_APP
    from deployments.gateway.deployment import gateway_deployment

    ray.init(address=address, namespace="raylane", log_to_driver=False, logging_level="ERROR")
    spec = parse_spec(Path(spec_file).read_text())
    changed = spec.model_copy(update={"gateway": spec.gateway.model_copy(update={"drain_s": spec.gateway.drain_s + 1})})
    target = gateway_deployment(changed, changed.regions[0], Path(run_dir))
    serve.run_many(
        [serve.RunTarget(target=target, name=GATEWAY_APP, route_prefix=None)], wait_for_applications_running=False
    )
    while True:
        deployment = serve.status().applications[GATEWAY_APP].deployments["gateway"]
        if deployment.status == "HEALTHY" and dict(deployment.replica_states) == {"RUNNING": spec.gateway.replicas}:
            return
        time.sleep(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
