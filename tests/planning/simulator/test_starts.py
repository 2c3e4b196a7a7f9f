"""A simulated replica's start by phases: what the first one on a node does, what the next ones find there."""

import json
from pathlib import Path

import pytest

from cluster.spec import parse_spec
from deployments.cell.departure import MemberKind, Ready
from deployments.cell.lifecycle_log import LifecycleLog
from deployments.starts.phases import Phase
from deployments.starts.start import StartReport
from deployments.starts.tracker import StartTracker
from deployments.store import CellStore
from planning.simulator.starts import SimulatedStarts, StartPlan, recorded_starts, start_plan

FIRST = {Phase.ENVIRONMENT: 10.0, Phase.FETCH: 60.0, Phase.LOAD: 20.0, Phase.COMPILE: 40.0}
LATER = {Phase.ENVIRONMENT: 10.0, Phase.LOAD: 20.0, Phase.COMPILE: 5.0}
PLAN = StartPlan(FIRST, LATER, 90.0, nodes=1, per_node=2)


def test_the_first_on_a_node_fetches_and_compiles_the_next_one_does_not() -> None:
    starts = SimulatedStarts(StartPlan(FIRST, LATER, 90.0, nodes=1, per_node=3))
    assert starts.begin(0, 0.0) == 130.0
    assert starts.begin(1, 20.0) == 10.0 + 40.0 + 20.0 + 40.0, "it waits for the rest of the same download"
    starts.ready(0)
    assert starts.begin(2, 500.0) == 35.0


def test_without_room_a_node_is_made_first() -> None:
    starts = SimulatedStarts(PLAN)
    for number in range(2):
        starts.there(number)
    assert starts.begin(2, 0.0) == 90.0 + 130.0
    starts.ready(2)
    starts.ended(0)
    assert starts.begin(3, 500.0) == 35.0
    assert starts.begin(4, 500.0) == 35.0, "the node that was made stays, and has room for another one"
    assert starts.begin(5, 500.0) == 90.0 + 130.0


def test_what_is_expected_is_what_comes() -> None:
    """The learned start-up follows the second start on the node."""
    starts = SimulatedStarts(StartPlan(FIRST, LATER, 90.0, nodes=1, per_node=8))
    for number in range(4):
        expected = starts.next_start()
        assert expected is not None
        took_s = starts.begin(number, 1_000.0 * number)
        starts.ready(number)
        if number != 1:  # nobody has seen a second start before the second one
            assert expected.seconds == pytest.approx(took_s)
        else:
            assert dict(expected.phases).keys() == {"environment", "load"}


def spec_with(start: dict[str, float] | None, pool: dict[str, object]) -> str:
    model = {"name": "m", "source": "org/m", "settings": {"max_model_len": 64}, "start": start}
    regions = [{"name": "here", "pools": [{"name": "p", **pool}]}]
    return json.dumps({"version": 1, "name": "c", "regions": regions, "models": [model]})


def test_the_plan_of_a_spec_knows_its_nodes() -> None:
    given = {"node": 90.0, "fetch": 60.0, "load": 20.0, "compile": 40.0}
    spec = parse_spec(spec_with(given, {"accelerator": "H100", "nodes": 3, "gpus_per_node": 8}))
    assumed = {Phase(name): seconds for name, seconds in given.items()}
    plan = start_plan(spec, spec.models[0], spec.regions[0], assumed)
    assert plan is not None
    assert (plan.nodes, plan.per_node, plan.node_s, plan.first_s) == (3, 8, 90.0, 120.0)
    assert plan.later == {Phase.LOAD: 20.0}
    assert start_plan(spec, spec.models[0], spec.regions[0], None) is None


def test_the_plan_of_a_recorded_log_is_what_its_replicas_took(tmp_path: Path) -> None:
    tracker, store = StartTracker(), CellStore(tmp_path / "cell.sqlite")
    log = LifecycleLog(store)
    log.write(Ready(MemberKind.REPLICA, "r0", 1.0))
    for number, seconds in enumerate((FIRST, LATER, LATER)):
        log.write(tracker.ready(StartReport(f"r{number}", "m", "n", Phase.LOAD, 1.0, seconds), 1e9))
    log.write(tracker.failed(StartReport("r9", "m", "n", Phase.LOAD, 1.0, FIRST), "no", "", 1e9))
    store.close()
    path = tmp_path / "cell.sqlite"
    past = recorded_starts(path, "m")
    assert [start.node_id for start in past] == ["n"] * 3
    spec = parse_spec(spec_with(None, {}))
    plan = start_plan(spec, spec.models[0], spec.regions[0], None, past)
    assert plan is not None
    assert (dict(plan.first), dict(plan.later)) == (FIRST, LATER)
    with pytest.raises(ValueError, match="no start of model 'other' that went well; needed: at least one"):
        recorded_starts(path, "other")
