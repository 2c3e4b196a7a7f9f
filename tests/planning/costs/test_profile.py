"""Profiles of layers: what is in them is counted, what is not known is named, and files of either form are read."""

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.hardware import gpu_named
from deployments.engine_model.cost_model import Chunk
from planning.costs.experts import Mixture
from planning.costs.host import Host
from planning.costs.interconnect import Interconnect
from planning.costs.profile import ModelLayers, Profile, from_profile
from planning.costs.profile_files import ProfileError, is_of_gpu, profiled_gpu, read_profile
from planning.fit.memory import Parallel
from tests.planning.costs.bundles import ATTENTION, DENSE, SPARSE, TOKENS, flat, written

MIXTURE = Mixture(128, 8)
NO_HOST = Host(0.0, 0.0, 0.5, 2.0, "none")


def test_each_layer_is_counted_as_often_as_blocks_have_it() -> None:
    found = from_profile(DENSE, ModelLayers(32), host=NO_HOST)
    assert found.notes == ()
    assert found.model.dense(100) == pytest.approx(1e-6 * (1 + 1 + 32 * (2 * 1 + 10 + 1 + 10 + 10 + 1 + 10)))
    assert found.model.sequence(5) == pytest.approx(120e-6)


def test_the_host_adds_to_steps_and_more_to_those_that_prefill() -> None:
    plain = from_profile(DENSE, ModelLayers(32), host=NO_HOST).model
    slow = from_profile(DENSE, ModelLayers(32), host=Host(0.002, 0.0001, 0.5, 2.0, "slow")).model
    assert slow.base_s(8) - plain.base_s(8) == pytest.approx(0.002)
    prompts = [Chunk(100, 0)]
    assert slow.step_s(prompts, 8, 800, 1) - plain.step_s(prompts, 8, 800, 1) == pytest.approx(0.002 + 32 * 0.0001)


def test_layers_that_are_not_known_are_counted_and_named_and_missing_ones_named() -> None:
    more = replace(
        DENSE,
        dense={name: points for name, points in DENSE.dense.items() if name != "rotary_emb"}
        | {"residual_mix": flat(5.0)},
        per_sequence={**DENSE.per_sequence, "penalties": flat(7.0)},
    )
    found, before = (from_profile(profile, ModelLayers(32), host=NO_HOST) for profile in (more, DENSE))
    assert found.model.dense(10) - before.model.dense(10) == pytest.approx(1e-6 * 32 * (5 - 1))
    assert [note for note in found.notes if "residual_mix" in note]
    assert [note for note in found.notes if "penalties" in note]
    assert [note for note in found.notes if "lacks rotary_emb" in note]


def test_a_mixture_costs_what_the_experts_cost_that_its_tokens_reach() -> None:
    layers = ModelLayers(0, 48, MIXTURE)
    found = from_profile(SPARSE, layers, host=NO_HOST)
    rest = 1e-6 * (1 + 1 + 48 * (2 * 1 + 10 + 1 + 10))
    for tokens in TOKENS:
        reached = max(8.0, MIXTURE.distinct(tokens))
        assert found.model.dense(tokens) == pytest.approx(rest + 48e-6 * (10 + reached))


def test_dense_layers_before_the_experts_have_a_feed_forward_part() -> None:
    both = replace(SPARSE, dense=DENSE.dense)
    found = from_profile(both, ModelLayers(3, 45, MIXTURE), host=NO_HOST)
    blocks = 48 * (2 * 1 + 10 + 1 + 10) + 3 * (10 + 1 + 10)
    assert found.model.dense(2_048) == pytest.approx(1e-6 * (2 + blocks + 45 * (10 + MIXTURE.distinct(2_048))))


def test_two_gpus_take_less_for_experts_whether_each_has_slices_or_whole_ones() -> None:
    gpu = replace(gpu_named("h100"), link_bytes_per_s=1e18, link_latency_s=1e-12)
    layers = ModelLayers(0, 48, MIXTURE, 2_048, 151_936)
    one = from_profile(SPARSE, layers, host=NO_HOST).model.dense(512)
    slices, whole = (
        from_profile(SPARSE, layers, Parallel(2, experts=experts), gpu, NO_HOST).model.dense(512)
        for experts in (False, True)
    )
    assert 0.5 * one < min(slices, whole) < max(slices, whole) < 0.9 * one


def test_two_gpus_exchange_and_gather_logits() -> None:
    gpu = gpu_named("h100")
    layers = ModelLayers(32, hidden=4_096, vocabulary=128_256)
    alone, both = from_profile(DENSE, layers), from_profile(DENSE, layers, Parallel(2), gpu)
    sums = 65 * Interconnect(gpu).exchange_s("all_reduce", 2, 512 * 4_096 * 2)
    assert both.model.dense(512) - alone.model.dense(512) == pytest.approx(sums)
    assert both.model.sequence(64) > alone.model.sequence(64)
    assert [source.part for source in both.sources] == ["kernels", "exchange between GPUs", "host"]
    assert sum(source.share for source in both.sources) == pytest.approx(1)


@pytest.mark.parametrize(
    ("profile", "layers", "parallel", "named"),
    [
        (DENSE, ModelLayers(0, 48, MIXTURE), Parallel(), "moe"),
        (SPARSE, ModelLayers(48), Parallel(), "feed-forward"),
        (DENSE, ModelLayers(32), Parallel(2), "link"),
        (replace(DENSE, per_sequence={}), ModelLayers(32), Parallel(), "per_sequence"),
        (replace(DENSE, dense={"o_proj": flat(1.0)}), ModelLayers(32), Parallel(), "qkv_proj"),
        (replace(DENSE, attention=[]), ModelLayers(32), Parallel(), "attention"),
    ],
)
def test_what_a_profile_lacks_is_named(profile: Profile, layers: ModelLayers, parallel: Parallel, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        from_profile(profile, layers, parallel)


@pytest.mark.parametrize(
    ("unit", "factor", "packed"), [("time_us", 1.0, False), ("latency(ns)", 1e3, True), ("time_ms", 1e-3, False)]
)
def test_a_bundle_is_read_in_any_unit(tmp_path: Path, unit: str, factor: float, packed: bool) -> None:
    written(tmp_path / "tp1", unit, factor, packed)
    for place in (tmp_path, tmp_path / "tp1"):
        read = read_profile(place)
        assert {name: [x for x, _ in points] for name, points in read.dense.items()} == {
            name: [x for x, _ in points] for name, points in SPARSE.dense.items()
        }
        assert [row[:4] for row in read.attention] == [row[:4] for row in ATTENTION]
        assert [us for *_, us in read.moe] == pytest.approx([us for *_, us in SPARSE.moe])


def test_experts_are_profiled_on_one_gpu_and_used_by_every_degree(tmp_path: Path) -> None:
    written(tmp_path / "tp1")
    written(tmp_path / "tp2")
    (tmp_path / "tp2" / "moe.csv").unlink()
    assert list(read_profile(tmp_path, 2).moe) == list(SPARSE.moe)


def test_files_with_one_beginning_are_a_profile(tmp_path: Path) -> None:
    written(tmp_path, packed=True, names="GPU__model__bf16__tp1__{}.csv")
    assert len(read_profile(tmp_path / "GPU__model__bf16__tp1").attention) == len(ATTENTION)


@pytest.mark.parametrize(
    ("title", "gpu", "same"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80g", True),
        ("NVIDIA A100-SXM4-40GB", "a100-80g", False),
        ("NVIDIA H100 80GB HBM3", "h100", True),
        ("NVIDIA L40S", "l4", False),
        ("NVIDIA GeForce RTX 4090", "rtx-4090", True),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000", True),
    ],
)
def test_a_bundle_says_which_gpu_it_is_of(tmp_path: Path, title: str, gpu: str, same: bool) -> None:
    (tmp_path / "tp1").mkdir()
    assert profiled_gpu(tmp_path / "tp1") is None
    (tmp_path / "meta.yaml").write_text(f"vllm_version: 0.19.0\ngpu: {title}\nhardware: X\n")
    for place in (tmp_path, tmp_path / "tp1"):
        assert profiled_gpu(place) == title
    assert is_of_gpu(title, gpu_named(gpu)) == same


def test_files_that_cannot_be_read_are_named_with_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"dense, per_sequence, attention.*tp4/dense\.csv"):
        read_profile(tmp_path, 4)
    written(tmp_path / "tp1")
    file = tmp_path / "tp1" / "dense.csv"
    for content, named in (
        ("layer,size,time_us\na,1,2", "tokens"),
        ("layer,tokens,speed\na,1,2", "time_us"),
        ("layer,tokens,time_us\na,1,fast", "line 2"),
        *(
            (f"layer,tokens,time_us\na,1,{us}", f"line 2: time_us = '{us}': allowed: above 0")
            for us in ("0", "-5", "nan")
        ),
    ):
        file.write_text(content)
        with pytest.raises(ProfileError, match=named):
            read_profile(tmp_path)
