"""The roofline: of the right order against measured tables, and clear about what it cannot do."""

import json
from pathlib import Path

import pytest

from cluster.hardware import GPUS, gpu_named
from planning.costs.roofline import ModelShape, kv_tokens, read_shape, roofline

LLAMA_8B = {
    "hidden_size": 4_096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
}


@pytest.fixture
def shape(tmp_path: Path) -> ModelShape:
    """Llama 3.1 8B."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return read_shape(tmp_path)


def test_the_shape_of_a_known_model(shape: ModelShape) -> None:
    assert shape.parameters == pytest.approx(8.03e9, rel=0.01)
    assert shape.kv_bytes_per_token == 131_072


def test_decode_is_bound_by_memory_and_prefill_by_compute(shape: ModelShape) -> None:
    cost = roofline(shape, gpu_named("H100"))
    assert cost.base_s(1) == pytest.approx(cost.base_s(64)), "a batch costs no more than one"
    assert cost.base_s(1) == pytest.approx(0.007, rel=0.3), "16 GB at 3.35 TB/s"
    assert cost.dense(8_192) > 8 * cost.dense(256)


def test_more_and_faster_gpus_are_faster(shape: ModelShape) -> None:
    assert (
        roofline(shape, gpu_named("h100"), 2).base_s(8)
        < roofline(shape, gpu_named("h100")).base_s(8)
        < roofline(shape, gpu_named("l4")).base_s(8)
    )


def test_what_fits_and_what_does_not(shape: ModelShape) -> None:
    assert 380_000 < kv_tokens(shape, gpu_named("h100")) < 480_000
    with pytest.raises(ValueError, match="do not fit"):
        kv_tokens(ModelShape(70e9, 80, 64, 8, 128), gpu_named("l40s"))


def test_unknown_names_and_shapes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="h100"):
        gpu_named("h1000")
    for content in ("{}", "nonsense", json.dumps({**LLAMA_8B, "num_experts": 8})):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ValueError, match=r"config\.json|experts"):
            read_shape(tmp_path)
    assert all(gpu.memory_bytes > 16e9 and gpu.bf16_flops > 6e13 for gpu in GPUS.values())
