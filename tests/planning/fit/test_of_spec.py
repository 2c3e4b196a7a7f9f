"""The fit of a spec's models, as `raylane spec check` and `raylane doctor` show it."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli.doctor import FindingLevel, check_machine
from cluster.spec import ClusterSpec, parse_spec
from planning.fit.of_spec import fits
from tests.commands import ran
from tests.planning.fit import configs

SPEC = """
version: 1
name: team
regions: [{name: here, pools: [{name: gpus, accelerator: %(gpu)s, gpus_per_node: 4}]}]
models: [{name: m, source: %(source)s, settings: {max_model_len: %(length)d, tensor_parallel_size: %(gpus)d}}]
"""


def spec_text(folder: Path, config: Any, gpu: str = "H100", length: int = 8_192, gpus: int = 1) -> str:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return SPEC % {"gpu": gpu, "source": folder, "length": length, "gpus": gpus}


def spec_of(*args: Any, **kwargs: Any) -> ClusterSpec:
    return parse_spec(spec_text(*args, **kwargs))


def check(folder: Path, text: str) -> tuple[int, str]:
    (folder / "spec.yaml").write_text(text)
    done = ran("spec", "check", folder / "spec.yaml", code=None)
    return done.exit_code, " ".join(done.output.split())


def test_a_spec_that_fits_is_shown_with_its_figures(tmp_path: Path) -> None:
    code, said = check(tmp_path, spec_text(tmp_path, configs.LLAMA_8B))
    assert code == 0
    assert "14.99" in said
    assert "131,072" in said
    assert "usable spec" in said


def test_a_pipeline_fits_where_one_gpu_does_not_hold_the_weights(tmp_path: Path) -> None:
    text = spec_text(tmp_path, configs.QWEN3_32B, gpu="L40S")
    code, said = check(tmp_path, text)
    assert code == 1
    assert "out of memory while loading" in said
    code, said = check(tmp_path, text.replace("tensor_parallel_size: 1", "pipeline_parallel_size: 2"))
    assert code == 0, said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpus": 3}, "tensor_parallel_size = 3: allowed"),
        ({"gpu": "L4", "length": 131_072}, "max_model_len = 131072"),
        ({"gpu": "RTX-3090", "config": configs.QWEN3_32B}, "out of memory while loading"),
    ],
)
def test_a_spec_that_cannot_start_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    config = changes.pop("config", configs.LLAMA_8B)
    code, output = check(tmp_path, spec_text(tmp_path, config, **changes))
    assert code == 1
    assert said in output


@pytest.mark.parametrize(
    ("config", "gpu", "said"),
    [
        (configs.LLAMA_8B, "X100", "'X100' is unknown"),
        ({"model_type": "mamba", "hidden_size": 8, "state_size": 16}, "H100", "not modelled"),
        ("[]", "H100", "allowed: a JSON object"),
        ("{", "H100", "cannot be read"),
    ],
)
def test_what_cannot_be_told_is_said_and_is_no_error(tmp_path: Path, config: Any, gpu: str, said: str) -> None:
    code, output = check(tmp_path, spec_text(tmp_path, config, gpu=gpu))
    assert code == 0
    assert "fit not checked" in output
    assert said in output


def test_a_kv_cache_that_the_gpu_does_not_hold_is_refused(tmp_path: Path) -> None:
    text = spec_text(tmp_path, configs.LLAMA_8B)
    code, said = check(tmp_path, text.replace("max_model_len", f"kv_cache_memory_bytes: {60 << 30}, max_model_len"))
    assert code == 0, said
    code, said = check(tmp_path, text.replace("max_model_len", f"kv_cache_memory_bytes: {60 << 31}, max_model_len"))
    assert code == 1
    assert "models.m on 1 x H100: kv_cache_memory_bytes = 128849018880: allowed: at most 6" in said


def test_a_hub_name_without_files_here_is_said(tmp_path: Path) -> None:
    text = SPEC % {"gpu": "H100", "source": "nobody/has-this-model", "length": 1_024, "gpus": 1}
    code, output = check(tmp_path, text)
    assert code == 0
    assert "config.json is not on this machine" in output


def test_a_specs_own_gpu_is_used(tmp_path: Path) -> None:
    own = "{name: MINE, title: Mine, capability: 90, memory_bytes: 20000000000, "
    own += "memory_bytes_per_s: 1.0e+12, bf16_flops: 1.0e+14, "
    text = spec_text(tmp_path, configs.LLAMA_8B, gpu="MINE", length=1_024)
    (one,) = fits(parse_spec(f"{text}hardware: {{gpus: [{own}link_bytes_per_s: 3.0e+10}}]}}"))
    assert one.fit is not None
    assert one.fit.total_bytes == 19_700_000_000


def test_doctor_says_what_fits(tmp_path: Path) -> None:
    def verdict(spec: ClusterSpec) -> FindingLevel:
        return next(finding.verdict for finding in check_machine(spec) if finding.what == "fit of m")

    assert verdict(spec_of(tmp_path, configs.LLAMA_8B)) is FindingLevel.GOOD
    assert verdict(spec_of(tmp_path, configs.LLAMA_8B, gpus=3)) is FindingLevel.BAD
    assert verdict(spec_of(tmp_path, configs.LLAMA_8B, gpu="X1")) is FindingLevel.WARN


def test_costs_have_the_pool_of_the_fit(tmp_path: Path) -> None:
    def costs(text: str) -> tuple[int, str]:
        (tmp_path / "spec.yaml").write_text(text)
        done = ran("costs", tmp_path / "spec.yaml", "--out", tmp_path / "costs.json", code=None)
        return done.exit_code, " ".join(done.output.split())

    text = spec_text(tmp_path, configs.LLAMA_8B, gpu="RTX-4090")
    (one,) = fits(parse_spec(text))
    assert one.fit is not None
    assert costs(text)[0] == 0
    written = json.loads((tmp_path / "costs.json").read_text())
    assert written["engine"]["kv_tokens"] == one.fit.kv_tokens
    code, said = costs(spec_text(tmp_path, configs.LLAMA_8B, gpu="RTX-4090", length=131_072))
    assert code == 2
    assert "max_model_len = 131072" in said
