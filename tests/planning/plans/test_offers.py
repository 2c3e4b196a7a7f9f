"""What could serve and at which price: candidates, the spec's own groups, sources, and what would not start."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.files import shipped
from deployments.engine_model.replica_rate import rate_at
from planning.capacity.problem import PriceKind
from planning.plans.offers import RejectedOffer, offers_of
from planning.plans.planner import PlanError, case_from
from planning.plans.prices import prices_of
from planning.worksheet.load import load_worksheet
from tests.deployments.accounting import test_tariffs
from tests.planning.fit.configs import QWEN3_30B_A3B
from tests.planning.plans import small

AWS = {**test_tariffs.AWS, "pools": [{"pool": "l4", "instance_type": "g6.12xlarge"}]}
KINDS = {"prices": {"spot": {"max_share": 0.5}, "reserved": True}}


def prices(folder: Path, gpu: str, spec: dict[str, Any] | None = None, **sheet: Any) -> dict[PriceKind, Any]:
    path = small.write(folder, KINDS | {"gpu_prices": []} | sheet, spec)
    found, loaded = load_worksheet(path)
    view = case_from(found, loaded).offers[0].view
    return prices_of(gpu, view, loaded.regions[0], found, loaded)


def test_the_worksheets_price_comes_first(tmp_path: Path) -> None:
    own = {"gpu": "L4", "region": "us-east-1", "reserved_usd_per_gpu_hour": 0.4, "source": "a contract, 2026-10"}
    found = prices(tmp_path, "L4", gpu_prices=[own])
    assert (found[PriceKind.RESERVED].usd_per_replica_hour, found[PriceKind.RESERVED].source) == (
        0.4,
        "a contract, 2026-10",
    )
    assert "g6.xlarge: aws/karpenter-provider-aws 1d927085, 2026-07-20" in found[PriceKind.ON_DEMAND].source


def test_the_specs_pool_comes_before_the_tables(tmp_path: Path) -> None:
    pool = {"name": "l4", "accelerator": "L4", "nodes": 1, "gpus_per_node": 2, "price_usd_per_hour": 0.7}
    regions = [{"name": "us-east-1", "pools": [pool]}, small.SPEC["regions"][1]]
    found = prices(tmp_path, "L4", {"regions": regions})
    assert found[PriceKind.ON_DEMAND].usd_per_replica_hour == 0.7
    assert found[PriceKind.ON_DEMAND].source == "the spec's pool l4 in us-east-1"


@pytest.mark.parametrize(
    ("region", "kind", "source"),
    [
        ({}, PriceKind.ON_DEMAND, "g6.xlarge: "),
        ({}, PriceKind.SPOT, "g6.2xlarge: "),
        ({"deploy": AWS | {"region": "eu-west-1"}}, PriceKind.ON_DEMAND, "g6.12xlarge: "),
    ],
)
def test_the_cheapest_instance_of_each_kind_counts_unless_deploy_names_one(
    tmp_path: Path, region: dict[str, Any], kind: PriceKind, source: str
) -> None:
    own = [
        {"instance": "g6.2xlarge", "region": "us-east-1", "on_demand_usd": 9.0, "spot_usd": 0.1},
        {"instance": "g6.12xlarge", "region": "eu-west-1", "on_demand_usd": 40.0},
    ]
    regions = [small.SPEC["regions"][0] | region, small.SPEC["regions"][1]]
    found = prices(tmp_path, "L4", {"regions": regions, "hardware": {"prices": own}})
    assert found[kind].source.startswith(source)


def test_the_tables_give_a_share_of_an_instance_that_is_large_enough(tmp_path: Path) -> None:
    model = small.SPEC["models"][0]
    two = {**model, "settings": {**model["settings"], "tensor_parallel_size": 2}}
    wide = [
        {"name": region["name"], "pools": [{**region["pools"][0], "gpus_per_node": 2}]}
        for region in small.SPEC["regions"]
    ]
    one = prices(tmp_path, "L4")[PriceKind.ON_DEMAND]
    both = prices(tmp_path, "L4", {"models": [two], "regions": wide})[PriceKind.ON_DEMAND]
    assert one.node_gpus == 1
    assert both.node_gpus is not None
    assert both.node_gpus >= 2
    assert both.usd_per_replica_hour > one.usd_per_replica_hour


def test_no_price_is_an_error_that_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"no price is known of .*needed: gpu_prices"):
        small.plan(tmp_path, {"gpu_prices": [], "candidates": [{**small.SHEET["candidates"][1], "gpu": "A30"}]})


def test_candidates_have_their_own_settings_and_context(tmp_path: Path) -> None:
    offers, rejected = offers_of(*small.loaded(tmp_path))
    assert [(one.group, one.gpu, one.context) for one in offers] == [("cheap", "L4", 2048), ("large", "H100", 8192)]
    assert rejected == ()
    assert offers[0].view.settings.max_num_seqs == 16


SHIPPED, SHIPPED_SPEC = load_worksheet(shipped("plans/one-region.yaml"))
TINY = SHIPPED.candidates[0].model_copy(update={"name": "tiny", "gpu": "T4"})


def test_a_group_that_would_not_start_is_left_out_with_the_reason() -> None:
    candidates = (*SHIPPED.candidates, TINY)
    offers, rejected = offers_of(SHIPPED.model_copy(update={"candidates": candidates}), SHIPPED_SPEC)
    assert [one.group for one in offers] == ["l40s", "h100"]
    (refused,) = rejected
    assert isinstance(refused, RejectedOffer)
    assert refused.group == "tiny"
    assert "GiB" in refused.reason


def test_a_model_that_nothing_serves_is_an_error_with_all_reasons() -> None:
    with pytest.raises(PlanError, match=r"no group can serve llama-3\.1-8b: tiny on T4: "):
        case_from(SHIPPED.model_copy(update={"candidates": (TINY,)}), SHIPPED_SPEC)


def test_the_specs_own_groups_are_offered_without_candidates(tmp_path: Path) -> None:
    text = small.SPEC["models"][0] | {
        "groups": [{"name": "small", "regions": ["us-east-1"], "settings": {"max_model_len": 1024}}, {"name": "whole"}],
        "lanes": {"short": ["small", "whole"], "medium": ["whole"], "long": ["whole"]},
        "autoscaling": {"policy": "backlog", "costs": "cheap.json"},
    }
    path = small.write(tmp_path, {"candidates": []}, {"models": [text]})
    offers, rejected = offers_of(*load_worksheet(path))
    assert rejected == ()
    assert [(one.group, one.regions, one.lanes) for one in offers] == [
        ("small", ("us-east-1",), ("short",)),
        ("whole", ("us-east-1", "eu-central-1"), ("short", "medium", "long")),
    ]
    assert {one.costs_file for one in offers} == {"cheap.json"}


def test_a_candidate_of_data_parallel_ranks_holds_what_all_of_them_hold(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_30B_A3B), encoding="utf-8")
    spread = {"data_parallel_size": 2, "enable_expert_parallel": True}
    candidates = [
        {"name": "one", "model": "demo", "gpu": "H100"},
        {"name": "both", "model": "demo", "gpu": "H100", "settings": spread},
    ]
    folder = [{"model": "demo", "folder": str(tmp_path)}]
    offers, _ = offers_of(*small.loaded(tmp_path, {"candidates": candidates, "model_configs": folder}))
    one, both = offers
    assert (one.gpus, both.gpus) == (1, 2)
    assert both.limits.sequences == 2 * one.limits.sequences
    assert both.limits.kv_tokens > 2 * one.limits.kv_tokens, "a GPU holds half of the experts, and more KV"
    sheet, spec = small.loaded(tmp_path)
    usd = [prices_of("H100", each.view, spec.regions[0], sheet, spec)[PriceKind.ON_DEMAND] for each in offers]
    assert usd[1].usd_per_replica_hour == 2 * usd[0].usd_per_replica_hour
    alone, spread_over = (rate_at(each.limits, each.step_costs, 500, 200) for each in offers)
    assert spread_over > 1.3 * alone
