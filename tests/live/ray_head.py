"""A Ray head of this machine alone, with its dashboard and so with Serve's REST API, started as a node of a cluster is;
its files and its users' home are in a folder of the test."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from cli.private_ray import end_processes, processes_of
from cluster.launch import RAY_ENVIRONMENT
from cluster.node_labels import EVERY_POOL, POOL
from tests.live.cluster import ROOT, eventually, free_port


@dataclass(frozen=True)
class RayHead:
    url: str
    home: Path
    token: str

    def applications(self) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.token}"}
        answer = requests.get(f"{self.url}/api/serve/applications/", headers=headers, timeout=30)
        answer.raise_for_status()
        return dict(answer.json()["applications"])

    def statuses(self) -> dict[str, str]:
        return {name: one["status"] for name, one in self.applications().items()}

    def replicas(self) -> dict[str, set[str]]:
        """The ids of each application's running replicas."""
        return {
            name: {
                replica["replica_id"]
                for deployment in one["deployments"].values()
                for replica in deployment["replicas"]
                if replica["state"] == "RUNNING"
            }
            for name, one in self.applications().items()
        }


@contextmanager
def ray_head(home: Path, token: str) -> Iterator[RayHead]:
    """Its processes are gone afterwards."""
    temp_dir = tempfile.mkdtemp(prefix="raylane-")
    token_file = home / "token"
    token_file.write_text(token)
    port, gcs_port = free_port(), free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        **RAY_ENVIRONMENT,
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "TMPDIR": temp_dir,
    }
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", f"--port={gcs_port}", "--num-cpus=2"]
    command += [f"--labels={POOL}={EVERY_POOL}", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}"]
    command += [f"--temp-dir={temp_dir}", "--object-store-memory=104857600", "--disable-usage-stats", "--block"]
    with (home / "ray.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=home)
    head = RayHead(f"http://127.0.0.1:{port}", home, token)
    try:
        eventually(lambda: _answers(head) or process.poll() is not None)
        assert process.poll() is None, (home / "ray.log").read_text()
        yield head
    finally:
        process.terminate()
        process.wait(60)
        end_processes(processes_of(temp_dir), patience_s=5)


def _answers(head: RayHead) -> bool:
    time.sleep(0.2)
    try:
        headers = {"authorization": f"Bearer {head.token}"}
        return requests.get(f"{head.url}/api/version", headers=headers, timeout=5).status_code == 200
    except requests.RequestException:
        return False
