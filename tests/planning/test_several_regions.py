"""Regions that help each other, simulated together: faults as a user names them, and what they do."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cluster.files import shipped
from cluster.spec import ClusterSpec, load_spec
from deployments.engine_model.cost_file import read_cost_file
from planning.several_regions import SeveralRegions, fault_of, homes_of, is_several, recovery_s
from planning.simulation import simulation_of
from planning.simulator.faults import FaultKind
from planning.simulator.workload import plain_workload
from planning.workload.lengths import LogNormal
from planning.workload.trace import Labels, Trace
from planning.workload.traces import write_trace
from tests.commands import ran

SPEC = load_spec(shipped("specs/three-regions.yaml"))
MODEL = SPEC.models[0]
NAMES = ("eu", "us", "ap")
LENGTH_S = 90.0


def case(per_s: tuple[float, float, float], *faults: str, spec: ClusterSpec = SPEC) -> SeveralRegions:
    """Poisson arrivals in each region, for the spec's last model."""
    model = spec.models[-1]
    rng = np.random.default_rng(3)
    times = [np.sort(rng.uniform(0, LENGTH_S, rng.poisson(rate * LENGTH_S))) for rate in per_s]
    homes = np.repeat(np.arange(3), [len(one) for one in times])
    arrived_s = np.concatenate(times)
    order = np.argsort(arrived_s, kind="stable")
    prompt, output = (LogNormal(mean, 0.6).sample(len(order), rng) for mean in (600, 100))
    work = plain_workload(arrived_s[order], prompt, output, 2.0)
    costs = {"default": read_cost_file(Path(str(spec.costs_of(model))))}
    simulations = {
        region.name: simulation_of(spec, model, costs, work, None, False, region=region) for region in spec.regions
    }
    chosen = tuple(fault_of(text, spec, model) for text in faults)
    return SeveralRegions(spec, simulations, homes[order], chosen)


@pytest.mark.whole
def test_without_a_fault_each_region_serves_its_own() -> None:
    found = (one := case((2.0, 2.0, 2.0))).figures(one.run())
    assert [row.region for row in found.figures] == [*NAMES, ""]
    assert all(row.in_time > 0.95 and not row.handed_over and not row.lost for row in found.figures)
    assert (found.recovery_s, found.held) == ({}, True)
    assert 2 * LENGTH_S <= 3_600 * found.replica_hours["eu"] <= 2 * (LENGTH_S + 60), "until the last answer"


@pytest.mark.whole
def test_a_lost_region_is_served_by_the_others() -> None:
    found = (one := case((2.0, 2.0, 2.0), "eu@30")).figures(one.run())
    rows = {(row.region, row.phase): row for row in found.figures}
    assert rows["eu", "before"].handed_over == 0
    assert rows["eu", "before"].lost > 0, "what ran there"
    assert rows["eu", "during"].in_time > 0.8
    assert rows["us", "during"].lost == 0
    assert found.held
    assert found.replica_hours["eu"] == pytest.approx(2 * 30 / 3_600, rel=0.05)


def test_a_model_is_bound_by_its_own_residency() -> None:
    elsewhere = MODEL.model_copy(update={"name": "other", "regions": ("eu",), "residency": ("eu",)})
    found = (one := case((0.5, 0.5, 0.5), spec=SPEC.model_copy(update={"models": (elsewhere, MODEL)}))).run()
    assert (found.served == one.homes).all()


@pytest.mark.whole
def test_too_much_for_those_that_are_left_does_not_hold() -> None:
    found = (one := case((14.0, 14.0, 14.0), "eu@30", "us@30")).figures(one.run())
    assert not found.held


@pytest.mark.parametrize(
    ("text", "kind", "cells", "span"),
    [
        ("eu@300", FaultKind.REGION_LOSS, {"eu"}, (300.0, math.inf)),
        ("eu@300+60", FaultKind.REGION_LOSS, {"eu"}, (300.0, 360.0)),
        ("eu:us@10+5", FaultKind.PARTITION, {"eu", "us"}, (10.0, 15.0)),
        ("eu:ap~200@10", FaultKind.SLOW_LINK, {"eu", "ap"}, (10.0, math.inf)),
    ],
)
def test_faults_as_they_are_named(text: str, kind: FaultKind, cells: set[str], span: tuple[float, float]) -> None:
    fault = fault_of(text, SPEC, MODEL)
    assert (fault.kind, set(fault.cells), (fault.at_s, fault.until_s)) == (kind, cells, span)


def test_a_zone_takes_its_share_of_the_replicas() -> None:
    content = SPEC.model_dump(mode="json", exclude_unset=True)
    content["regions"][0]["pools"][0] |= {"zones": ["a", "b", "c", "d"], "nodes": 4}
    spec = ClusterSpec.model_validate(content)
    fault = fault_of("eu/b@5", spec, spec.models[0])
    assert (fault.kind, fault.share, fault.room_elsewhere) == (FaultKind.ZONE_LOSS, 0.25, True)
    with pytest.raises(ValueError, match="zone 'x': allowed: a, b, c, d"):
        fault_of("eu/x@5", spec, spec.models[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "allowed: REGION@T"),
        ("eu", "allowed: REGION@T"),
        ("mars@3", "region 'mars' does not run"),
        ("eu:mars@3", "region 'mars' does not run"),
        ("eu/a@3", "zone 'a': allowed: none"),
        ("eu:eu@3", "allowed: the names of two cells"),
        ("eu@3+0", "allowed: above 0"),
        ("eu@1.2.3", "allowed: REGION@T"),
        ("eu:us~.@1", "allowed: REGION@T"),
    ],
)
def test_what_is_no_fault_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fault_of(text, SPEC, MODEL)


def test_requests_go_to_their_traces_regions_or_in_turn() -> None:
    work = plain_workload(np.arange(4.0), np.full(4, 9), np.full(4, 9), 2.0)
    assert homes_of(work, NAMES).tolist() == [0, 1, 2, 0]
    named = replace(work, region=Labels(("us", "eu"), np.array([0, 1, 1, 0], dtype=np.int32)))
    assert homes_of(named, NAMES).tolist() == [1, 0, 0, 1]
    for name, what in (
        ("mars", "region 'mars' of the trace does not run the model"),
        ("", "requests without a region"),
    ):
        strange = replace(work, region=Labels((name,), np.zeros(4, dtype=np.int32)))
        with pytest.raises(ValueError, match=f"{what}; allowed: eu, us, ap"):
            homes_of(strange, NAMES)


def test_only_regions_that_help_each_other_are_simulated_together() -> None:
    assert is_several(SPEC, MODEL)
    assert not is_several(SPEC.model_copy(update={"peering": None}), MODEL)


@pytest.mark.whole
def test_the_command(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrived_s = np.sort(rng.uniform(0, 60, 300))
    trace = Trace(arrived_s, rng.integers(50, 900, 300), rng.integers(10, 200, 300))
    write_trace(tmp_path / "trace.jsonl", trace)
    command = ["simulate", str(shipped("specs/three-regions.yaml")), "--trace", str(tmp_path / "trace.jsonl")]
    result = ran(*command, "--lose", "eu@20", code=None)
    assert result.exit_code in (0, 1), result.output
    assert "all regions" in result.output
    assert "eu: the SLO" in result.output
    ran(*command, "--lose", "eu@100", code=2)
    long = replace(trace, prompt_tokens=np.where(np.arange(300) % 3, trace.prompt_tokens, 40_000))
    write_trace(tmp_path / "trace.jsonl", long)
    found = json.loads(ran(*command, "--json").stdout)
    assert found["rejections"] == {"context_length_exceeded": 100}
    assert found["changes"][0]["rejected"]
    assert {"schema", "not_modelled"} <= set(found)
    alone = yaml.safe_load(shipped("specs/simulated-h100.yaml").read_text())
    assert "peering" not in alone
    one = ["simulate", str(shipped("specs/simulated-h100.yaml")), "--trace", str(tmp_path / "trace.jsonl")]
    ran(*one, "--lose", "local@3", code=2)


def test_costs_of_another_gpu_are_told_by_region(tmp_path: Path) -> None:
    content = yaml.safe_load(shipped("specs/three-regions.yaml").read_text())
    content["regions"][2]["pools"][0]["accelerator"] = "L40S"
    content["models"][0]["simulated"]["costs"] = str(shipped("specs/simulated-h100.costs.json"))
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(content))
    write_trace(tmp_path / "trace.jsonl", Trace(np.arange(9.0), np.full(9, 9), np.full(9, 9)))
    command = ("simulate", tmp_path / "spec.yaml", "--trace", tmp_path / "trace.jsonl")
    told = ran(*command, "--lose", "mars@3", code=2).stderr
    assert "pool 'h100' has L40S" in told
    assert "(region ap)" in told


@pytest.mark.whole
@given(st.lists(st.tuples(st.integers(0, 320), st.booleans()), max_size=60), st.sampled_from((0.5, 0.8, 0.95)))
def test_the_recovery_is_as_defined(requests: list[tuple[int, bool]], share: float) -> None:
    """By brute force: every window that begins at an eighth of a second."""
    ordered = sorted(requests)
    times, met = np.array([at / 8 for at, _ in ordered]), np.array([good for _, good in ordered], dtype=np.bool_)
    begin_s, until_s, window_s = 4.0, 40.0, 8.0
    found = recovery_s(times, met, (begin_s, until_s), share, window_s)

    def holds(eighth: int) -> bool:
        inside = [good for at, good in ordered if eighth <= at < eighth + 64 and 32 <= at < 320]
        return sum(inside) >= share * len(inside)

    bad = [eighth for eighth in range(32, 257) if not holds(eighth)]
    if found is None:
        assert bad[-1] == 256
    elif bad:
        assert found == bad[-1] / 8 - begin_s
    else:
        assert found == 0.0
