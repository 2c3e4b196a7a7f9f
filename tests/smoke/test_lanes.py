"""Lanes, tenants, and the commands that explain them, on a running cluster."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.live.clients import begin, clients
from tests.live.cluster import LiveCluster, eventually, eventually_async

pytestmark = pytest.mark.live

SHORT: dict[str, Any] = {"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 4, "temperature": 0}
LONG: dict[str, Any] = {"model": "demo", "prompt": "one two three " * 1_500, "max_tokens": 4, "temperature": 0}


def changed_spec(cluster: LiveCluster, file: Path, **sections: Any) -> Path:
    """The running spec with other sections, as a file."""
    spec = cluster.ask("/raylane/spec").json()
    file.write_text(yaml.safe_dump({**spec, **sections}))
    return file


def test_requests_go_to_lanes_by_length_and_each_is_explained(cluster: LiveCluster) -> None:
    for name, body, lane in (("short-one", SHORT, "short"), ("long-one", LONG, "long")):
        answer = requests.post(cluster.url + "/v1/completions", json=body, headers={"x-request-id": name}, timeout=60)
        assert answer.status_code == 200, answer.text
        eventually(lambda name=name: cluster.ask(f"/raylane/requests/{name}").status_code == 200)  # type: ignore[misc]
        record = json.loads(cluster.done("why", name, "--json"))
        assert record["lane"] == lane
        assert [decision["verdict"] for decision in record["decisions"]] == ["admitted", "placed"]
        shown = cluster.done("why", name)
        assert "where its" in shown
        assert record["replica"] in shown
    assert "not among the last" in cluster.cli("why", "nobody").stderr


async def test_top_shows_who_waits(cluster: LiveCluster) -> None:
    async with clients() as session:
        crowd = begin(session, cluster.url, 160, max_tokens=160)  # 128 run
        await eventually_async(lambda: sum(lane["waiting"] for lane in cluster.model()["lanes"]) > 0, every_s=0.2)
        shown = await asyncio.to_thread(cluster.done, "top", "--once")
        await eventually_async(lambda: any(lane["estimated"] for lane in cluster.model()["lanes"]), every_s=0.2)
        for one in crowd:
            one.task.cancel()
        await asyncio.gather(*(one.task for one in crowd), return_exceptions=True)
    for word in ("short", "medium", "long", "promoted", "wait p50"):
        assert word in shown
    await asyncio.to_thread(cluster.settle)


def test_tenants_are_applied_and_taken_away_without_a_restart(cluster: LiveCluster, tmp_path: Path) -> None:
    key, digest = cluster.cli("key").stdout.split()
    tenants = [{"name": "team", "keys": [digest], "requests_per_minute": 2}]
    desired = changed_spec(cluster, tmp_path / "tenants.yaml", tenants=tenants)
    before = changed_spec(cluster, tmp_path / "before.yaml")
    said = cluster.cli("apply", str(desired), "--check")
    assert "would apply" in said.stdout, said.stderr
    url, headers = cluster.url + "/v1/completions", {"authorization": f"Bearer {key}"}
    assert requests.post(url, json=SHORT, timeout=60).status_code == 200
    try:
        assert cluster.cli("apply", str(desired)).returncode == 0
        assert requests.post(url, json=SHORT, timeout=60).status_code == 401
        assert [requests.post(url, json=SHORT, headers=headers, timeout=60).status_code for _ in range(3)] == [
            200,
            200,
            429,
        ]
    finally:
        assert cluster.cli("apply", str(before)).returncode == 0
    assert requests.post(url, json=SHORT, timeout=60).status_code == 200
    moved = changed_spec(cluster, tmp_path / "moved.yaml", name="elsewhere")
    refused = cluster.cli("apply", str(moved))
    assert refused.returncode == 1
    assert "needs a restart" in refused.stderr
