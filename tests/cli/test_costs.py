"""`raylane costs`: from a profile and from data sheets, with what the times rest on, and clear refusals."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.costs import with_estimates
from cli.main import app
from cluster.files import shipped
from cluster.spec import load_spec
from deployments.engine_model.cost_file import (
    CalibrationRecord,
    CostBasis,
    CurvePoints,
    HostCosts,
    read_cost_file,
    write_cost_file,
)
from tests.planning.costs.bundles import DENSE, SPARSE, written

SPEC = str(shipped("specs/local.yaml"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["costs", SPEC, "--gpu", "L40S", *arguments], env={"COLUMNS": "200"})


def test_a_data_sheet_gives_costs_and_says_how_sure_they_are(tmp_path: Path) -> None:
    out = tmp_path / "costs.json"
    result = run("--out", str(out))
    assert result.exit_code == 0, result.output
    assert "not measured" in result.output
    assert "kernels: data sheet" in result.output
    file = read_cost_file(out)
    low, high = file.likely()
    assert file.basis == "roofline"
    assert low < 1 < high
    assert f"{low:.0%} to {high:.0%}" in result.output


def test_a_model_s_folder_and_a_gpu_are_enough(tmp_path: Path) -> None:
    out, folder = tmp_path / "costs.json", shipped("plans/llama-3.1-8b")

    def alone(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["costs", "--out", str(out), *arguments], env={"COLUMNS": "200"})

    result = alone("--gpu", "H100", "--model", str(folder), "--tp", "2")
    assert result.exit_code == 0, result.output
    file = read_cost_file(out)
    assert (file.model, file.hardware, file.engine.max_num_batched_tokens) == (folder.name, "2 x H100 SXM", 8_192)
    assert alone("--gpu", "H100", "--model", str(folder)).exit_code == 0
    assert read_cost_file(out).engine.kv_tokens < file.engine.kv_tokens
    for arguments, said in (
        (("--gpu", "H100"), "allowed: a spec, or --gpu GPU and --model FOLDER"),
        (("--gpu", "H999", "--model", str(folder)), "GPU 'H999' is unknown; allowed: A100-40G, "),
        (("--gpu", "H100", "--model", str(folder), "--tp", "3"), "tensor_parallel_size = 3: allowed: "),
        ((SPEC, "--tp", "2"), "--tp 2: allowed: without a spec"),
    ):
        refused = alone(*arguments)
        assert refused.exit_code == 2
        assert said in " ".join((refused.output + refused.stderr).split())


def test_a_profile_gives_costs_and_names_whose_it_is(tmp_path: Path) -> None:
    written(tmp_path / "tp1", profile=DENSE)
    out = tmp_path / "costs.json"
    result = run("--out", str(out), "--profile", str(tmp_path))
    assert result.exit_code == 0, result.output
    file = read_cost_file(out)
    assert (file.basis, file.sources[0].basis, file.unmodelled) == ("profile", CostBasis.PROFILE, ())
    (tmp_path / "meta.yaml").write_text("gpu: NVIDIA GeForce RTX 4090\n")
    assert "the profile is of NVIDIA GeForce RTX 4090" in run("--out", str(out), "--profile", str(tmp_path)).output
    file = read_cost_file(out)
    assert file.sources[0].basis is CostBasis.OTHER_PROFILE
    assert len(file.unmodelled) == 1


@pytest.mark.parametrize(("content", "named"), [(SPARSE, "feed-forward"), (None, "tp1/dense.csv")])
def test_a_profile_that_lacks_something_is_refused(tmp_path: Path, content: object, named: str) -> None:
    if content is SPARSE:
        written(tmp_path / "tp1", profile=SPARSE)
    result = run("--out", str(tmp_path / "costs.json"), "--profile", str(tmp_path))
    assert result.exit_code == 2
    assert named in result.output + result.stderr


def test_a_calibration_of_another_model_gives_the_hosts_part(tmp_path: Path) -> None:
    out, measured = tmp_path / "costs.json", tmp_path / "calibrated.json"
    assert run("--out", str(out)).exit_code == 0
    estimate = read_cost_file(out)
    host = HostCosts(
        step_s=0.006,
        prefill_step_s=0.004,
        kernels_s=0.005,
        host_step_s=(0.0006, 0.0008),
        host_block_s=(0.0001, 0.00012),
        blocks=32,
        front_s=0.003,
        back_s=0.001,
    )
    record = CalibrationRecord(steps=100, residuals=(), host=host, not_covered=())
    front = CurvePoints(at=(0.0, 8.0), seconds=(0.003, 0.005))
    update = {"calibration": record, "basis": "measured", "model": "other", "front": front, "back_s": 0.001}
    write_cost_file(measured, estimate.model_copy(update=update))
    result = run("--out", str(out), "--host", str(measured))
    assert result.exit_code == 0, result.output
    assert "host: calibrated here" in result.output
    file = read_cost_file(out)
    assert (file.front, file.back_s) == (front, 0.001)
    assert file.likely()[1] < estimate.likely()[1]
    (tmp_path / "rough.json").write_text("{")
    for path, named in ((out, "basis roofline: the host's part is not known"), (tmp_path / "rough.json", "rough.json")):
        refused = run("--out", str(tmp_path / "no.json"), "--host", str(path))
        assert refused.exit_code == 2
        assert named in " ".join((refused.output + refused.stderr).split())


def test_a_pipeline_has_the_gpus_of_all_its_stages(tmp_path: Path) -> None:
    text = Path(SPEC).read_text(encoding="utf-8")
    staged = text.replace("settings:\n", "settings:\n      pipeline_parallel_size: 2\n      cpus: 2\n", 1)
    assert staged != text
    (tmp_path / "spec.yaml").write_text(staged, encoding="utf-8")
    out, plain = tmp_path / "costs.json", tmp_path / "plain.json"
    arguments = ["costs", str(tmp_path / "spec.yaml"), "--gpu", "L40S", "--out", str(out)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert run("--out", str(plain)).exit_code == 0
    file, single = read_cost_file(out), read_cost_file(plain)
    assert file.hardware == "2 x L40S"
    assert any("pipeline parallelism" in note for note in file.unmodelled)
    assert file.engine.kv_tokens > single.engine.kv_tokens


@pytest.mark.parametrize(("gpu", "estimated"), [("L40S", True), ("cpu", False)])
def test_a_model_that_scales_without_a_cost_file_gets_an_estimate_where_its_gpu_is_known(
    tmp_path: Path, gpu: str, estimated: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = load_spec(Path(SPEC))
    model = spec.models[0]
    counts = model.replicas.model_copy(update={"max": 4, "count": 1})
    pool = spec.regions[0].pools[0].model_copy(update={"accelerator": gpu, "gpus_per_node": int(estimated)})
    region = spec.regions[0].model_copy(update={"pools": (pool,)})
    models = (model.model_copy(update={"replicas": counts}),)
    scaling = spec.model_copy(update={"regions": (region,), "models": models})
    found = with_estimates(scaling, region, tmp_path)
    costs = found.costs_of(found.models[0])
    assert (costs is not None) is estimated
    if costs is not None:
        assert read_cost_file(Path(costs)).basis == "roofline"
        assert found.autoscaling_of(found.models[0]).policy == "backlog"
    said = " ".join(capsys.readouterr().out.split())
    assert ("data sheets" if estimated else "learned from the first minutes") in said
    assert with_estimates(spec, spec.regions[0], tmp_path) is spec, "a fixed number needs none"
