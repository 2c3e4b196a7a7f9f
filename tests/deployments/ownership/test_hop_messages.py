"""The facts of a hop, as a peer sends them: nothing of them is taken on trust."""

import json
from typing import Any

import pytest

from deployments.ownership.hop_messages import facts_of, read_facts
from deployments.peering import HandOverReason, HopFacts

FACTS = HopFacts(
    "q",
    "eu",
    7,
    12,
    1,
    HandOverReason.SOONER,
    "chat",
    "interactive",
    "acme",
    frozenset({"eu", "us"}),
    frozenset({"0a", "0b"}),
    0.5,
    -0.25,
    59.5,
    1.0,
    3,
)
PLAIN = {
    "request_id": "q",
    "home": "eu",
    "epoch": 7,
    "number": 12,
    "hops": 1,
    "reason": "sooner",
    "model": "chat",
    "traffic_class": "interactive",
    "tenant": "acme",
    "residency": ["eu", "us"],
    "marks": ["0a", "0b"],
    "waited_s": 0.5,
    "slack_s": -0.25,
    "patience_s": 59.5,
    "slo_s": 1.0,
    "peer_epoch": 3,
}


def test_the_facts_of_a_hop_cross_as_json() -> None:
    assert facts_of(FACTS) == PLAIN
    assert read_facts(json.loads(json.dumps(facts_of(FACTS)))) == FACTS


def test_whole_numbers_are_numbers_of_seconds_too() -> None:
    assert read_facts({**PLAIN, "waited_s": 0, "slo_s": 1}).waited_s == 0.0


@pytest.mark.parametrize("name", PLAIN)
def test_no_field_may_be_missing(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        read_facts({key: value for key, value in PLAIN.items() if key != name})


BAD: list[tuple[str, Any]] = [
    ("request_id", ""),
    ("request_id", "x" * 129),
    ("request_id", "two words"),
    ("request_id", "x\r\nx-evil: 1"),
    ("request_id", "\u2603"),
    ("request_id", 5),
    ("home", ""),
    ("epoch", -1),
    ("epoch", 1.5),
    ("epoch", "7"),
    ("number", 0),
    ("number", True),
    ("number", 1 << 63),
    ("hops", -1),
    ("reason", "boredom"),
    ("model", None),
    ("traffic_class", ""),
    ("tenant", "x" * 257),
    ("residency", "eu"),
    ("residency", ["eu", 5]),
    ("residency", ["eu"] * 257),
    ("marks", [""]),
    ("marks", ["m"] * 17),
    ("peer_epoch", -1),
    ("peer_epoch", 1 << 63),
    ("peer_epoch", None),
    ("waited_s", -0.1),
    ("waited_s", float("nan")),
    ("slack_s", float("-inf")),
    ("slack_s", 2e9),
    ("patience_s", float("inf")),
    ("slo_s", -1.0),
    ("slo_s", "1"),
    ("colour", "red"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_wrong_field_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        read_facts({**PLAIN, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("tenant", ""), ("slack_s", -1e9), ("patience_s", 0.0), ("hops", 255), ("epoch", 0), ("number", 1), ("slo_s", 0)],
)
def test_the_bounds_are_allowed(name: str, value: Any) -> None:
    assert getattr(read_facts({**PLAIN, name: value}), name) == value
