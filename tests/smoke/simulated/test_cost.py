"""`raylane cost` of a cell that is up."""

import json
from fractions import Fraction
from typing import Any

import requests

from tests.live.cluster import LiveCluster, eventually
from tests.smoke.simulated.conftest import BIG, REPLICAS


def test_the_bill_has_the_requests_of_a_moment_ago(simulated: LiveCluster) -> None:
    before = work_of(simulated)
    body = {"model": BIG, "prompt": "one two three", "max_tokens": 8, "ignore_eos": True}
    usages = [requests.post(simulated.url + "/v1/completions", json=body, timeout=60).json()["usage"] for _ in range(5)]
    eventually(lambda: work_of(simulated)["requests"] >= before["requests"] + 5)
    record = bill_of(simulated)
    after = work_of(simulated)
    assert after["output_tokens"] - before["output_tokens"] == sum(one["completion_tokens"] for one in usages) == 40
    assert after["prompt_tokens"] - before["prompt_tokens"] == sum(one["prompt_tokens"] for one in usages)
    assert sum(row["ns"] for row in record["rows"]) == record["total"]["ns"]
    assert {row["share"] for row in record["rows"] if row["model"] == BIG} >= {"work", "starting", "idle"}
    assert record["basis"][f"{BIG}@default"].startswith("the step model")
    alive_s = sum(row["ns"] for row in record["rows"] if row["model"] == BIG) / 1e9
    assert alive_s > REPLICAS
    assert Fraction(record["total"]["usd"]) == 0, "the shipped spec has no price"


def bill_of(cluster: LiveCluster) -> dict[str, Any]:
    return dict(json.loads(cluster.done("cost", "--json", "--by", "model", "--url", cluster.url)))


def work_of(cluster: LiveCluster) -> dict[str, int]:
    rows = [row for row in bill_of(cluster)["rows"] if (row["model"], row["share"]) == (BIG, "work")]
    return {key: sum(row[key] for row in rows) for key in ("requests", "prompt_tokens", "output_tokens")}
