"""Each key that says where a region runs changes what is rendered, or is named here with the reason why it does not."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from cli.deploy.rendering import rendering_of
from cluster.launch import deploy_problems
from cluster.spec import AwsDeploy, KubernetesDeploy, LocalDeploy
from tests.cluster.launch.specs import AWS, KUBERNETES, LOCAL, MODEL, PUBLIC, changed, spec_of

ELSEWHERE = {
    "LocalDeploy.provider": "chosen by the test",
    "AwsDeploy.provider": "chosen by the test",
    "KubernetesDeploy.provider": "chosen by the test",
    "KubernetesDeploy.tls_secret": "with gateway.tls: test_kuberay.py",
    "KubernetesDeploy.context": "for kubectl, on its command line: cli/deploy/kubectl.py",
    "LocalDeploy.workers.zone": "of pools with zones: test_zoned_nodes.py",
    "AwsDeploy.zone_subnet_ids": "of pools with zones: test_zoned_nodes.py",
    "LocalDeploy.secrets.name": "refused: a file has no name",
    "AwsDeploy.secrets.folder": "of secrets.kind = file",
    "KubernetesDeploy.secrets.folder": "refused: a Secret has no folder",
    "KubernetesDeploy.secrets.kind": "refused but for kubernetes",
    "KubernetesDeploy.head_store.path": "refused: the store is a volume",
}
"""Keys that change no rendered file."""
REDIS = {"kind": "redis", "address": "10.0.0.9:6379"}
HOSTS = {
    "head_store.kind": {"head_store": REDIS},
    "head_store.address": {"head_store": {**REDIS, "address": "10.0.0.8:6379"}},
    "head_store.path": {"head_store": {"path": "/data/gcs"}},
    "environment": {"environment": {"B": "c"}},
    "venv": {"venv": "/srv/venv"},
    "setup": {"setup": ["true"]},
    "head_service": {"head_service": "none"},
    "ssh_user": {"ssh_user": "other"},
}
INGRESS = {"host": "llm.example.org", "tls_secret": "a"}
POOL: dict[str, Any] = AWS["deploy"]["pools"][0]
PODS: dict[str, Any] = KUBERNETES["deploy"]["pools"][0]


def aws_pool(**keys: Any) -> dict[str, Any]:
    return {"pools": [{**POOL, **keys}, AWS["deploy"]["pools"][1]]}


def pods(**keys: Any) -> dict[str, Any]:
    return {"pools": [{**PODS, **keys}]}


def tolerating(**keys: Any) -> dict[str, Any]:
    return pods(tolerations=[{"key": "nvidia.com/gpu", **keys}])


CHANGES: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "LocalDeploy": (
        LOCAL,
        {
            **HOSTS,
            "ssh_key": {"ssh_key": "~/.ssh/other"},
            "head": {"head": "10.77.0.9"},
            "workers.address": {"workers": [*LOCAL["deploy"]["workers"][:2], {"address": "10.77.0.8", "pool": "gpu"}]},
            "workers.pool": {
                "workers": [
                    {"address": "10.77.0.3", "pool": "gpu"},
                    {"address": "10.77.0.4", "pool": "cpu"},
                    {"address": "10.77.0.5", "pool": "cpu"},
                ]
            },
            "secrets.kind": {"secrets": {"kind": "aws"}},
            "secrets.folder": {"secrets": {"kind": "file", "folder": "/etc/raylane"}},
        },
    ),
    "AwsDeploy": (
        AWS,
        {
            **HOSTS,
            "ssh_key": {"ssh_key": "~/.ssh/other", "key_name": "mine"},
            "key_name": {"ssh_key": "~/.ssh/other", "key_name": "other"},
            "region": {"region": "eu-west-1"},
            "image": {"image": "ami-0123456789abcdef1"},
            "subnet_ids": {"subnet_ids": ["subnet-0123456789abcdef7"]},
            "security_group_ids": {"security_group_ids": ["sg-0123456789abcdef7"]},
            "instance_profile": {"instance_profile": "other"},
            "head_type": {"head_type": "m7i.large"},
            "head_volume_gib": {"head_volume_gib": 50},
            "head_security_group_ids": {"head_security_group_ids": ["sg-0123456789abcdef8"]},
            "head_instance_profile": {"head_instance_profile": "head"},
            "head_launch_template": {"head_launch_template": "lt-0123456789abcdef0"},
            "head_group": {"head_group": "team-us-east-1-head", "key_name": "mine", "ssh_key": "~/.ssh/mine"},
            "ssm": {"ssm": True},
            "pools.pool": {"pools": [{**POOL, "pool": "spot", "min": 1}, {**POOL, "pool": "l40s", "min": 1}]},
            "pools.min": aws_pool(min=1),
            "pools.max": aws_pool(max=9),
            "pools.instance_type": aws_pool(instance_type="g6e.24xlarge"),
            "pools.image": aws_pool(image="ami-0123456789abcdef2"),
            "pools.subnet_ids": aws_pool(subnet_ids=["subnet-0123456789abcdef6"]),
            "pools.security_group_ids": aws_pool(security_group_ids=["sg-0123456789abcdef6"]),
            "pools.instance_profile": aws_pool(instance_profile="pool"),
            "pools.launch_template": aws_pool(launch_template="lt-0123456789abcdef0"),
            "pools.reservation": aws_pool(reservation="cr-0123456789abcdef1"),
            "pools.volume_gib": aws_pool(volume_gib=400),
            "secrets.kind": {"secrets": {"kind": "file"}},
            "secrets.name": {"secrets": {"kind": "aws", "name": "other"}},
        },
    ),
    "KubernetesDeploy": (
        KUBERNETES,
        {
            "head_store.kind": {"head_store": REDIS},
            "head_store.address": {"head_store": {**REDIS, "address": "redis:1"}},
            "environment": {"environment": {"B": "c"}},
            "image": {"image": "registry/other:1"},
            "namespace": {"namespace": "other"},
            "image_pull_secret": {"image_pull_secret": "pull"},
            "service_account": {"service_account": "account"},
            "head_cpus": {"head_cpus": 3},
            "head_memory_gib": {"head_memory_gib": 9},
            "store_gib": {"store_gib": 11},
            "store_class": {"store_class": "fast"},
            "head_node_selector": {"head_node_selector": {"a": "b"}},
            "head_tolerations.key": {"head_tolerations": [{"key": "a"}]},
            "head_tolerations.operator": {"head_tolerations": [{"key": "a", "operator": "Equal"}]},
            "head_tolerations.value": {"head_tolerations": [{"key": "a", "operator": "Equal", "value": "b"}]},
            "head_tolerations.effect": {"head_tolerations": [{"key": "a", "effect": "NoExecute"}]},
            "pools.pool": {},
            "pools.min": pods(min=0),
            "pools.max": pods(max=2),
            "pools.memory_gib": pods(memory_gib=65),
            "pools.node_selector": pods(node_selector={"a": "b"}),
            "pools.tolerations.key": tolerating(key="other"),
            "pools.tolerations.operator": tolerating(operator="Equal"),
            "pools.tolerations.value": tolerating(operator="Equal", value="a"),
            "pools.tolerations.effect": tolerating(effect="NoExecute"),
            "pools.runtime_class": pods(runtime_class="nvidia"),
            "model_cache.host_path": {"model_cache": {"host_path": "/data"}},
            "compile_cache_claim": {"compile_cache_claim": "compiled"},
            "model_cache.size_gib": {"model_cache": {"size_gib": 9}},
            "model_cache.storage_class": {"model_cache": {"size_gib": 9, "storage_class": "fast"}},
            "gateway_service": {"gateway_service": "LoadBalancer", "gateway_annotations": {"ssl-cert": "b"}},
            "gateway_annotations": {"gateway_annotations": {"a": "b"}},
            "ingress.host": {"ingress": INGRESS},
            "ingress.class_name": {"ingress": {**INGRESS, "class_name": "nginx"}},
            "ingress.tls_secret": {"ingress": {**INGRESS, "tls_secret": "b"}},
            "ingress.annotations": {"ingress": {**INGRESS, "annotations": {"a": "b"}}},
            "hub_secret": {"hub_secret": "hub"},
            "upgrade": {"upgrade": "beside"},
            "overrides": {"overrides": {"Pod": {"spec": {"priorityClassName": "serving"}}}},
            "secrets.name": {"secrets": {"kind": "kubernetes", "name": "other"}},
        },
    ),
}


def keys(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """The keys of a section that hold a value, with those of the sections in it."""
    for name, field in model.model_fields.items():
        inner = [one for one in _models_in(field.annotation) if issubclass(one, BaseModel)]
        if inner:
            yield from keys(inner[0], f"{above}{name}.")
        else:
            yield above + name


def _models_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and not getattr(annotation, "__args__", ()):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)


@pytest.mark.parametrize("kind", [LocalDeploy, AwsDeploy, KubernetesDeploy])
def test_each_key_is_tried_or_named(kind: type[BaseModel]) -> None:
    tried = {f"{kind.__name__}.{key}" for key in CHANGES[kind.__name__][1]}
    named = {key for key in ELSEWHERE if key.startswith(f"{kind.__name__}.")}
    assert {f"{kind.__name__}.{key}" for key in keys(kind)} == tried | named
    assert not tried & named


CASES = [
    (kind, key) for kind, (_, changes) in CHANGES.items() for key, change in changes.items() if change
]  # `pools.pool` of one pool alone cannot differ from the region's pool


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "key"), CASES, ids=[f"{kind}.{key}" for kind, key in CASES])
def test_a_key_changes_what_is_rendered(kind: str, key: str) -> None:
    region, changes = CHANGES[kind]
    sections = PUBLIC if kind == "KubernetesDeploy" else {}
    texts = []
    for one in (region, changed(region, **changes[key])):
        spec = spec_of(one, **sections)
        texts.append(rendering_of(spec, spec, spec.regions[0]).files)
    assert texts[0] != texts[1]


@pytest.mark.whole
@pytest.mark.parametrize("name", ["cpus_per_node", "gpus_per_node"])
def test_a_pools_amounts_reach_its_nodes(name: str) -> None:
    for region, sections in ((LOCAL, {}), (AWS, {}), (KUBERNETES, PUBLIC)):
        other = {**region, "pools": [{**pool, name: 7} for pool in region["pools"]]}
        specs = [spec_of(one, **sections) for one in (region, other)]
        files = [rendering_of(spec, spec, spec.regions[0]).cluster for spec in specs]
        assert files[0] != files[1]


EXTERNAL = {"url": "https://a/v1", "models": {"demo": "m"}, "tenants": {"search": 1}}
EXTERNAL |= {"usd_per_mtok_in": 1, "usd_per_mtok_out": 1}
OWN_FILES = {"kind": "file"}


@pytest.mark.parametrize(
    ("region", "kind", "allowed"),
    [
        (LOCAL, "file", ""),
        (LOCAL, "kubernetes", "file, aws"),
        (changed(LOCAL, secrets={"kind": "aws"}), "file", "aws"),
        (AWS, "aws", ""),
        (AWS, "file", "aws"),
        (changed(AWS, secrets=OWN_FILES), "file", ""),
        (KUBERNETES, "kubernetes", ""),
        (KUBERNETES, "aws", ""),
        (KUBERNETES, "file", "kubernetes, aws"),
    ],
)
def test_a_secret_that_no_node_gets_is_refused(region: dict[str, Any], kind: str, allowed: str) -> None:
    spec = spec_of(region, **PUBLIC, external={**EXTERNAL, "secret": {"kind": kind}})
    refused = f"external.secret.kind = {kind!r}: allowed in {region['name']}: {allowed}"
    found = deploy_problems(spec, spec.regions[0])
    assert [problem.partition(";")[0] for problem in found] == ([refused] if allowed else [])


@pytest.mark.parametrize("region", [LOCAL, AWS], ids=["local", "aws"])
def test_hosts_mount_no_secret(region: dict[str, Any]) -> None:
    spec = spec_of(changed(region, secrets={"kind": "kubernetes"}))
    (problem,) = deploy_problems(spec, spec.regions[0])
    assert problem == f"regions.{region['name']}.deploy.secrets.kind = 'kubernetes': allowed on hosts: file, aws"


@pytest.mark.parametrize(
    "place",
    [
        "gateway.tls.cert",
        "gateway.tls.key",
        "peering.tls.cert",
        "peering.tls.key",
        "peering.tls.ca",
        "models.demo.source",
        "models.demo.settings.chat_template",
        "models.demo.settings.speculative.model",
        "models.demo.adapters.own.source",
    ],
)
def test_a_path_that_no_node_has_is_refused(place: str) -> None:
    def at(key: str) -> str:
        return "./file" if key == place else "/file"

    tls = {one: {key: at(f"{one}.tls.{key}") for key in ("cert", "key", "ca")} for one in ("gateway", "peering")}
    del tls["gateway"]["ca"]
    draft = {"method": "draft_model", "model": at("models.demo.settings.speculative.model")}
    model = {
        **MODEL,
        "source": at("models.demo.source"),
        "settings": {
            "max_model_len": 512,
            "chat_template": at("models.demo.settings.chat_template"),
            "speculative": draft,
        },
        "adapters": [{"name": "own", "source": at("models.demo.adapters.own.source")}],
    }
    spec = spec_of(
        {**LOCAL, "endpoint": "https://here.example.org"},
        {"name": "there", "endpoint": "https://there.example.org", "pools": [{"name": "cpu"}]},
        models=[model],
        gateway={**PUBLIC["gateway"], "tls": tls["gateway"]},
        tenants=PUBLIC["tenants"],
        peering={"tls": tls["peering"]},
    )
    (problem,) = deploy_problems(spec, spec.regions[0])
    assert problem.startswith(f"{place} = './file': allowed in a deployed cell: an absolute path")
