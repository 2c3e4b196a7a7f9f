"""`python -m cli.deploy.restore FILE WORKERS`: hands Serve its applications again after Ray's head has lost its state.

The head's start script runs it beside Ray, if a deployment has left its applications there. It waits for the workers,
because Serve would put all replicas on the first one. A head that has its state still has its applications: then there
is nothing to do. A deployment that starts the head removes the file first, and hands over its own.
"""

import json
import os
import sys
import time
from pathlib import Path

from cli.deploy.serve_api import DeployError, ServeApi
from cluster.launch import DASHBOARD_PORT

HEAD_S = 600.0
"""How long Ray's head may take to answer (seconds)."""
WORKERS_S = 300.0
"""How long the workers may take to join; after that Serve gets the applications without the others (seconds)."""
POLL_S = 1.0


def restore(api: ServeApi, kept: Path, workers: int) -> str:
    """Returns what was done. Raises DeployError where Ray's head did not answer, or refused the applications."""
    deadline = time.monotonic() + HEAD_S
    while True:
        try:
            if api.names():
                return "nothing to do: Serve has its applications"
            break
        except DeployError:
            if time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)
    deadline = time.monotonic() + WORKERS_S
    while (joined := len(api.workers())) < workers and time.monotonic() < deadline:
        time.sleep(POLL_S)
    if not kept.exists():
        return "nothing to do: a deployment is under way"
    if api.names():
        return "nothing to do: Serve has applications again"
    api.put(json.loads(kept.read_text(encoding="utf-8")))
    return f"Serve got its applications again; workers: {joined} of {workers}"


def main() -> int:
    """Reads Ray's token from the file that RAY_AUTH_TOKEN_PATH names."""
    kept, workers = Path(sys.argv[1]), int(sys.argv[2])
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text(encoding="utf-8").strip()
    try:
        said, status = restore(ServeApi(f"http://127.0.0.1:{DASHBOARD_PORT}", token), kept, workers), 0
    except DeployError as error:
        said, status = f"failed: {error}", 1
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), said, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
