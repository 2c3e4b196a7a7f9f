"""What `raylane deploy` hands to Serve, on a real Ray: the cell comes up by Serve's REST API alone, a change that needs
no restart restarts nothing, and a deployment that is killed again and again ends as the spec says."""

import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

with warnings.catch_warnings():  # of Ray Serve, as it is imported
    warnings.simplefilter("ignore")
    import ray.serve  # noqa: F401

from cli.deploy.rendering import rendering_of
from cluster.launch import cell_folder
from cluster.secrets import SecretsFolder, kept
from cluster.spec import ClusterSpec, parse_spec
from tests.live.cluster import ROOT, eventually, free_port
from tests.live.ray_head import RayHead, ray_head

pytestmark = [pytest.mark.live, pytest.mark.long]
KEYS = {"search": ["sha256:" + "ab" * 32]}
COSTS = ROOT / "infra" / "specs" / "simulated-h100.costs.json"
SETTINGS = {"max_model_len": 32_768, "max_num_seqs": 128, "max_num_batched_tokens": 8_192}
BREAKS = 10


class Cell:
    """The region `here` of a spec on one real head, which stands for the machines; `program` deploys to it in a
    process of its own, with a `ray up` that has nothing to do and no tunnel."""

    def __init__(self, folder: Path, head: RayHead, port: int) -> None:
        self.folder, self.head, self.port = folder, head, port

    def spec(self, replicas: int = 2, lanes: int = 3, drain_s: float = 2.0) -> dict[str, Any]:
        names = ("short", "middle", "long")[:lanes]
        bounds = [{"name": name, "up_to_tokens": 1_000 * 10**at} for at, name in enumerate(names[:-1])]
        model = {
            "name": "one-simulated",
            "source": "x",
            "engine": "simulated",
            "settings": SETTINGS,
            "simulated": {"costs": str(COSTS)},
            "replicas": {"count": replicas},
        }
        deploy = {"provider": "local", "head": "192.0.2.1", "workers": [{"address": "192.0.2.2", "pool": "cpu"}]}
        return {
            "name": "deployed",
            "regions": [{"name": "here", "pools": [{"name": "cpu"}], "deploy": deploy}],
            "models": [model],
            "lanes": [*bounds, {"name": names[-1]}],
            "gateway": {"port": self.port, "drain_s": drain_s},
            "tenants": [{"name": "search", "keys": KEYS["search"]}],
        }

    def program(self, spec: dict[str, Any]) -> subprocess.Popen[bytes]:
        file = self.folder / "spec.yaml"
        file.write_text(yaml.safe_dump(spec))
        command = [sys.executable, "-m", "tests.live.programs.deploy_to", self.head.url, str(file)]
        environment = {"HOME": str(self.head.home), "RAYLANE_HOME": str(self.folder / "state"), "PATH": "/usr/bin:/bin"}
        return subprocess.Popen(command, cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)})

    def deploy(self, spec: dict[str, Any]) -> None:
        assert self.program(spec).wait(240) == 0

    def in_force(self) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.secret}"}
        answer = requests.get(f"http://127.0.0.1:{self.port}/raylane/spec", headers=headers, timeout=10)
        answer.raise_for_status()
        return dict(answer.json())

    @property
    def secret(self) -> str:
        return (self.head.home / cell_folder("deployed-here") / "secrets" / "secret").read_text()

    def is_as(self, spec: dict[str, Any]) -> bool:
        try:
            found, parsed = self.in_force(), parse_spec(yaml.safe_dump(spec))
        except requests.RequestException:
            return False
        running = self.head.replicas()
        return (
            len(found["lanes"]) == len(parsed.lanes)
            and found["gateway"]["drain_s"] == parsed.gateway.drain_s
            and len(running["model-one-simulated"]) == parsed.models[0].replicas.count
            and len(running["gateway"]) == 1
        )


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    folder = tmp_path_factory.mktemp("deployed")
    home = folder / "home"
    home.mkdir()
    secrets = kept(SecretsFolder(home / cell_folder("deployed-here") / "secrets"), KEYS)
    with ray_head(home, secrets.ray_token) as head:
        made = Cell(folder, head, free_port())
        SecretsFolder(folder / "state" / "deployed" / "deployed-here" / "files" / "secrets").write(secrets)
        made.deploy(made.spec())
        eventually(lambda: made.is_as(made.spec()))
        yield made


def test_a_cell_comes_up_by_serves_rest_api_and_asks_for_keys(cell: Cell) -> None:
    assert set(cell.head.statuses().values()) == {"RUNNING"}
    url = f"http://127.0.0.1:{cell.port}/v1/models"
    assert requests.get(url, timeout=10).status_code == 401
    spec: ClusterSpec = parse_spec(yaml.safe_dump(cell.spec()))
    assert [one["keys"] for one in cell.in_force()["tenants"]] == [list(spec.tenants[0].keys)]
    rendered = rendering_of(spec, spec, spec.regions[0])
    assert "ab" * 32 not in "".join(rendered.files.values())


def test_what_needs_no_restart_restarts_nothing(cell: Cell) -> None:
    before = cell.head.replicas()
    cell.deploy(cell.spec())
    assert cell.head.replicas() == before, "the same spec again"
    cell.deploy(cell.spec(lanes=2))
    eventually(lambda: cell.is_as(cell.spec(lanes=2)))
    assert cell.head.replicas() == before
    cell.deploy(cell.spec(lanes=2, replicas=3))
    eventually(lambda: cell.is_as(cell.spec(lanes=2, replicas=3)))
    assert cell.head.replicas()["gateway"] == before["gateway"]
    assert cell.head.replicas()["model-one-simulated"] > before["model-one-simulated"]


def test_a_change_of_the_gateway_leaves_the_replicas(cell: Cell) -> None:
    before = cell.head.replicas()
    cell.deploy(cell.spec(lanes=2, replicas=3, drain_s=1.0))
    eventually(lambda: cell.is_as(cell.spec(lanes=2, replicas=3, drain_s=1.0)))
    assert cell.head.replicas()["gateway"].isdisjoint(before["gateway"])
    assert cell.head.replicas()["model-one-simulated"] == before["model-one-simulated"]


def test_killed_at_random_moments_and_run_again_it_ends_right(cell: Cell) -> None:
    draw = random.Random(20261122)
    killed = 0
    for number in range(BREAKS):
        spec = cell.spec(lanes=1 + number % 3, replicas=1 + number % 2)
        process = cell.program(spec)
        time.sleep(draw.uniform(0.5, 6.0))
        process.send_signal(signal.SIGKILL)
        killed += process.wait(30) != 0
    assert killed >= BREAKS // 2
    last = cell.spec(lanes=3, replicas=2)
    cell.deploy(last)
    eventually(lambda: cell.is_as(last))
    before = cell.head.replicas()
    cell.deploy(last)
    assert cell.head.replicas() == before
