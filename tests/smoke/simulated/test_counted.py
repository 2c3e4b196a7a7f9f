"""What the gateways of a cell count of their traffic."""

import requests

from deployments.traffic.counts import StretchRecord, TrafficCounts
from deployments.wire import from_plain
from tests.live.cluster import LiveCluster, eventually
from tests.smoke.simulated.conftest import BIG


def test_the_requests_of_a_moment_ago_are_counted_once(simulated: LiveCluster) -> None:
    """Two gateways deliver to one directory."""
    before = counted(simulated)
    body = {"model": BIG, "prompt": "one two three", "max_tokens": 8, "ignore_eos": True}
    usages = [requests.post(simulated.url + "/v1/completions", json=body, timeout=60).json()["usage"] for _ in range(5)]
    eventually(lambda: counted(simulated).requests >= before.requests + 5)
    after = counted(simulated)
    assert after.finished - before.finished == 5
    assert after.output_tokens - before.output_tokens == sum(one["completion_tokens"] for one in usages) == 40
    assert after.prompt_tokens - before.prompt_tokens == sum(one["prompt_tokens"] for one in usages)


def counted(cluster: LiveCluster) -> TrafficCounts:
    found = from_plain(cluster.ask("/raylane/traffic?period=minute&hours=1").json(), StretchRecord)
    total = TrafficCounts()
    for (_, _, stream), counts in found.stretches().counts.items():
        if stream.model == BIG:
            total.merge(counts)
    return total
