"""Residency, by the sender's check and by the receiver's, which share no code; and what two specs both know."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.spec import HandOverSettings
from deployments.peering import HandOverReason, Here, HopFacts, HopRefusal, Reception, Rules
from tests.deployments.peering import setups
from tests.deployments.peering.setups import CELLS, KEY, MODEL, make_spec

LIMITED = {
    "models": [
        {"name": MODEL, "source": "s", "settings": {"max_model_len": 100}, "residency": ["eu", "us"]}
        | {"regions": ["eu", "us"]}
    ],
    "classes": [{"name": "interactive", "ttft_ms": 1_000}, {"name": "medical", "ttft_ms": 500, "residency": ["eu"]}],
    "tenants": [
        {"name": "free", "keys": [KEY + "1"]},
        {"name": "local", "keys": [KEY + "2"], "peers": []},
        {"name": "german", "keys": [KEY + "3"], "residency": ["eu"]},
    ],
}
CALM = Here(0.2, 0.0)


def make_hop(**changes: Any) -> HopFacts:
    own = {"tenant": "free", "waited_s": 1.0, "slack_s": -0.5, "patience_s": 20.0, "max_tokens": None}
    return setups.make_hop(make_spec(**LIMITED), **own | changes)


def refusal(hop: HopFacts, here: Here = CALM, cell: str = "us", spec: Any = None) -> HopRefusal | None:
    spec = spec or make_spec(**LIMITED)
    return Reception(spec, cell, Rules(spec).marks, HandOverSettings()).refuse(hop, here)


def test_each_hand_over_of_a_request_has_its_own_id_in_the_cell_that_takes_it() -> None:
    """After a change of its home's owner a request may be offered to a peer again, where its guest is still there."""
    hops = [make_hop(attempt=attempt) for attempt in (1, 2, 12)]
    hops += [make_hop(request_id="r2"), make_hop(home="ap")]
    assert len({hop.guest_id for hop in hops}) == len(hops)


def test_the_senders_rules() -> None:
    rules = Rules(make_spec(**LIMITED))
    assert rules.allowed(MODEL, "interactive", "free").residency == {"eu", "us"}
    assert rules.allowed(MODEL, "interactive", "free").peers == set(CELLS)
    assert rules.allowed(MODEL, "interactive", "local").peers == set()
    assert rules.allowed(MODEL, "medical", "free").residency == {"eu"}
    for unknown in (("other", "interactive", "free"), (MODEL, "other", "free"), (MODEL, "interactive", "")):
        assert rules.allowed(*unknown).residency == set()
        assert not rules.marks_of(*unknown) <= rules.marks
    assert Rules(make_spec()).allowed(MODEL, "batch", "").residency == set(CELLS)


def test_what_a_cell_takes_and_refuses() -> None:
    assert refusal(make_hop()) is None
    assert refusal(make_hop(home="mars")) is HopRefusal.UNKNOWN_CELL
    assert refusal(make_hop(hops=2)) is HopRefusal.LOOP
    assert refusal(make_hop(hops=0)) is HopRefusal.LOOP
    assert refusal(make_hop(home="us")) is HopRefusal.LOOP
    assert refusal(make_hop(marks=frozenset())) is HopRefusal.SPEC
    assert refusal(make_hop(marks=frozenset({"other"}))) is HopRefusal.SPEC
    assert refusal(make_hop(tenant="german")) is HopRefusal.RESIDENCY
    assert refusal(make_hop(tenant="german", residency=frozenset(CELLS))) is HopRefusal.RESIDENCY, "whatever is said"
    assert refusal(make_hop(residency=frozenset({"eu"}))) is HopRefusal.RESIDENCY, "the home knows a narrower line"
    assert refusal(make_hop(traffic_class="medical", residency=frozenset(CELLS))) is HopRefusal.RESIDENCY
    assert refusal(make_hop(tenant="local")) is HopRefusal.RESIDENCY
    assert refusal(make_hop(residency=frozenset(CELLS)), cell="ap") is HopRefusal.RESIDENCY


def test_its_own_clients_come_first() -> None:
    assert refusal(make_hop(), Here(0.2, 1.1)) is HopRefusal.LATE
    assert refusal(make_hop(), Here(0.2, None)) is HopRefusal.LATE
    assert refusal(make_hop(), Here(0.85, 0.5)) is None
    assert refusal(make_hop(), Here(0.95, 0.5)) is HopRefusal.LOADED
    failover = make_hop(reason=HandOverReason.NO_REPLICA)
    assert refusal(failover, Here(0.99, 15.0)) is None
    assert refusal(failover, Here(0.99, 21.0)) is HopRefusal.LATE


def test_the_marks_say_what_differs() -> None:
    old, new = make_spec(), make_spec(classes=[{"name": "interactive", "ttft_ms": 999}])
    assert not Rules(old).marks_of(MODEL, "interactive", "") <= Rules(new).marks
    bigger = make_spec(
        models=[{"name": MODEL, "source": "s", "settings": {"max_model_len": 10_000, "max_num_seqs": 9}}]
    )
    assert Rules(bigger).marks == Rules(old).marks, "what the engines run on may differ"
    other = make_spec(models=[{"name": MODEL, "source": "t", "settings": {"max_model_len": 10_000}}])
    assert not Rules(old).marks_of(MODEL, "interactive", "") <= Rules(other).marks


REGIONS = st.none() | st.lists(st.sampled_from(CELLS), min_size=1, unique=True)


@pytest.mark.whole
@given(REGIONS, REGIONS, REGIONS, st.none() | st.lists(st.sampled_from(CELLS), unique=True))
def test_both_checks_agree_with_a_third(
    model: list[str] | None, traffic_class: list[str] | None, tenant: list[str] | None, peers: list[str] | None
) -> None:
    spec = make_spec(
        models=[
            {"name": MODEL, "source": "s", "settings": {"max_model_len": 100}, "residency": model, "regions": model}
        ],
        classes=[{"name": "c", "ttft_ms": 1, "residency": traffic_class}],
        tenants=[{"name": "t", "keys": [KEY + "1"], "residency": tenant, "peers": peers}],
    )
    rules = Rules(spec)
    allowed = rules.allowed(MODEL, "c", "t")
    for cell in CELLS:
        may = all(names is None or cell in names for names in (model, traffic_class, tenant))
        used = peers is None or cell in peers
        assert (cell in allowed.residency) is may
        assert (cell in allowed.peers) is used
        hop = make_hop(
            home=next(one for one in CELLS if one != cell),
            traffic_class="c",
            tenant="t",
            residency=frozenset(CELLS),
            marks=rules.marks_of(MODEL, "c", "t"),
        )
        assert (refusal(hop, cell=cell, spec=spec) is None) is (may and used)


def test_the_cells_that_may_serve_any_request() -> None:
    assert Rules(make_spec()).always_allowed(MODEL) == frozenset(CELLS)
    model = LIMITED | {"classes": [{"name": "interactive", "ttft_ms": 1_000}], "tenants": []}
    assert Rules(make_spec(**model)).always_allowed(MODEL) == {"eu", "us"}
    assert Rules(make_spec(**LIMITED | {"tenants": []})).always_allowed(MODEL) == {"eu"}
    assert Rules(make_spec(**LIMITED)).always_allowed(MODEL) == frozenset(), "a tenant may use no peer"
    assert Rules(make_spec()).always_allowed("unknown") == frozenset()
