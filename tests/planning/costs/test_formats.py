"""What a format costs on a GPU, by data sheets: the kernels of a product, and the precision that it is computed in."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.published import read_points, summary
from cluster.spec import Model
from planning.costs.profile import Costs
from planning.costs.roofline import roofline
from planning.fit.architecture import read_architecture
from planning.fit.of_spec import config_of
from tests.planning.fit.configs import LLAMA_8B, plan_on

POINTS = Path(__file__).parents[4] / "shared" / "data" / "silicon"


def costs(gpu: str, config: Mapping[str, Any] = LLAMA_8B, **settings: Any) -> Costs:
    return roofline(plan_on(gpu, config, **settings))


def quantized(algorithm: str) -> dict[str, Any]:
    return {**LLAMA_8B, "quantization_config": {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": []}}


def test_a_single_sequence_gains_little_from_four_bits_instead_of_eight() -> None:
    eight, four = (costs("b200", quantized(name)).model.base_s(1) for name in ("FP8", "NVFP4"))
    assert 0.6 * eight < four < 1.1 * eight


def test_keys_of_eight_bits_save_less_on_hopper_than_on_blackwell() -> None:
    def saved(gpu: str) -> float:
        sixteen, eight = (costs(gpu, kv_cache_dtype=name).model.attention.kv_read_s for name in ("auto", "fp8"))
        return 1 - eight / sixteen

    assert saved("h100") < 0.3
    assert saved("b200") == pytest.approx(0.5)


def test_a_checkpoint_says_beside_its_configuration_how_it_is_quantized(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_8B}))
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps(
            {
                "producer": {"name": "modelopt", "version": "0.23.0"},
                "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
            }
        )
    )
    found = read_architecture(
        config_of(Model(name="m", source=str(tmp_path), settings={"max_model_len": 1_024}))
    ).quantization
    assert found is not None
    assert (found.bits, found.kv_bytes, found.skipped) == (8, 1, ("lm_head",))


@pytest.mark.whole
@pytest.mark.skipif(not POINTS.is_dir(), reason="the published points (../shared/data/silicon) are not on this machine")
def test_published_points_are_predicted_within_a_quarter() -> None:
    points, left_out = read_points(POINTS)
    assert sum(left_out.values()) < len(points) / 2
    rows = []
    for point in points:
        predicted, low, high = point.predicted()
        rows.append((predicted / point.measured_ms - 1, low <= point.measured_ms <= high))
    found = summary(rows)
    assert found["median_error"] <= 0.07
    assert found["within_a_quarter"] >= 0.9
    assert found["in_range"] >= 0.9
