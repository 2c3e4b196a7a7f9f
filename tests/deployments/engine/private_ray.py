"""A private Ray with token authentication and Serve, for the processes that live tests start.

Ray reads its authentication settings when it is imported, and a test process may have imported it before: so only
scripts that import this first, in a process of their own, use Ray here. Answers go to stdout, one JSON value a line.
"""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def private_ray(folder: Path, **resources: Any) -> Iterator[None]:
    """A cluster of one node under `folder` (a short path: Ray's sockets lie below it), ended with the block."""
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token), RAY_USAGE_STATS_ENABLED="0")
    # A replica that hangs as a whole would else be asked to stop in peace for as long as its longest request.
    os.environ["RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS"] = "1"

    import ray
    from ray import serve

    namespace = f"test-{secrets.token_hex(4)}"
    ray.init(
        include_dashboard=False, _temp_dir=str(folder / "ray"), namespace=namespace, log_to_driver=False, **resources
    )
    try:
        serve.start(proxy_location="Disabled")
        yield
    finally:
        serve.shutdown()
        ray.shutdown()


def answer(content: object) -> None:
    print(json.dumps(content), flush=True)
