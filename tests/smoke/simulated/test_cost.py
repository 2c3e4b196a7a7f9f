"""What a cell that is up tells of the requests of a moment ago: `raylane cost` bills them, and its gateways count
them."""

import json
from fractions import Fraction
from typing import Any

import requests

from deployments.traffic.counts import StretchRecord, TrafficCounts
from deployments.wire import from_plain
from tests.live.cluster import LiveCluster, eventually
from tests.smoke.simulated.conftest import BIG, REPLICAS


def test_the_requests_of_a_moment_ago_are_billed_and_counted_once(simulated: LiveCluster) -> None:
    before, counts = work_of(simulated), counted(simulated)
    body = {"model": BIG, "prompt": "one two three", "max_tokens": 8, "ignore_eos": True}
    usages = [requests.post(simulated.url + "/v1/completions", json=body, timeout=60).json()["usage"] for _ in range(5)]
    eventually(lambda: work_of(simulated)["requests"] >= before["requests"] + 5)
    eventually(lambda: counted(simulated).requests >= counts.requests + 5)
    record = bill_of(simulated)
    after, later = work_of(simulated), counted(simulated)
    prompts, outputs = (sum(one[key] for one in usages) for key in ("prompt_tokens", "completion_tokens"))
    assert (
        after["output_tokens"] - before["output_tokens"] == later.output_tokens - counts.output_tokens == outputs == 40
    )
    assert after["prompt_tokens"] - before["prompt_tokens"] == later.prompt_tokens - counts.prompt_tokens == prompts
    assert later.finished - counts.finished == 5
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


def counted(cluster: LiveCluster) -> TrafficCounts:
    found = from_plain(cluster.ask("/raylane/traffic?period=minute&hours=1").json(), StretchRecord)
    total = TrafficCounts()
    for (_, _, stream), counts in found.stretches().counts.items():
        if stream.model == BIG:
            total.merge(counts)
    return total
