"""A trace as a collector gets it from a real cell: vLLM's own span beneath the gateway's."""

import secrets

import pytest
import requests

from tests.live.cluster import LiveCluster, eventually
from tests.otlp import Collector, attributes

pytestmark = pytest.mark.live

BODY = {"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def test_vllms_span_is_beneath_the_requests(cluster: LiveCluster, collector: Collector) -> None:
    trace, parent = secrets.token_hex(16), secrets.token_hex(8)
    for flags in ("00", "01"):
        headers = {"traceparent": f"00-{trace}-{parent}-{flags}"}
        assert requests.post(cluster.url + "/v1/completions", json=BODY, headers=headers, timeout=60).status_code == 200
    assert requests.post(cluster.url + "/v1/completions", json=BODY, timeout=60).status_code == 200
    eventually(lambda: collector.named("text_completion") and collector.named("llm_request"))
    (own,), (vllms,) = collector.named("text_completion"), collector.named("llm_request")
    assert own.parent_span_id.hex() == parent
    assert vllms.parent_span_id == own.span_id
    assert {span.trace_id.hex() for span in collector.spans} == {trace}, "what is not sampled leaves none, nor a start"
    assert own.start_time_unix_nano <= vllms.start_time_unix_nano < own.end_time_unix_nano
    about, theirs = attributes(own), attributes(vllms)
    assert about["raylane.attempt_id"] in theirs["gen_ai.request.id"]
    assert about["gen_ai.usage.output_tokens"] == theirs["gen_ai.usage.completion_tokens"] == "8"
