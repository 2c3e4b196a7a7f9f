"""One real cluster for all smokes: the real command, two CPU replicas of the demo model, a port and a run directory of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests
import yaml

from tests.live.cluster import free_port, shared_memory_of

ROOT = Path(__file__).resolve().parents[2]
START_S = 240.0
STOP_S = 90.0


@dataclass(frozen=True)
class LiveCluster:
    """A cluster that `raylane up` holds."""

    url: str
    home: Path
    trace_file: Path
    process: subprocess.Popen[bytes]

    def status(self) -> dict[str, object]:
        """The gateway's report."""
        report: dict[str, object] = self.ask("/raylane/status").json()
        return report

    def ask(self, path: str) -> requests.Response:
        """The answer to a GET with the cluster's secret."""
        return requests.get(self.url + path, headers={"authorization": f"Bearer {(self.run_dir / 'secret').read_text()}"}, timeout=10)

    @property
    def run_dir(self) -> Path:
        """Where its secret stands."""
        return self.home / "smoke"

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `raylane` for this cluster."""
        command = [sys.executable, "-m", "cli.main", *arguments]
        return subprocess.run(command, cwd=ROOT, env=self.environment(), capture_output=True, text=True, timeout=120)

    def environment(self) -> dict[str, str]:
        """The environment in which `raylane` finds this cluster alone."""
        return {**os.environ, "RAYLANE_HOME": str(self.home), "COLUMNS": "200"}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """Up for the session; afterwards nothing of it may be left."""
    folder = tmp_path_factory.mktemp("smoke")
    spec = yaml.safe_load((ROOT / "infra/specs/local.yaml").read_text())
    port = free_port()
    spec["name"] = "smoke"
    spec["gateway"] |= {"port": port, "trace_file": str(folder / "trace.jsonl")}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    environment = {**os.environ, "RAYLANE_HOME": str(folder / "home")}
    with (folder / "up.log").open("wb") as log:
        command = [sys.executable, "-m", "cli.main", "up", str(folder / "spec.yaml")]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    live = LiveCluster(f"http://127.0.0.1:{port}", folder / "home", folder / "trace.jsonl", process)
    _wait_ready(live, folder / "up.log")
    family = psutil.Process(process.pid).children(recursive=True)
    yield live
    family += psutil.Process(process.pid).children(recursive=True)
    shared_memory = shared_memory_of(set(family))
    process.send_signal(signal.SIGINT)
    process.wait(STOP_S)
    assert "is down" in (folder / "up.log").read_text()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive, f"left behind: {alive}"
    assert not [name for name in shared_memory if Path(name).exists()]
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
    assert not (folder / "home" / "smoke" / "state.json").exists()


def _wait_ready(live: LiveCluster, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if live.process.poll() is not None:
            raise AssertionError(f"`raylane up` ended:\n{log.read_text()}")
        state = live.run_dir / "state.json"
        if state.exists() and '"ready": true' in state.read_text():
            return
        time.sleep(0.2)
    live.process.terminate()
    raise AssertionError(f"not ready in {START_S:.0f} s:\n{log.read_text()}")
