"""Serve's configuration: valid by Serve's own schema, whole, without keys, and a change restarts only what depends on
it."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cluster.files import shipped
from cluster.spec import ClusterSpec, Model, load_spec

with warnings.catch_warnings():  # of Ray Serve, as it is imported
    warnings.simplefilter("ignore")
    import ray.serve  # noqa: F401

from deployments.app import app_name
from deployments.deployed import EngineArguments, GatewayArguments, SecretsError, spec_of
from deployments.serve_config import deployed_content, serve_config
from tests.cluster.launch.specs import LOCAL, MODEL
from tests.cluster.launch.specs import spec_of as spec_with

SCHEMA = Path(__file__).parents[2].parent / "shared" / "data" / "schemas" / "ray-serve-deploy-schema-2.60.0.json"
KEY = "sha256:" + "ab" * 32
PUBLIC: dict[str, Any] = {
    "gateway": {"host": "0.0.0.0", "allow_public": True, "replicas": 2},
    "tenants": [{"name": "search", "keys": [KEY], "weight": 2}],
}
SPECS = sorted(shipped("specs").glob("*.yaml"))


def app(spec: ClusterSpec, name: str) -> dict[str, Any]:
    (found,) = (one for one in serve_config(spec, spec.regions[0])["applications"] if one["name"] == name)
    assert isinstance(found, dict)
    return found


def restarts(old: ClusterSpec, new: ClusterSpec) -> list[str]:
    """The applications whose replicas Serve replaces: those whose arguments or policy differ."""

    def version(spec: ClusterSpec) -> dict[str, str]:
        return {one["name"]: json.dumps(restarting(one)) for one in serve_config(spec, spec.regions[0])["applications"]}

    def restarting(one: dict[str, Any]) -> list[Any]:
        return [one["args"], [of.get("autoscaling_config", {}).get("policy") for of in one["deployments"]]]

    before, after = version(old), version(new)
    return [name for name in after if name in before and before[name] != after[name]]


@pytest.mark.skipif(
    not SCHEMA.is_file(), reason="Serve's closed schema (../shared/data/schemas) is not on this machine"
)
@pytest.mark.parametrize("path", SPECS, ids=[path.stem for path in SPECS])
def test_serves_closed_schema_accepts_it(path: Path) -> None:
    schema = _closed(json.loads(SCHEMA.read_text()))
    spec = load_spec(path)
    content = serve_config(spec, spec.regions[0])
    assert list(Draft202012Validator(schema).iter_errors(json.loads(json.dumps(content)))) == []
    content["applications"][0]["deployments"][0]["replica_count"] = 1
    assert list(Draft202012Validator(schema).iter_errors(content)) != []


def _closed(schema: Any) -> Any:
    if isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for value in schema.values():
            _closed(value)
    elif isinstance(schema, list):
        for value in schema:
            _closed(value)
    return schema


@pytest.mark.whole
def test_serves_own_model_accepts_it() -> None:
    from ray.serve.schema import ServeDeploySchema

    spec = spec_with(LOCAL, **PUBLIC)
    ServeDeploySchema.model_validate(serve_config(spec, spec.regions[0]))


@pytest.mark.parametrize("path", SPECS, ids=[path.stem for path in SPECS])
def test_the_arguments_make_the_whole_spec_again(path: Path, tmp_path: Path) -> None:
    spec = load_spec(path)
    gateway = app(spec, "gateway")
    arguments = GatewayArguments.model_validate(gateway["args"])
    (deployment,) = gateway["deployments"]
    (tmp_path / "tenant_keys.json").write_text(json.dumps({tenant.name: tenant.keys for tenant in spec.tenants}))
    regions = tuple(region.model_copy(update={"deploy": None}) for region in spec.regions)
    config = deployment["user_config"]
    whole = spec_of({**arguments.spec, "models": config["models"]}, config["live"], tmp_path)
    assert whole == spec.model_copy(update={"regions": regions}), "all but where the regions run"
    for view in spec.views_in(spec.regions[0]):
        assert EngineArguments.model_validate(app(spec, app_name(view.group_key))["args"]).model.group == view.group


def test_keys_come_from_the_file_alone(tmp_path: Path) -> None:
    spec = spec_with(LOCAL, **PUBLIC)
    text = json.dumps(serve_config(spec, spec.regions[0]))
    assert "ab" * 32 not in text
    gateway = app(spec, "gateway")
    config = gateway["deployments"][0]["user_config"]
    arguments, live = {**gateway["args"]["spec"], "models": config["models"]}, config["live"]
    with pytest.raises(SecretsError, match=r"tenant_keys.json: cannot be read"):
        spec_of(arguments, live, tmp_path)
    (tmp_path / "tenant_keys.json").write_text("{}")
    with pytest.raises(SecretsError, match="has no keys of tenant 'search'"):
        spec_of(arguments, live, tmp_path)
    (tmp_path / "tenant_keys.json").write_text(json.dumps({"search": [KEY]}))
    assert spec_of(arguments, live, tmp_path) == ClusterSpec.model_validate(
        {**spec.model_dump(mode="json"), "regions": deployed_content(spec)["regions"]}
    )


def test_a_change_of_keys_alone_is_a_change() -> None:
    other = [{"name": "search", "keys": ["sha256:" + "cd" * 32], "weight": 2}]
    one, two = (spec_with(LOCAL, **{**PUBLIC, "tenants": tenants}) for tenants in (PUBLIC["tenants"], other))
    assert serve_config(one, one.regions[0]) != serve_config(two, two.regions[0])
    assert restarts(one, two) == []


SECOND = {**MODEL, "name": "second"}
CHEAP, DEAR = {"name": "default", "settings": {"max_model_len": 512}}, {"name": "dear"}
GROUPS = {**MODEL, "groups": [CHEAP, DEAR]}


def test_each_group_is_an_application() -> None:
    spec = spec_with(LOCAL, models=[GROUPS])
    content = serve_config(spec, spec.regions[0])["applications"]
    assert [one["name"] for one in content] == ["gateway", "model-demo", "model-demo-dear"]
    assert [one["deployments"][0]["name"] for one in content[1:]] == ["engine-demo", "engine-demo-dear"]
    cheap, dear = (Model.model_validate(one["args"]["model"]) for one in content[1:])
    assert [(view.group, view.settings.max_model_len) for view in (cheap, dear)] == [("default", 512), ("dear", 1024)]
    policies = [one["deployments"][0]["autoscaling_config"]["policy"]["policy_kwargs"]["model"] for one in content[1:]]
    assert policies == ["demo", "demo@dear"]


@pytest.mark.parametrize(
    ("model", "apps"),
    [
        ({"groups": [CHEAP, {**DEAR, "settings": {"max_num_seqs": 7}}]}, ["model-demo-dear"]),
        ({"groups": [CHEAP, {**DEAR, "replicas": {"count": 3}}]}, []),
        ({"groups": [CHEAP, DEAR], "lanes": {"short": ["default", "dear"], "long": ["dear"]}}, []),
        ({"groups": [CHEAP, DEAR, {"name": "third"}]}, ["gateway"]),
        ({"groups": [CHEAP]}, ["gateway"]),
    ],
)
def test_a_change_restarts_the_group_that_it_concerns(model: dict[str, Any], apps: list[str]) -> None:
    old, new = (spec_with(LOCAL, models=[{**MODEL, **groups}]) for groups in (GROUPS, model))
    assert serve_config(old, old.regions[0]) != serve_config(new, new.regions[0])
    assert restarts(old, new) == apps


def test_a_second_group_leaves_the_first_as_it_is_where_it_is_called_default() -> None:
    old, new = (spec_with(LOCAL, models=[one]) for one in (MODEL, {**MODEL, "groups": [{"name": "default"}, DEAR]}))
    assert restarts(old, new) == ["gateway"]


@pytest.mark.parametrize(
    ("sections", "apps"),
    [
        ({"lanes": [{"name": "all"}]}, []),
        ({"classes": [{"name": "interactive", "ttft_ms": 100}]}, []),
        ({"autoscaling": {"policy": "fixed", "period_s": 7}}, []),
        ({"gateway": {"timeouts": {"total_s": 100}}}, []),
        ({"models": [{**MODEL, "replicas": {"count": 4}}, SECOND]}, []),
        ({"models": [{**MODEL, "settings": {"max_model_len": 2048}}, SECOND]}, ["model-demo"]),
        ({"gateway": {"drain_s": 5}}, ["gateway"]),
        ({"artifacts": {"max_gib": 5}}, ["gateway", "model-demo", "model-second"]),
    ],
    ids=lambda value: next(iter(value), "nothing") if isinstance(value, dict) else "-".join(value) or "none",
)
def test_a_change_restarts_what_depends_on_it(sections: dict[str, Any], apps: list[str]) -> None:
    old = spec_with(LOCAL, models=[MODEL, SECOND])
    new = spec_with(LOCAL, **{"models": [MODEL, SECOND], **sections})
    assert serve_config(old, old.regions[0]) != serve_config(new, new.regions[0])
    assert restarts(old, new) == apps


def test_a_node_more_restarts_nothing_but_the_gateways() -> None:
    more = {**LOCAL, "pools": [{**LOCAL["pools"][0], "price_usd_per_hour": 2.0}, LOCAL["pools"][1]]}
    assert restarts(spec_with(LOCAL), spec_with(more)) == ["gateway"]
