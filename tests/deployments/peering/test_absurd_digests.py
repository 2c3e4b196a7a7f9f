"""A peer may say what it likes: whatever has a digest's form is taken over or refused, nothing raises, and no number
that it makes up keeps a tenant out for longer than an hour."""

import json
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deployments.gateway.peers.digests import read_digest
from deployments.peering import CellPeering, Offer, Stay
from deployments.peering.tenant_use import UseElsewhere
from deployments.scheduling import TenantPolicy, TenantUse, WaitingRequest
from deployments.scheduling.policy import MAX_DEBT_MIN, TenantLimits
from deployments.scheduling.request import Job
from tests.deployments.peering.setups import MODEL, make_model, make_request, make_spec

AMOUNTS = st.sampled_from([0.0, 5e-324, 1e-300, 1e-9, 0.5, 1.0, 1e6, 1e18]) | st.floats(0, 1e18)
NUMBERS = st.sampled_from([0, 1, 2, 1 << 31, (1 << 63) - 1]) | st.integers(0, (1 << 63) - 1)
NAMES = st.sampled_from(["", "all", "a", "eu", "us", "\u2603", "x\ny", "y" * 256])
USES = st.tuples(NAMES, AMOUNTS, AMOUNTS | AMOUNTS.map(lambda amount: -amount), NUMBERS)
COUNTS = ("replicas", "max_sequences", "free_sequences", "max_kv_tokens", "free_kv_tokens")
MODELS = st.fixed_dictionaries(
    {
        "model": st.just(MODEL) | NAMES,
        "lanes": st.lists(st.tuples(NAMES, AMOUNTS, AMOUNTS), max_size=3),
        **dict.fromkeys(COUNTS, NUMBERS),
        "prefill_tokens_per_s": AMOUNTS,
        "usd_per_mtok": st.none() | AMOUNTS,
        "hands_over": st.booleans(),
        "tenants": st.lists(USES, max_size=3),
    }
)
RECEIVED = st.tuples(NAMES, NUMBERS, NUMBERS)
DIGESTS = st.fixed_dictionaries(
    {
        "epoch": st.integers(1, 3) | NUMBERS,
        "sequence": NUMBERS,
        "models": st.lists(MODELS, min_size=1, max_size=2),
        "received": st.lists(RECEIVED, max_size=3),
    }
)
POLICY = TenantPolicy(requests_per_minute=60.0, tokens_per_minute=6_000.0, max_concurrency=4)
WAITS = (0.0, 0.5, 10.0, math.inf, None)


def limits() -> TenantLimits:
    made = TenantLimits()
    made.configure({"a": POLICY}, 0.0)
    return made


@pytest.mark.whole
@settings(max_examples=60)
@given(st.lists(DIGESTS, min_size=1, max_size=3))
def test_nothing_raises_and_every_number_stays_one(said: list[dict[str, Any]]) -> None:
    spec = make_spec()
    home, here = CellPeering(spec, "eu", 1), limits()
    for turn, content in enumerate(said):
        now, asked = float(turn), home.ask(float(turn))["us"]
        whole = content | {"cell": "us", "answers": list(asked), "marks": sorted(home.rules.marks)}
        home.heard(read_digest(json.loads(json.dumps(whole))), now)
        here.used_elsewhere(home.used_elsewhere(MODEL, now), now)
        for number, wait_s in enumerate(WAITS):
            name = f"{turn}-{number}"
            decision = home.decide(WaitingRequest(make_request(name, now), "all", wait_s, 50), make_model(), now)
            assert isinstance(decision, Offer | Stay)
            if isinstance(decision, Offer):
                assert not math.isnan(home.away[name].expected_s)
                home.over(name)
        assert 0.0 <= home.spare(MODEL, now) < math.inf
        over = here.reject(Job(make_request("q", now, tenant="a"), 1), now)
        assert over is None or 0.0 < over[1] <= 60.0 * (MAX_DEBT_MIN + 2)
    assert not home.away


@given(USES, USES)
@example(("a", 0.0, 0.0, 0), ("a", 1e18, 1e18, 0))
def test_no_word_of_a_peer_keeps_a_tenant_out_for_longer_than_an_hour(first: Any, second: Any) -> None:
    here, elsewhere = limits(), UseElsewhere(2.0)
    for asked_s, (_, *use) in ((0.0, first), (1.0, second)):
        elsewhere.heard("us", 1, MODEL, [TenantUse("a", *use)], asked_s)
    here.used_elsewhere(elsewhere.news(MODEL, 1.0), 1.0)
    later_s = 60.0 * (MAX_DEBT_MIN + 1) + 2.0
    here.used_elsewhere(elsewhere.news(MODEL, later_s), later_s)
    assert here.reject(Job(make_request("q", later_s, tenant="a"), 1), later_s) is None


def test_requests_are_not_given_back() -> None:
    """A count that falls within one epoch is none: it frees nothing here."""
    here, elsewhere = limits(), UseElsewhere(2.0)
    for asked_s, requests in ((0.0, 0.0), (1.0, 60.0), (1.1, 0.0)):
        elsewhere.heard("us", 1, MODEL, [TenantUse("a", requests, 0.0, 0)], asked_s)
    here.used_elsewhere(elsewhere.news(MODEL, 1.1), 1.1)
    assert here.reject(Job(make_request("q", 1.1, tenant="a"), 1), 1.1) is not None


@pytest.mark.parametrize("amount", [1.1e18, math.inf, math.nan, -1.0])
def test_amounts_whose_sums_would_be_none_are_refused(amount: float) -> None:
    model = {"model": MODEL, "lanes": [["all", 0.0, amount]], "prefill_tokens_per_s": 1.0} | dict.fromkeys(COUNTS, 1)
    whole = {"cell": "us", "epoch": 1, "sequence": 1, "answers": [1, 1], "marks": []}
    with pytest.raises(ValueError, match="lanes"):
        read_digest(whole | {"models": [model]})
