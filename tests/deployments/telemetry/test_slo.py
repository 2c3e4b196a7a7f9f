"""Which requests met their class's SLOs, and what Prometheus sees of it."""

from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from cluster.spec import ClusterSpec
from deployments.protocol import Finished, Usage
from deployments.telemetry.exposition import Exposition
from deployments.telemetry.ledger import Ledger, RequestOutcome
from deployments.telemetry.slo import ServiceLevels, itl_met, ttft_met
from tests.deployments.gateway.rig import make_spec

CLASSES = [{"name": "chat", "ttft_ms": 500, "itl_ms": 20, "attainment": 0.95}, {"name": "batch", "ttft_ms": 30_000}]
SPEC = make_spec(8000, {}, {}, classes=CLASSES)


def ledger(first_s: float | None, outcome: RequestOutcome = RequestOutcome.OK, status: int = 200) -> Ledger:
    """Submitted at 100.2; ended at 101."""
    model = SPEC.models[0].name
    one = Ledger(
        "a", "b", "/v1/completions", 100.0, 1.7e9, model=model, traffic_class="chat", stream=True, lane="short"
    )
    one.submitted(100.2)
    one.left_lane(100.3, placed=first_s is not None)
    one.outcome, one.status, one.first_byte_s, one.ended_s = outcome, status, first_s, 101.0
    return one


def answered(tokens: int, waited_s: float, first_s: float = 100.4) -> Ledger:
    one = ledger(first_s)
    one.last_byte_s, one.engine_wait_s = 101.0, waited_s
    one.finished = Finished("b", 200, Usage(300, 120, tokens, 0, 1, 0.1, 9.0, 0.0), 0.2, 0.8)
    return one


@pytest.mark.parametrize(
    ("one", "met"),
    [
        (ledger(100.7), True),  # from when it was submitted, as its deadline does
        (ledger(100.71), False),
        (ledger(None, RequestOutcome.FAILED, 503), False),
        (ledger(None, RequestOutcome.CANCELLED), False),
        (ledger(None, RequestOutcome.REFUSED, 429), None),
        (ledger(100.4, RequestOutcome.REFUSED, 400), None),
        (ledger(100.4, RequestOutcome.FAILED), True),  # broken off after its first token
        (Ledger("a", "b", "/v1/completions", 100.0, 1.7e9, outcome=RequestOutcome.REFUSED), None),
    ],
)
def test_a_first_token_meets_its_slo_misses_it_or_neither(one: Ledger, met: bool | None) -> None:
    assert ttft_met(one, 0.5) is met


def test_who_leaves_in_time_has_missed_nothing() -> None:
    one = ledger(None, RequestOutcome.CANCELLED)
    one.ended_s = 100.6
    assert ttft_met(one, 0.5) is None


def test_the_mean_time_between_tokens_is_judged_without_a_clients_stalls() -> None:
    assert itl_met(answered(11, 0.2), 0.02) is True
    assert itl_met(answered(11, 0.21), 0.02) is False
    assert itl_met(answered(1, 0.0), 0.02) is None
    assert itl_met(ledger(100.4), 0.02) is None


@dataclass(frozen=True)
class Known:
    spec: ClusterSpec

    def is_served(self, model: str) -> bool:
        return True


def shown(spec: ClusterSpec, *ledgers: Ledger) -> CollectorRegistry:
    levels, registry = ServiceLevels([spec.models[0].name]), CollectorRegistry()
    levels.service = Known(spec)
    for one in ledgers:
        levels.observe(one)
    registry.register(Exposition(levels.samples))
    return registry


def test_all_of_it_is_zero_at_the_start() -> None:
    registry = shown(SPEC)
    for name, slos in (("chat", ("ttft", "itl")), ("batch", ("ttft",))):
        for slo in ("ttft", "itl"):
            labels = {"model": SPEC.models[0].name, "class": name, "slo": slo}
            counts = {
                registry.get_sample_value("raylane_slo_requests_total", {**labels, "result": r})
                for r in ("met", "missed")
            }
            assert counts == ({0.0} if slo in slos else {None})
    assert registry.get_sample_value("raylane_slo_target_ratio", {**labels, "class": "chat"}) == 0.95


def test_each_request_counts_once_for_each_slo_and_a_peers_not_at_all() -> None:
    guest = answered(11, 0.2)
    guest.home = "elsewhere"
    registry = shown(SPEC, answered(11, 0.2), answered(11, 0.3), ledger(None, RequestOutcome.FAILED, 503), guest)
    labels = {"model": SPEC.models[0].name, "class": "chat"}

    def count(slo: str, result: str) -> float | None:
        return registry.get_sample_value("raylane_slo_requests_total", {**labels, "slo": slo, "result": result})

    assert [count("ttft", "met"), count("ttft", "missed"), count("itl", "met"), count("itl", "missed")] == [2, 1, 1, 1]
    tokens = {"model": labels["model"], "lane": "short"}
    assert registry.get_sample_value("raylane_lane_tokens_total", {**tokens, "kind": "in"}) == 600
    assert registry.get_sample_value("raylane_lane_tokens_total", {**tokens, "kind": "cached"}) == 240


def test_owners_of_models_and_tenants_are_shown() -> None:
    tenant = {"name": "t", "keys": ["sha256:" + "0" * 64], "owner": "ads"}
    content = SPEC.model_dump(mode="json") | {"tenants": [tenant]}
    content["models"][0]["owner"] = "search"
    registry = shown(ClusterSpec.model_validate(content))
    model = {"model": SPEC.models[0].name}
    assert registry.get_sample_value("raylane_model_info", {**model, "owner": "search"}) == 1
    assert registry.get_sample_value("raylane_tenant_info", {"tenant": "t", "owner": "ads"}) == 1
    assert registry.get_sample_value("raylane_model_ready", model) == 1
