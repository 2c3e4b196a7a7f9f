"""Where a region runs: each refusal names the key, the value and what is allowed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.spec import KubernetesDeploy, SpecError
from cluster.spec.deploy import ElasticPool
from tests.cluster.launch.specs import (
    AWS,
    KUBERNETES,
    LOCAL,
    ZONED_AWS,
    ZONED_KUBERNETES,
    ZONED_LOCAL,
    changed,
    spec_of,
)

SPOT = ZONED_AWS["deploy"]["pools"][1]


@pytest.mark.parametrize(
    ("region", "words"),
    [
        (changed(LOCAL, provider="gcp"), "regions.0.deploy.provider = 'gcp': allowed: local, aws, kubernetes"),
        (changed(LOCAL, provider=None), "regions.0.deploy.provider = None: allowed: local, aws, kubernetes"),
        (changed(LOCAL, head="here"), "regions.0.deploy.head = 'here': allowed: an IPv4 address"),
        (changed(LOCAL, hed=1), "regions.0.deploy.hed = 1: unknown key; allowed: a mapping of head_store"),
        (changed(LOCAL, head="10.77.0.3"), "head and workers.address: '10.77.0.3' appears twice"),
        (
            changed(LOCAL, workers=[{"address": "10.0.0.1", "pool": "tpu"}]),
            "pool = 'tpu': unknown; allowed: cpu, gpu",
        ),
        (changed(LOCAL, workers=[{"address": "10.0.0.1", "pool": "cpu"}]), "pools.cpu.nodes = 2, but `deploy` gives"),
        (changed(LOCAL, environment={"HF_TOKEN": "x"}), "HF_TOKEN: looks like a secret"),
        (changed(LOCAL, environment={"RAY_AUTH_MODE": "x"}), "RAY_AUTH_MODE: allowed: any variable but"),
        (changed(LOCAL, head_store={"kind": "redis"}), "address: missing; kind = 'redis' needs"),
        (changed(LOCAL, head_store={"address": "a:1"}), "address = 'a:1': allowed: only with kind = 'redis'"),
        (
            changed(LOCAL, head_store={"kind": "redis", "address": "a:99999"}),
            "regions.0.deploy.head_store.address = 'a:99999': port 99999: allowed: 1 to 65535",
        ),
        (
            {**LOCAL, "endpoint": "https://a:0"},
            "regions.0.endpoint = 'https://a:0': port 0: allowed: 1 to 65535",
        ),
        (changed(LOCAL, venv="/opt/my env"), "regions.0.deploy.venv = '/opt/my env': allowed: a text of the form"),
        (changed(AWS, image="ubuntu"), "regions.0.deploy.image = 'ubuntu': allowed: a text of the form ^ami-"),
        (changed(AWS, key_name="mine"), "key_name = 'mine': needs `ssh_key`"),
        (changed(AWS, ssh_key="~/k"), "ssh_key = '~/k': needs `key_name`"),
        (
            changed(AWS, pools=[{**AWS["deploy"]["pools"][0], "max": 1}, AWS["deploy"]["pools"][1]]),
            "pools.l40s.nodes = 2, but `deploy` gives it 2 to 1 nodes",
        ),
        (changed(AWS, pools=AWS["deploy"]["pools"][:1]), "nothing is said of pool 'spot'"),
        (changed(KUBERNETES, secrets={"kind": "file"}), "secrets.kind = 'file': allowed: kubernetes"),
        (changed(KUBERNETES, model_cache={}), "allowed: host_path, or size_gib"),
        (
            changed(ZONED_LOCAL, workers=LOCAL["deploy"]["workers"]),
            "deploy.workers: zone of 10.77.0.3: missing; allowed: a, b",
        ),
        (
            changed(LOCAL, workers=ZONED_LOCAL["deploy"]["workers"]),
            "deploy.workers: zone of 10.77.0.3: 'a' is not a zone of pool 'cpu'; allowed: none, since the pool has no",
        ),
        (
            {**ZONED_LOCAL, "pools": [{**ZONED_LOCAL["pools"][0], "zones": ["a", "b", "c"]}, LOCAL["pools"][1]]},
            "pools.cpu.zones: no worker is in 'c'; needed: a worker of the pool in each of them",
        ),
        (
            changed(ZONED_AWS, zone_subnet_ids={"a": ["subnet-aaaaaaaa"]}),
            "pools.spot.zones: deploy.zone_subnet_ids has no 'b', only a; needed: its subnets",
        ),
        (
            changed(ZONED_AWS, pools=[ZONED_AWS["deploy"]["pools"][0], {**SPOT, "subnet_ids": ["subnet-cccccccc"]}]),
            "deploy.pools.spot.subnet_ids: allowed: none, since the pool has `zones`",
        ),
        (
            changed(ZONED_AWS, pools=[ZONED_AWS["deploy"]["pools"][0], {**SPOT, "reservation": "cr-aaaaaaaa"}]),
            "deploy.pools.spot.reservation = 'cr-aaaaaaaa': is of one zone; allowed: with one zone of the pool",
        ),
        (
            {**ZONED_AWS, "pools": [AWS["pools"][0], {**ZONED_AWS["pools"][1], "zones": list("abcdef")}]},
            "pools.spot.zones: 6 zones, but `deploy` gives the pool at most 5 nodes; needed: one for each zone",
        ),
        (
            {**ZONED_KUBERNETES, "pools": [{**ZONED_KUBERNETES["pools"][0], "zones": list("abcde")}]},
            "pools.gpu.zones: 5 zones, but `deploy` gives the pool at most 4 nodes",
        ),
        (
            changed(
                ZONED_KUBERNETES,
                pools=[
                    {**ZONED_KUBERNETES["deploy"]["pools"][0], "node_selector": {"topology.kubernetes.io/zone": "a"}}
                ],
            ),
            "deploy.pools.gpu.node_selector: has topology.kubernetes.io/zone; allowed: without it",
        ),
        ({**LOCAL, "name": "a.b"}, "the cell's name 'team-a.b' names hosts"),
    ],
)
def test_what_cannot_be_deployed_is_refused(region: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of(region)
    assert words in "; ".join(caught.value.problems)


def test_what_is_left_out_has_a_default() -> None:
    spec = spec_of(KUBERNETES)
    deploy = spec.regions[0].deploy
    assert isinstance(deploy, KubernetesDeploy)
    assert (deploy.namespace, deploy.secrets.kind, deploy.head_store.kind) == ("raylane", "kubernetes", "rocksdb")
    assert type(spec).model_validate_json(spec.model_dump_json()) == spec


@given(nodes=st.tuples(*[st.integers(0, 50)] * 3).map(sorted), zones=st.integers(1, 16))
def test_zones_get_even_shares_of_a_pools_nodes(nodes: list[int], zones: int) -> None:
    lowest, there, highest = nodes
    pool = ElasticPool(pool="p", min=lowest, max=highest)
    parts = pool.parts(there, [str(number) for number in range(zones)])
    assert [sum(each) for each in zip(*((one.min, one.nodes, one.max) for one in parts), strict=True)] == nodes
    for figures in ([one.min for one in parts], [one.nodes for one in parts], [one.max for one in parts]):
        assert max(figures) - min(figures) <= 1
    assert all(one.min <= one.nodes <= one.max for one in parts)


def test_a_variable_that_is_no_secret_is_allowed() -> None:
    deploy = spec_of(changed(LOCAL, environment={"TOKENIZERS_PARALLELISM": "false"})).regions[0].deploy
    assert deploy is not None
    assert deploy.environment == {"TOKENIZERS_PARALLELISM": "false"}
