"""What an operator relies on: books that balance, time that adds up, closed ports, the command line."""

import json
import socket
import threading
import time
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


def test_request_ids_and_timing_come_back(cluster: LiveCluster) -> None:
    answer = requests.post(cluster.url + "/v1/completions", json=BODY, headers={"X-Request-Id": "abc-1"}, timeout=60)
    assert answer.headers["x-request-id"] == "abc-1"
    reported = {part.split(";")[0].strip() for part in answer.headers["server-timing"].split(",")}
    assert reported - {"decode"} == {"gateway", "lane", "engine"}, (
        "a whole answer's decoding is told where the engine told of its first token in time"
    )


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


def test_metrics_tell_tokens_by_the_engines_own_count(cluster: LiveCluster) -> None:
    def tokens() -> float:
        lines = cluster.ask("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith('raylane_tokens_total{kind="out"'))

    requests.post(cluster.url + "/v1/completions", json=BODY, timeout=60)
    time.sleep(1.5)  # the longest that a ledger waits for the engine's statistics
    before = tokens()
    requests.post(cluster.url + "/v1/completions", json=BODY, timeout=60)
    eventually(lambda: tokens() - before == 24)
    groups = cluster.ask("/raylane/http_sd").json()
    assert [group["labels"]["raylane_role"] for group in groups] == ["gateway", "engine", "engine"]


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
    bench = cluster.cli(
        "bench",
        "--url",
        cluster.url,
        "--concurrency",
        "4",
        "--requests",
        "20",
        "--input-tokens",
        "16",
        "--output-tokens",
        "8",
        "--json",
        "-",
    )
    assert bench.returncode == 0, bench.stderr


def test_a_second_cluster_of_the_same_port_is_refused(cluster: LiveCluster) -> None:
    port = cluster.url.rsplit(":", 1)[1]
    again = cluster.cli("up", "--port", port)
    assert again.returncode == 1
    assert port in again.stderr
    with socket.create_connection(("127.0.0.1", int(port)), timeout=5):
        pass
