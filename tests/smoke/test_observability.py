"""What a real Prometheus makes of a real cluster."""

import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest
import requests

from tests.live.cluster import LiveCluster
from tests.live.cluster import eventually as until
from tests.live.prometheus import prometheus as begun
from tests.live.prometheus import samples

pytestmark = pytest.mark.live

PROMTOOL = shutil.which("promtool")
BODY = {"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 16, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def prometheus(held_cluster: LiveCluster) -> Iterator[str]:
    with begun(held_cluster) as url:
        yield url


def values(url: str, query: str) -> dict[str, float]:
    """A query's samples, by their `raylane_role`, `kind` or nothing."""
    return {
        sample["metric"].get("raylane_role") or sample["metric"].get("kind", ""): float(sample["value"][1])
        for sample in samples(url, query)
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
    for query, least in (
        ('raylane_engine_tokens_total{kind="output"}', 32),
        ("raylane_engine_step_seconds_count", 16),  # a step for each token
        ('raylane_slo_requests_total{slo="ttft"}', 2),
    ):
        until(lambda query=query, least=least: values(prometheus, f"sum({query})").get("", 0) >= least)  # type: ignore[misc]
    for name in ("client_rtt", "ttft", "itl", "tpot", "e2e", "queue_wait"):
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
