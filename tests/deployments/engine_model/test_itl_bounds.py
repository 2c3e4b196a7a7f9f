"""What costs say of `itl_ms`: where a cap begins, and what no cap keeps."""

from pathlib import Path

from typer.testing import CliRunner

from cli.main import app
from cluster.files import shipped
from cluster.spec import ClusterSpec, load_spec
from deployments.engine_model.cost_file import read_cost_file
from deployments.engine_model.cost_model import slowed
from deployments.engine_model.itl_bounds import group_costs, itl_problems, with_starts
from deployments.scheduling import SchedulingPolicy
from deployments.scheduling.itl_cap import ItlTarget

H100 = Path(str(shipped("specs/simulated-h100.yaml")))


def spec_with(itl_ms: float | None, costs: str | None = None) -> ClusterSpec:
    spec = load_spec(H100)
    classes = tuple(one.model_copy(update={"itl_ms": itl_ms}) for one in spec.classes[:1])
    model = spec.models[0]
    assert model.simulated is not None
    if costs is not None:
        model = model.model_copy(update={"simulated": model.simulated.model_copy(update={"costs": costs})})
    return spec.model_copy(update={"classes": classes, "models": (model, *spec.models[1:])})


def test_slower_steps_and_a_stricter_class_begin_with_fewer_sequences() -> None:
    file = read_cost_file(H100.parent / "simulated-h100.costs.json")
    limits, cost = file.limits(), file.cost_model()
    policy = SchedulingPolicy(
        itl={name: ItlTarget(one_s, 0.9) for name, one_s in (("a", 0.02), ("b", 0.012), ("c", 1e-6))}
    )
    costs = {"right": (limits, cost), "slow": (limits, slowed(cost, 1.4))}
    starts = {name: target.starts for name, target in with_starts(policy, costs).itl.items()}
    assert limits.sequences >= starts["a"]["right"] > starts["b"]["right"] > starts["b"]["slow"] >= 1
    assert starts["c"] == {"right": 1, "slow": 1}


def test_costs_are_those_of_the_groups_whose_file_can_be_read() -> None:
    spec = spec_with(20.0)
    assert list(group_costs(spec, spec.models[:1], spec.regions[0])) == [spec.models[0].group]
    gone = spec_with(20.0, "/nowhere.costs.json")
    assert group_costs(gone, gone.models[:1], gone.regions[0]) == {}
    assert list(itl_problems(gone)) == []


def test_spec_check_names_an_itl_ms_below_a_chunk_beside_decodes(tmp_path: Path) -> None:
    assert list(itl_problems(spec_with(300.0))) == []
    (problem,) = itl_problems(spec_with(20.0))
    assert problem.startswith(f"classes.{spec_with(None).classes[0].name}.itl_ms = 20: a step of models.")
    file = tmp_path / "spec.yaml"
    text = H100.read_text().replace("simulated-h100.costs.json", str(H100.parent / "simulated-h100.costs.json"))
    file.write_text(text + "\nclasses:\n  - {name: chat, ttft_ms: 500, itl_ms: 20}\n")
    result = CliRunner().invoke(app, ["spec", "check", str(file)], env={"COLUMNS": "400"})
    assert (result.exit_code, "cannot always be kept: classes.chat.itl_ms = 20" in result.stderr) == (0, True)
