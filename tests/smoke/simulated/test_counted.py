"""What the gateways of a cell count of their traffic."""

from collections.abc import Mapping

import requests

from deployments.traffic.counts import Period, Stretches, TrafficCounts
from planning.drift.recording import stretches_of_page
from tests.live.cluster import LiveCluster, eventually
from tests.smoke.simulated.conftest import BIG


def test_the_requests_of_a_moment_ago_are_counted_once(simulated: LiveCluster) -> None:
    """Two gateways write to one file; the page holds it once."""
    before = counted(simulated)
    body = {"model": BIG, "prompt": "one two three", "max_tokens": 8, "ignore_eos": True}
    usages = [requests.post(simulated.url + "/v1/completions", json=body, timeout=60).json()["usage"] for _ in range(5)]
    eventually(lambda: counted(simulated).requests >= before.requests + 5)
    after = counted(simulated)
    assert after.finished - before.finished == 5
    assert after.output_tokens - before.output_tokens == sum(one["completion_tokens"] for one in usages) == 40
    assert after.prompt_tokens - before.prompt_tokens == sum(one["prompt_tokens"] for one in usages)
    assert page(simulated)["missing"] == 0


def page(cluster: LiveCluster) -> Mapping[str, object]:
    found: Mapping[str, object] = cluster.ask("/raylane/traffic?period=minute&hours=1").json()
    return found


def counted(cluster: LiveCluster) -> TrafficCounts:
    found: Stretches = stretches_of_page(page(cluster))
    total = TrafficCounts()
    for (period, _, stream), counts in found.counts.items():
        if period is Period.MINUTE and stream.model == BIG:
            total.merge(counts)
    return total
