"""What a real Prometheus makes of a real cluster."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.live.cluster import LiveCluster, free_port

pytestmark = pytest.mark.live

PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")
BODY = {"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 16, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def prometheus(held_cluster: LiveCluster) -> Iterator[str]:
    """A Prometheus that finds the cluster's processes by itself, with the secret that engines ask for."""
    if PROMETHEUS is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    folder = Path(tempfile.mkdtemp(prefix="raylane-prometheus-"))
    authorization = {"type": "Bearer", "credentials_file": str(held_cluster.run_dir / "secret")}
    scrape = {
        "job_name": "raylane",
        "scrape_interval": "1s",
        "http_sd_configs": [
            {"url": held_cluster.url + "/raylane/http_sd", "refresh_interval": "1s", "authorization": authorization}
        ],
        "authorization": authorization,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump({"scrape_configs": [scrape]}))
    address = f"127.0.0.1:{free_port()}"
    command = [
        PROMETHEUS,
        f"--config.file={folder}/config.yaml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process:
        yield f"http://{address}"
        process.terminate()
        process.wait(30)
    shutil.rmtree(folder)


def values(prometheus: str, query: str) -> dict[str, float]:
    """A query's samples, by their `raylane_role`, `kind` or nothing."""
    try:
        answer: Any = requests.get(prometheus + "/api/v1/query", params={"query": query}, timeout=10).json()
    except requests.RequestException:
        return {}
    found = answer.get("data", {}).get("result", [])
    return {
        sample["metric"].get("raylane_role") or sample["metric"].get("kind", ""): float(sample["value"][1])
        for sample in found
    }


def eventually(prometheus: str, query: str, desired: dict[str, float]) -> None:
    deadline = time.monotonic() + 60
    while (found := values(prometheus, query)) != desired:
        assert time.monotonic() < deadline, (query, found)
        time.sleep(0.2)


def test_prometheus_finds_and_scrapes_every_process(cluster: LiveCluster, prometheus: str) -> None:
    eventually(prometheus, "sum by (raylane_role) (up)", {"gateway": 1, "engine": 2})
    before = values(prometheus, "sum by (kind) (raylane_tokens_total)").get("out", 0)
    for stream in (True, False):
        requests.post(cluster.url + "/v1/completions", json={**BODY, "stream": stream}, timeout=60)
    eventually(prometheus, 'sum by (kind) (raylane_tokens_total{kind="out"})', {"out": before + 32})
    eventually(prometheus, "count by (raylane_role) (vllm:kv_cache_usage_perc)", {"engine": 2})
    engines = values(prometheus, 'sum by (kind) (raylane_engine_tokens_total{kind="output"})')
    assert engines["output"] >= 32
    for name in ("ttft", "itl", "tpot", "e2e", "queue_wait"):
        assert values(prometheus, f"histogram_quantile(0.5, sum by (le) (raylane_{name}_seconds_bucket))")[""] > 0, name


def test_metric_names_are_prometheus_own_way(cluster: LiveCluster) -> None:
    if PROMTOOL is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    metrics = cluster.ask("/metrics").content
    checked = subprocess.run([PROMTOOL, "check", "metrics"], input=metrics, capture_output=True, timeout=60)
    complaints = [
        line
        for line in checked.stdout.decode().splitlines() + checked.stderr.decode().splitlines()
        if line.startswith("raylane")
    ]
    assert complaints == []
