"""The cluster spec: what is shipped loads, what is written comes back, and each refusal names key, value and allowed
range."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from cluster.files import shipped
from cluster.spec import ClusterSpec, GatewaySpec, SpecError, Timeouts, load_spec, parse_spec
from tests.cluster.launch.specs import LOCAL, MODEL, spec_of

HEAD = "name: x\nregions: [{name: r, pools: [{name: p}]}]\n"
MODELS = "models: [{name: m, source: s, settings: {max_model_len: 100}}]\n"
SPECS = sorted(shipped("specs").glob("*.yaml"))


@pytest.mark.whole
@pytest.mark.parametrize("path", SPECS, ids=[path.stem for path in SPECS])
def test_what_is_shipped_loads_and_comes_back(path: Path) -> None:
    spec = load_spec(path)
    assert ClusterSpec.model_validate_json(spec.model_dump_json()) == spec
    assert parse_spec(yaml.safe_dump(json.loads(spec.model_dump_json()))) == spec


def test_the_default_listens_on_loopback() -> None:
    spec = load_spec(shipped("specs/local.yaml"))
    assert (spec.gateway.host, spec.gateway.allow_public) == ("127.0.0.1", False)
    assert sum(model.replicas.count for model in spec.models) == 2


def test_the_least_that_is_a_spec() -> None:
    spec = parse_spec(HEAD + MODELS)
    assert spec.models[0].served_names == ("m",)
    assert spec.gateway == GatewaySpec()
    assert spec.region("r").pools[0].gpus == 0


def test_paths_start_from_the_specs_folder_and_an_empty_one_is_none(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    models = MODELS.replace("name: m,", "name: m, step_log: steps,", 1)
    assert models != MODELS
    file.write_text(f'{HEAD}{models}\ngateway: {{trace_file: t.jsonl, decision_log: "", simulator_error: /e.json}}')
    spec = load_spec(file)
    assert (spec.gateway.trace_file, spec.gateway.decision_log, spec.gateway.simulator_error) == (
        str(tmp_path / "t.jsonl"),
        None,
        "/e.json",
    )
    assert spec.models[0].step_log == str(tmp_path / "steps")


def test_a_path_from_a_home_that_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(f"{HEAD}{MODELS}gateway: {{trace_file: ~nobody-of-us/t.jsonl}}")
    with pytest.raises(SpecError, match=r"gateway\.trace_file = '~nobody-of-us/t\.jsonl': no such home; allowed"):
        load_spec(file)


def test_a_simulated_model(tmp_path: Path) -> None:
    text = (
        f"{HEAD}models: [{{name: m-simulated, source: s, engine: simulated, simulated: {{costs: c.json}}, settings: "
        f"{{max_model_len: 99}}}}]"
    )
    (tmp_path / "spec.yaml").write_text(text)
    model = load_spec(tmp_path / "spec.yaml").models[0]
    assert model.simulated is not None
    assert model.simulated.costs == str(tmp_path / "c.json")  # beside the spec, wherever the command runs
    assert model.cpus < 0.1
    assert model.sources == ()
    assert parse_spec(HEAD + MODELS).models[0].cpus == 1


def test_a_model_may_fall_back_where_its_regions_are_deployed() -> None:
    models = [{**MODEL, "fallback": [{"to": "big"}]}, {**MODEL, "name": "big"}]
    assert spec_of(LOCAL, models=models).models[0].fallback_of("any") == "big"


def test_merge_keys_may_be_set_again() -> None:
    models = """
models:
  - &base {name: m, source: s, settings: {max_model_len: 100}}
  - {<<: *base, name: n}
"""
    assert [model.name for model in parse_spec(HEAD + models).models] == ["m", "n"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff\xfe")
    for path in (tmp_path / "none.yaml", tmp_path, tmp_path / "latin.yaml"):
        with pytest.raises(SpecError, match="cannot be read"):
            load_spec(path)


@given(st.text(max_size=200))
def test_any_text_is_a_spec_or_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_spec(text)


YAMLS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


def keys_of(section: type[BaseModel]) -> list[str]:
    return list(section.model_fields)


@pytest.mark.whole
@given(
    st.dictionaries(st.sampled_from([*keys_of(ClusterSpec), "other"]), YAMLS),
    st.dictionaries(st.sampled_from(keys_of(GatewaySpec)), YAMLS),
)
def test_any_change_is_a_spec_or_refused_with_the_key(change: dict[str, Any], gateway: dict[str, Any]) -> None:
    data = {**yaml.safe_load(HEAD + MODELS), "gateway": gateway, **change}
    refused = None
    try:
        spec = parse_spec(yaml.safe_dump(data))
        assert ClusterSpec.model_validate_json(spec.model_dump_json()) == spec
    except SpecError as error:
        refused = error
    assert refused is None or all(":" in line for line in refused.problems)


SECONDS = st.floats(0.001, 86_400)


@pytest.mark.whole
@given(
    st.builds(
        Timeouts,
        queue_wait_s=SECONDS,
        first_byte_s=SECONDS,
        total_s=st.just(86_400.0),
        connect_s=SECONDS,
        between_bytes_s=SECONDS,
    ),
    st.integers(1, 65_535),
    st.sampled_from(["127.0.0.1", "::1", "127.3.2.1"]),
    st.integers(0, 10_000),
)
def test_any_spec_comes_back(timeouts: Timeouts, port: int, host: str, count: int) -> None:
    spec = parse_spec(HEAD + MODELS)
    gateway = GatewaySpec(host=host, port=port, timeouts=timeouts)
    model = spec.models[0].model_copy(update={"replicas": spec.models[0].replicas.model_copy(update={"count": count})})
    changed = ClusterSpec.model_validate(spec.model_copy(update={"gateway": gateway, "models": (model,)}).model_dump())
    assert ClusterSpec.model_validate_json(changed.model_dump_json()) == changed
    assert parse_spec(yaml.safe_dump(json.loads(changed.model_dump_json()))) == changed


def test_the_schema_is_closed_and_describes_each_key() -> None:
    schema = ClusterSpec.model_json_schema()
    for name, section in {"ClusterSpec": schema, **schema["$defs"]}.items():
        if section.get("type") == "object":
            assert section["additionalProperties"] is False, name
            assert section["description"], name


def test_values_are_frozen() -> None:
    spec = parse_spec(HEAD + MODELS)
    with pytest.raises(ValueError, match="frozen"):
        spec.name = "y"  # type: ignore[misc]
