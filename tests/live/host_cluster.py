"""A cell on three test hosts: Ray's cluster as `ray up` brings it up from the rendered YAML, and what tests ask of the
cell on it."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import yaml

from cluster.launch import launcher_files
from cluster.spec import ClusterSpec, LocalDeploy, load_spec
from deployments.gateway.entrance import digest_of
from tests.live.cluster import ROOT, eventually, shipped_spec
from tests.live.hosts import NETWORK, TestHost, test_hosts

HEAD, *WORKERS = (f"{NETWORK}.{number}" for number in (2, 3, 4))
KEY = "a key of the tenant"
REDIS = f"{HEAD}:6380"
REPLICAS = 4
MODEL = "llama-3.1-8b-simulated"
RAY = str(Path(sys.executable).with_name("ray"))


@dataclass
class HostCluster:
    """Three hosts, the first of them Ray's head. `figures`: what was measured."""

    folder: Path
    hosts: list[TestHost]
    spec: ClusterSpec
    figures: list[str] = field(default_factory=list)

    @property
    def head(self) -> TestHost:
        return self.hosts[0]

    @property
    def name(self) -> str:
        return self.spec.name

    def ray(self, command: str) -> subprocess.CompletedProcess[str]:
        """`ray up` or `ray down`, on the machine of an operator."""
        began = time.monotonic()
        log = self.folder / f"ray-{command}.log"
        with log.open("w") as output:
            done = subprocess.run(
                [RAY, command, "-y", *(["--no-config-cache"] if command == "up" else []), "ray-cluster.yaml"],
                cwd=self.folder / "launch",
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=400,
                check=False,
            )
        self.figures.append(f"ray {command}: {time.monotonic() - began:.0f} s")
        assert done.returncode == 0, log.read_text()[-4000:]
        return done

    def alive_nodes(self) -> list[str]:
        """The addresses of Ray's living nodes; none while Ray does not answer."""
        code = (
            f"import ray; ray.init('{HEAD}:6379', log_to_driver=False, logging_level='ERROR'); "
            "print(*sorted(n['NodeManagerAddress'] for n in ray.nodes() if n['Alive']))"
        )
        variables = f"RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={self.token}"
        done = self.head.ssh(f'{variables} timeout 30 {sys.executable} -c "{code}"')
        return done.stdout.split() if done.returncode == 0 else []

    def serve_says(self) -> str:
        """What Serve reports of its applications, by its REST API on the head."""
        header = f"authorization: Bearer {self.token.read_text()}"
        return self.head.ssh(f"curl -s -H '{header}' http://127.0.0.1:8265/api/serve/applications/").stdout

    def shell(self, *arguments: str) -> str:
        """The line of a shell on the head that runs `raylane`."""
        variables = f"PYTHONPATH={ROOT} RAYLANE_HOME={self.folder}/state RAY_AUTH_TOKEN_PATH={self.token} COLUMNS=200"
        return f"cd {self.folder} && {variables} {sys.executable} -m cli.main {' '.join(arguments)}"

    @property
    def token(self) -> Path:
        return self.folder / "secrets" / "ray_token"

    def raylane(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `raylane` on the head."""
        return self.head.ssh(self.shell(*arguments), 300)

    def up(self) -> subprocess.CompletedProcess[str]:
        return self.raylane(*self.up_arguments)

    @property
    def up_arguments(self) -> tuple[str, ...]:
        secret = self.folder / "secrets" / "secret"
        return "up", str(self.folder / "spec.yaml"), "--address", f"{HEAD}:6379", "--secret-file", str(secret)

    @property
    def credentials(self) -> dict[str, str]:
        return {"authorization": f"Bearer {(self.folder / 'secrets' / 'secret').read_text()}"}

    def report(self, worker: str) -> dict[str, Any]:
        """What the gateway on a worker says of the cell."""
        answer = requests.get(f"http://{worker}:8000/raylane/status", headers=self.credentials, timeout=5)
        report: dict[str, Any] = answer.json()
        return report

    def replicas(self, worker: str) -> dict[str, str]:
        """The ready replicas by id, and the address of the node of each, as the gateway on a worker knows them."""
        found = self.report(worker)["models"][0]["replicas"]
        return {
            str(one["replica_id"]): str(one["url"]).split("/")[2].rpartition(":")[0]
            for one in found
            if one["state"] == "ready"
        }

    def whole(self, *workers: str) -> bool:
        """Whether all replicas are ready, and a gateway on each of these workers is and knows the others."""
        for worker in workers:
            report = self.report(worker)
            states = [one["state"] for one in report["models"][0]["replicas"]]
            if states != ["ready"] * REPLICAS or len(report["gateways"]) != len(workers):
                return False
            if requests.get(f"http://{worker}:8000/ready?model=*", timeout=5).status_code != 200:
                return False
        return True

    def until_whole(self, *workers: str, limit_s: float = 240) -> float:
        """Waits until it is whole; returns after how many seconds it was."""
        began = time.monotonic()
        eventually(lambda: self.whole(*workers), limit_s)
        return time.monotonic() - began

    def note(self, figure: str) -> None:
        self.figures.append(figure)
        print(figure, flush=True)


class Operator:
    """A machine that deploys, with a home and a state folder of its own."""

    def __init__(self, cell: HostCluster, name: str = "operator") -> None:
        self.cell, self.home = cell, cell.folder / name
        self.home.mkdir()

    def deploy(self, *options: str, status: int = 0) -> str:
        """Returns what it said, in one line."""
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", "deploy", str(self.cell.folder / "spec.yaml"), "--yes", *options],
            cwd=self.cell.folder,
            env={**os.environ, "HOME": str(self.home), "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == status, said[-6000:]
        print(said)
        return " ".join(said.split())


@contextmanager
def bare_hosts(folder: Path, content: dict[str, Any]) -> Iterator[HostCluster]:
    """Three hosts on which nothing runs yet, and that spec for them."""
    (folder / "spec.yaml").write_text(yaml.safe_dump(content))
    with test_hosts(folder, 3) as hosts:
        yield HostCluster(folder, hosts, load_spec(folder / "spec.yaml"))


def host_spec(folder: Path, store: dict[str, Any]) -> dict[str, Any]:
    """A simulated model with a replica or two on each worker."""
    content = shipped_spec("simulated-h100")
    workers = [{"address": worker, "pool": "cpu"} for worker in WORKERS]
    deploy = {
        "provider": "local",
        "head": HEAD,
        "workers": workers,
        "venv": str(Path(sys.executable).parents[1]),
        "ssh_user": "root",
        "ssh_key": str(folder / "key"),
        "environment": {"PYTHONPATH": str(ROOT)},
        "secrets": {"kind": "file", "folder": str(folder / "secrets")},
        "head_store": store,
    }
    pool = {"name": "cpu", "accelerator": "cpu", "nodes": len(workers), "cpus_per_node": 4}
    content["name"] = "drill"
    content["regions"] = [{"name": "here", "pools": [pool], "deploy": deploy}]
    content["models"][0]["simulated"]["costs"] = str(ROOT / "infra/specs/simulated-h100.costs.json")
    content["models"][0] |= {"replicas": {"count": REPLICAS}, "health": {"period_s": 2, "timeout_s": 5, "stall_s": 30}}
    content["gateway"] = {
        "host": "0.0.0.0",
        "allow_public": True,
        "replicas": len(workers),
        "timeouts": {"between_bytes_s": 15, "connect_s": 3},
    }
    content["tenants"] = [{"name": "drill", "keys": [digest_of(KEY)]}]
    return content


@contextmanager
def host_cluster(folder: Path, store: dict[str, Any]) -> Iterator[HostCluster]:
    """Ray's cluster on three hosts, brought up from the rendered YAML. Nothing is left after the block; its end itself
    looks."""
    (folder / "secrets").mkdir()
    for name in ("secret", "ray_token"):
        (folder / "secrets" / name).write_text(secrets.token_hex(32))
        (folder / "secrets" / name).chmod(0o600)
    with bare_hosts(folder, host_spec(folder, store)) as cluster:
        (region,) = cluster.spec.regions
        assert isinstance(region.deploy, LocalDeploy)
        for name, text in launcher_files(cluster.spec, region, region.deploy).items():
            (folder / "launch" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "launch" / name).write_text(text)
        if store["kind"] == "redis":
            cluster.hosts[0].keep_running("redis", redis_command(folder), 2)
        cluster.ray("up")
        began = time.monotonic()
        eventually(lambda: cluster.alive_nodes() == [HEAD, *WORKERS], 240)
        cluster.note(f"all nodes {time.monotonic() - began:.0f} s later")
        yield cluster


def redis_command(folder: Path) -> str:
    """A Redis that keeps on disk what it has acknowledged."""
    (folder / "redis").mkdir()
    host, _, port = REDIS.partition(":")
    kept = f"--appendonly yes --appendfsync always --dir {folder}/redis"
    return f"redis-server --bind {host} --port {port} --protected-mode no --save '' {kept}"
