"""What an operator relies on: books that balance, time that adds up, closed ports, the command line."""

import json
import socket
import threading
from typing import Any

import psutil
import pytest
import requests

from tests.live.cluster import LiveCluster, eventually

pytestmark = pytest.mark.live

BODY: dict[str, Any] = {"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def test_the_books_balance_after_a_burst_and_use_both_replicas(cluster: LiveCluster) -> None:
    before = cluster.model()
    used: set[str] = set()

    def run() -> None:
        answer = requests.post(cluster.url + "/v1/completions", json=BODY, timeout=120)
        assert answer.status_code == 200
        used.add(answer.headers["x-raylane-placement"].split(";")[0])

    threads = [threading.Thread(target=run) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = cluster.settle()
    assert after["endings"]["finished"] - before["endings"]["finished"] == 40
    assert len(used) == 2


def test_the_ledger_adds_up(cluster: LiveCluster) -> None:
    for number in range(50):
        body, named = {**BODY, "stream": number % 2 == 0}, {"x-request-id": f"ledger-{number}"}
        requests.post(cluster.url + "/v1/completions", json=body, headers=named, timeout=60)

    def own() -> list[dict[str, Any]]:
        return [record for record in cluster.records() if record["request_id"].startswith("ledger-")]

    eventually(lambda: len(own()) == 50)
    assert {record["output_tokens"] for record in own()} == {24}
    records = cluster.records()
    answered = [record for record in records if record["outcome"] == "ok" and record["path"] == "/v1/completions"]
    excess = sorted(abs(record["unaccounted_s"]) - max(0.002, 0.01 * record["wall_s"]) for record in answered)
    assert excess[int(0.99 * (len(excess) - 1))] <= 0
    assert not any("1, 2, 3" in line for line in cluster.trace_file.read_text().splitlines())


def test_the_gateway_loads_neither_torch_nor_vllm(cluster: LiveCluster) -> None:
    mapped = {region.path for region in psutil.Process(cluster.gateway_pid()).memory_maps()}
    assert not [path for path in mapped if "/torch/" in path or "/vllm/" in path]


def test_the_secret_is_in_no_command_line_or_environment(cluster: LiveCluster) -> None:
    secrets = [(cluster.run_dir / name).read_text() for name in ("secret", "ray_token")]
    for process in psutil.Process(cluster.process.pid).children(recursive=True):
        shown = " ".join(process.cmdline()) + " ".join(process.environ().values())
        assert not any(secret in shown for secret in secrets), process


def test_the_command_line(cluster: LiveCluster) -> None:
    once = cluster.cli("status", "--once")
    assert once.returncode == 0
    assert "2/2" in once.stdout
    assert json.loads(cluster.cli("status", "--json").stdout)["cluster"] == "smoke"
    load = "--concurrency 4 --requests 20 --input-tokens 16 --output-tokens 8"
    bench = cluster.cli("bench", "--url", cluster.url, *load.split(), "--json", "-")
    assert bench.returncode == 0, bench.stderr


def test_a_second_cluster_of_the_same_port_is_refused(cluster: LiveCluster) -> None:
    port = cluster.url.rsplit(":", 1)[1]
    again = cluster.cli("up", "--port", port)
    assert again.returncode == 1
    assert port in again.stderr
    with socket.create_connection(("127.0.0.1", int(port)), timeout=5):
        pass
