"""What an operator relies on: books that balance, time that adds up, closed ports, the command line."""

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import requests

from tests.smoke.conftest import LiveCluster

pytestmark = pytest.mark.live

BODY: dict[str, Any] = {"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def eventually(holds: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Waits until `holds`."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.05)


def model_of(cluster: LiveCluster) -> dict[str, Any]:
    report: Any = cluster.status()
    (model,) = report["models"]
    return dict(model)


def quiet(cluster: LiveCluster) -> bool:
    """No lease, nobody waits, and the engines say the same."""
    model = model_of(cluster)
    engines = [(replica["engine_running"], replica["engine_waiting"], replica["engine_exchanges"]) for replica in model["replicas"]]
    return model["leases"] == 0 and sum(lane["waiting"] for lane in model["lanes"]) == 0 and all(load == (0, 0, 0) for load in engines)


def test_the_books_balance_after_a_burst_and_use_both_replicas(cluster: LiveCluster) -> None:
    before = model_of(cluster)
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
    eventually(lambda: quiet(cluster))
    after = model_of(cluster)
    assert after["endings"]["finished"] - before["endings"]["finished"] == 40
    assert after["placed"] == sum(after["endings"].values())
    assert len(used) == 2


def test_clients_that_leave_free_the_engine(cluster: LiveCluster) -> None:
    before = model_of(cluster)["endings"]["cancelled"]
    for _ in range(12):
        answer = requests.post(cluster.url + "/v1/completions", json={**BODY, "max_tokens": 4_000, "stream": True}, stream=True, timeout=60)
        next(answer.iter_content(64))
        answer.close()
    eventually(lambda: quiet(cluster))
    assert model_of(cluster)["endings"]["cancelled"] - before == 12


def test_request_ids_and_timing_come_back(cluster: LiveCluster) -> None:
    answer = requests.post(cluster.url + "/v1/completions", json=BODY, headers={"X-Request-Id": "abc-1"}, timeout=60)
    assert answer.headers["x-request-id"] == "abc-1"
    assert {part.split(";")[0].strip() for part in answer.headers["server-timing"].split(",")} == {"gateway", "lane", "engine"}


def test_the_ledger_adds_up(cluster: LiveCluster) -> None:
    for number in range(50):
        requests.post(cluster.url + "/v1/completions", json={**BODY, "stream": number % 2 == 0}, timeout=60)
    eventually(lambda: len(cluster.trace_file.read_text().splitlines()) >= 50)
    records = [json.loads(line) for line in cluster.trace_file.read_text().splitlines()]
    answered = [record for record in records if record["outcome"] == "ok" and record["path"] == "/v1/completions"]
    assert all(record["output_tokens"] == 24 for record in answered if record["max_tokens"] == 24)
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


def test_engine_ports_ask_for_the_secret_on_every_path(cluster: LiveCluster) -> None:
    secret = (cluster.run_dir / "secret").read_text()
    for replica in model_of(cluster)["replicas"]:
        for path in ("/", "/health", "/metrics", "/docs", "/openapi.json", "/v1/models", "/raylane/feed", "/ping", "/load", "/nowhere"):
            assert requests.get(replica["url"] + path, timeout=10).status_code == 401, path
        assert requests.post(replica["url"] + "/v1/completions", json=BODY, timeout=10).status_code == 401
        assert requests.get(replica["url"] + "/metrics", headers={"Authorization": f"Bearer {secret}"}, timeout=10).status_code == 200


def test_our_ports_are_bound_to_loopback(cluster: LiveCluster) -> None:
    family = [psutil.Process(cluster.process.pid), *psutil.Process(cluster.process.pid).children(recursive=True)]
    ours = {int(cluster.url.rsplit(":", 1)[1]), *(int(replica["url"].rsplit(":", 1)[1]) for replica in model_of(cluster)["replicas"])}
    bound = [connection.laddr for process in family for connection in process.net_connections("tcp") if connection.status == psutil.CONN_LISTEN]
    assert {address.port for address in bound if address.port in ours} == ours
    assert all(address.ip == "127.0.0.1" for address in bound if address.port in ours)
    engines = [process for process in family if "EngineCore" in " ".join(process.cmdline())]
    assert engines
    for process in engines:
        assert all(c.laddr.ip == "127.0.0.1" for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN)


def test_the_gateway_loads_neither_torch_nor_vllm(cluster: LiveCluster) -> None:
    report: Any = cluster.status()
    mapped = {region.path for region in psutil.Process(report["gateway"]["pid"]).memory_maps()}
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
        "bench", "--url", cluster.url, "--concurrency", "4", "--requests", "20", "--input-tokens", "16", "--output-tokens", "8", "--json", "-"
    )
    assert bench.returncode == 0, bench.stderr


def test_a_second_cluster_of_the_same_port_is_refused(cluster: LiveCluster) -> None:
    port = cluster.url.rsplit(":", 1)[1]
    again = cluster.cli("up", "--port", port)
    assert again.returncode == 1
    assert port in again.stderr
    with socket.create_connection(("127.0.0.1", int(port)), timeout=5):
        pass
