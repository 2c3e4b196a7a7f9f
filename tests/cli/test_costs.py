"""`raylane costs`: from a profile and from data sheets, with what the times rest on, and clear refusals."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from cli.costs import with_estimates
from cluster.files import shipped
from cluster.spec import load_spec
from deployments.engine.args import not_served
from deployments.engine_model.cost_file import CalibrationRecord, CostBasis, HostCosts, read_cost_file, write_cost_file
from deployments.engine_model.cost_model import Curve
from planning.costs.recorded_run import RecordedRunError, read_run, run_engine
from planning.simulator.workload import plain_workload
from tests.commands import ran
from tests.planning.costs.bundles import DENSE, SPARSE, written
from tests.planning.fit.configs import QWEN3_30B_A3B

SPEC = str(shipped("specs/local.yaml"))


def run(*arguments: str, code: int = 0) -> Result:
    return ran("costs", SPEC, "--gpu", "L40S", *arguments, code=code)


def test_a_data_sheet_gives_costs_and_says_how_sure_they_are(tmp_path: Path) -> None:
    out = tmp_path / "costs.json"
    result = run("--out", str(out))
    assert "not measured" in result.output
    assert "kernels: data sheet" in result.output
    file = read_cost_file(out)
    low, high = file.likely()
    assert file.basis == "roofline"
    assert low < 1 < high
    assert f"{low:.0%} to {high:.0%}" in result.output


def test_a_model_s_folder_and_a_gpu_are_enough(tmp_path: Path) -> None:
    out, folder = tmp_path / "costs.json", shipped("plans/llama-3.1-8b")

    def alone(*arguments: str, code: int = 0) -> Result:
        return ran("costs", "--out", out, *arguments, code=code)

    alone("--gpu", "H100", "--model", str(folder), "--tp", "2")
    file = read_cost_file(out)
    assert (file.model, file.hardware, file.engine.max_num_batched_tokens) == (folder.name, "2 x H100 SXM", 8_192)
    alone("--gpu", "H100", "--model", str(folder))
    assert read_cost_file(out).engine.kv_tokens < file.engine.kv_tokens
    for arguments, said in (
        (("--gpu", "H100"), "allowed: a spec, or --gpu GPU and --model FOLDER"),
        (("--gpu", "H999", "--model", str(folder)), "GPU 'H999' is unknown; allowed: A100-40G, "),
        (("--gpu", "H100", "--model", str(folder), "--tp", "3"), "tensor_parallel_size = 3: allowed: "),
        (("--gpu", "H100", "--model", str(folder), "--tp", "64"), "be less than or equal to 16"),
        ((SPEC, "--tp", "2"), "--tp 2: allowed: without a spec"),
    ):
        refused = alone(*arguments, code=2)
        assert said in " ".join((refused.output + refused.stderr).split())


def test_a_profile_gives_costs_and_names_whose_it_is(tmp_path: Path) -> None:
    written(tmp_path / "tp1", profile=DENSE)
    out = tmp_path / "costs.json"
    run("--out", str(out), "--profile", str(tmp_path))
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
    result = run("--out", str(tmp_path / "costs.json"), "--profile", str(tmp_path), code=2)
    assert named in result.output + result.stderr


def test_a_calibration_of_another_model_gives_the_hosts_part(tmp_path: Path) -> None:
    out, measured = tmp_path / "costs.json", tmp_path / "calibrated.json"
    run("--out", str(out))
    estimate = read_cost_file(out)
    host = HostCosts(
        step_s=0.006,
        prefill_step_s=0.004,
        kernels_s=0.005,
        host_step_s=(0.0006, 0.0008),
        host_block_s=(0.0001, 0.00012),
        blocks=32,
    )
    record = CalibrationRecord(steps=100, residuals=(), host=host, not_covered=())
    front = Curve(at=(0.0, 8.0), seconds=(0.003, 0.005))
    update = {"calibration": record, "basis": "measured", "model": "other", "front": front, "back_s": 0.001}
    write_cost_file(measured, estimate.model_copy(update=update))
    assert "host: calibrated here" in run("--out", str(out), "--host", str(measured)).output
    file = read_cost_file(out)
    assert (file.front, file.back_s) == (front, 0.001)
    assert file.likely()[1] < estimate.likely()[1]
    (tmp_path / "rough.json").write_text("{")
    for path, named in ((out, "basis roofline: the host's part is not known"), (tmp_path / "rough.json", "rough.json")):
        refused = run("--out", str(tmp_path / "no.json"), "--host", str(path), code=2)
        assert named in " ".join((refused.output + refused.stderr).split())


def test_a_pipeline_has_the_gpus_of_all_its_stages(tmp_path: Path) -> None:
    text = Path(SPEC).read_text(encoding="utf-8")
    staged = text.replace("settings:\n", "settings:\n      pipeline_parallel_size: 2\n      cpus: 2\n", 1)
    assert staged != text
    (tmp_path / "spec.yaml").write_text(staged, encoding="utf-8")
    out, plain = tmp_path / "costs.json", tmp_path / "plain.json"
    arguments = ["costs", str(tmp_path / "spec.yaml"), "--gpu", "L40S", "--out", str(out)]
    ran(*arguments)
    run("--out", str(plain))
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


def test_data_parallel_ranks_with_experts_are_checked_priced_and_simulated(tmp_path: Path) -> None:
    """Four GPUs, as two ranks of two: fit, costs, simulation; `up` and `doctor` say that it is not served."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_30B_A3B), encoding="utf-8")
    spec, trace, out = tmp_path / "spec.yaml", tmp_path / "trace.jsonl", tmp_path / "costs.json"
    spec.write_text(
        "version: 1\nname: team\nregions: [{name: here, pools: [{name: g, accelerator: H100, gpus_per_node: 4}]}]\n"
        f"models: [{{name: m, source: {tmp_path}, settings: {{max_model_len: 8192, max_num_seqs: 8, "
        "tensor_parallel_size: 2, data_parallel_size: 2, enable_expert_parallel: true}}]\n"
    )
    rows = [{"timestamp": 10 * n, "input_length": 500, "output_length": 200} for n in range(60)]
    trace.write_text("\n".join(json.dumps(row) for row in rows))

    def done(*arguments: str) -> str:
        result = ran(*arguments)
        return " ".join(result.output.split())

    assert "usable spec" in done("spec", "check", str(spec))
    assert "4 x H100 SXM" in done("costs", str(spec), "--out", str(out))
    file = read_cost_file(out)
    assert (file.engine.max_num_seqs, file.engine.data_ranks, file.limits().sequences) == (8, 2, 16)
    said = done("simulate", str(spec), "--trace", str(trace), "--costs", str(out), "--replicas", "1", "--no-range")
    assert "data_parallel_size: ranks are simulated as one engine" in said
    assert "data_parallel_size = 2: described, simulated and planned, but not served" in not_served(load_spec(spec))[0]


def test_a_cost_file_is_compared_with_a_recorded_run(tmp_path: Path) -> None:
    """A run that the engine of the file itself made is met; one that took eight times as long is outside the range."""
    out, recorded = tmp_path / "costs.json", tmp_path / "run.jsonl"
    run("--out", str(out))
    file = read_cost_file(out)
    arrived_s = np.arange(40) * 0.05
    prompt, output = np.full(40, 600), np.full(40, 50)
    done = run_engine(file.limits(), file.cost_model(), plain_workload(arrived_s, prompt, output))

    def compare(slower: float) -> str:
        rows = [
            {
                "input_toks": 600,
                "output_toks": 50,
                "arrival_time": 1.7e9 + at,
                "queued_ts": at,
                "scheduled_ts": at,
                "first_token_ts": at + slower * (first - at),
                "last_token_ts": at + slower * (last - at),
            }
            for at, first, last in zip(arrived_s, done.first_s, done.finished_s, strict=True)
        ]
        recorded.write_text("\n".join(json.dumps(row) for row in rows))
        result = ran("costs", str(out), "--against", str(recorded))
        return result.output

    assert "12 of 12 figures are in the stated range" in compare(1.0)
    assert "0 of 12 figures are in the stated range" in compare(8.0)
    assert "+inf%" in compare(0.0), "a run whose tokens all came at once"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("", "0 requests; allowed: 1 or more"),
        ("{", "line 1"),
        ('{"input_toks": 5}', "output_toks"),
        (
            '{"input_toks": 0, "output_toks": 1, "arrival_time": 0, "queued_ts": 0, "scheduled_ts": 0, '
            '"first_token_ts": 0, "last_token_ts": 0}',
            r"line 1: Expected `int` >= 1 - at `\$.input_toks`",
        ),
        (
            '{"input_toks": 1, "output_toks": 1, "arrival_time": 0, "queued_ts": 2, "scheduled_ts": 1, '
            '"first_token_ts": 3, "last_token_ts": 4}',
            "not in this order",
        ),
    ],
)
def test_a_run_that_is_none_is_named_with_its_line(tmp_path: Path, line: str, named: str) -> None:
    (tmp_path / "run.jsonl").write_text(line)
    with pytest.raises(RecordedRunError, match=named):
        read_run(tmp_path / "run.jsonl")


def test_a_compressed_run_that_is_cut_off_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl.gz").write_bytes(gzip.compress(b"x" * 1_000)[:-9])
    with pytest.raises(RecordedRunError, match=r"run\.jsonl\.gz: cannot be read: Compressed file ended"):
        read_run(tmp_path / "run.jsonl.gz")
