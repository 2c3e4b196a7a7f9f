"""What a spec asks for that the simulator does not model is found, with the key that asks for it."""

import json
from pathlib import Path

import pytest

from cluster.spec import ClusterSpec, Model, load_spec, parse_spec
from deployments.wire import to_json
from planning.unmodelled import UnmodelledKind, unmodelled, unmodelled_of
from tests.planning.fit.configs import LLAMA_8B
from tests.planning.tune import cases
from tests.source import ROOT


def spec_of(source: Path, lines: str = "", settings: str = "") -> ClusterSpec:
    text = (
        "name: x\nregions: [{name: r, pools: [{name: p, accelerator: H100, nodes: 1, gpus_per_node: 8}]}]\n"
        f"models:\n  - name: m\n    source: {source}\n{lines}"
        f"    settings: {{max_model_len: 8192{settings}}}\n"
    )
    return parse_spec(text, "x.yaml", source)


def model(source: Path, lines: str = "", settings: str = "") -> Model:
    return spec_of(source, lines, settings).models[0]


def folder(path: Path, **changed: object) -> Path:
    (path / "config.json").write_text(json.dumps(LLAMA_8B | changed))
    return path


def test_what_the_costs_leave_out_is_named_too(tmp_path: Path) -> None:
    cost = cases.costs().model_copy(update={"unmodelled": ("layer 'x' is not known",)})
    (found,) = unmodelled(model(folder(tmp_path)), cost)
    assert (found.kind, str(found)) == (UnmodelledKind.COSTS, "the costs: layer 'x' is not known")


def test_a_cell_alone_is_not_a_cluster_of_several() -> None:
    """The spec of three regions, and the same with one of them."""
    spec = load_spec(ROOT / "infra" / "specs" / "three-regions.yaml")
    named = [one for one in unmodelled(spec.models[0], None, spec) if one.kind is UnmodelledKind.OTHER_REGIONS]
    assert [str(one) for one in named] == [
        "regions: the cell in eu alone is simulated, with all requests of the trace; nothing is handed over"
    ]
    alone = spec.model_copy(update={"regions": spec.regions[:1], "peering": None})
    assert UnmodelledKind.OTHER_REGIONS not in {one.kind for one in unmodelled(spec.models[0], None, alone)}


def test_a_plain_model_is_modelled(tmp_path: Path) -> None:
    assert unmodelled(model(folder(tmp_path))) == ()


@pytest.mark.parametrize(
    ("lines", "settings", "kind", "where"),
    [
        ("", ", speculative: {method: ngram}", "speculation", "models.m.settings.speculative"),
        ("    adapters: [{name: a, source: b}]\n", "", "lora", "models.m.adapters"),
        ("    task: embed\n", "", "embedding", "models.m.task"),
        ("", ", pipeline_parallel_size: 2", "pipeline_parallel", "settings.pipeline_parallel_size"),
        ("", ", data_parallel_size: 4", "data_parallel", "settings.data_parallel_size"),
        ("", ", extra: {kv_transfer_config: {kv_role: kv_both}}", "disaggregation", "extra.kv_transfer_config"),
        ("", ", extra: {cpu_offload_gb: 8}", "offloading", "extra.cpu_offload_gb"),
        ("", ", extra: {enable_lora: true}", "lora", "extra.enable_lora"),
        ("", ", extra: {mamba_block_size: 8}", "other_argument", "extra: mamba_block_size"),
    ],
)
def test_what_is_not_modelled_is_named_by_its_key(
    tmp_path: Path, lines: str, settings: str, kind: str, where: str
) -> None:
    found = unmodelled(model(folder(tmp_path), lines, settings))
    assert [one.kind.value for one in found] == [kind]
    assert found[0].where.endswith(where)
    assert to_json(found[0]) == {"kind": kind, "where": found[0].where, "effect": found[0].effect}


def test_what_each_group_asks_for_is_named(tmp_path: Path) -> None:
    groups = "    groups: [{name: a, settings: {pipeline_parallel_size: 2}}, {name: b}]\n"
    spec = spec_of(folder(tmp_path), f"{groups}    adapters: [{{name: c, source: d}}]\n")
    found = unmodelled_of(spec.models[0].views, dict.fromkeys("ab", cases.costs()), spec)
    assert [one.where for one in found] == ["models.m.groups.a.settings.pipeline_parallel_size", "models.m.adapters"]


def test_windows_and_images_are_read_from_the_config(tmp_path: Path) -> None:
    windowed = folder(tmp_path, model_type="mistral", sliding_window=4_096, vision_config={"image_size": 224})
    found = unmodelled(model(windowed))
    assert [one.kind for one in found] == [UnmodelledKind.SLIDING_WINDOW, UnmodelledKind.IMAGES]
    assert "32 of 32 layers read at most 4,096 tokens" in found[0].effect


def test_a_config_that_is_not_there_is_no_silence(tmp_path: Path) -> None:
    found = unmodelled(model(tmp_path))
    assert [one.kind for one in found] == [UnmodelledKind.ARCHITECTURE_UNKNOWN]
    assert "config.json" in found[0].where
