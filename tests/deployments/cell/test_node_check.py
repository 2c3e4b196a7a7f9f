"""Which nodes a cell is not deployed on, and how that is said. With real Ray: `tests/live/test_live_hosts.py`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.node_labels import EVERY_POOL, POOL, ZONE
from cluster.spec import ClusterSpec, parse_spec
from cluster.versions import versions_here
from deployments.cell.node_check import (
    CellNode,
    expected_versions,
    gateway_nodes,
    node_problems,
    paths_on_nodes,
    report_node,
)

VERSIONS = {"raylane": "0.1.0", "Ray": "2.60.0", "Python": "3.11.2", "vLLM": "0.32.0"}
HEAD = CellNode("10.0.0.1", True, {}, {name: one for name, one in VERSIONS.items() if name != "vLLM"})
A = CellNode("10.0.0.2", False, {POOL: "gpu"}, VERSIONS)
B = CellNode("10.0.0.3", False, {POOL: "cpu"}, VERSIONS)


def spec(**gateway: Any) -> ClusterSpec:
    return parse_spec(
        f"""
name: x
regions: [{{name: r, pools: [{{name: gpu, accelerator: H100, gpus_per_node: 1}}, {{name: cpu}}]}}]
models:
- {{name: m, source: /models/m, settings: {{max_model_len: 100}}}}
- {{name: s-simulated, source: org/s, engine: simulated, pool: cpu, simulated: {{costs: /costs.json}},
   settings: {{max_model_len: 100}}}}
gateway: {json.dumps(gateway)}
"""
    )


def problems(*nodes: CellNode, of: ClusterSpec | None = None) -> list[str]:
    cluster = of or spec()
    return node_problems(cluster, cluster.regions[0], VERSIONS, nodes)


def test_nodes_of_one_version_with_the_labels_are_taken() -> None:
    assert problems(HEAD, A, B) == []
    assert problems(CellNode("10.0.0.1", True, {POOL: EVERY_POOL}, VERSIONS)) == []


@pytest.mark.parametrize("name", ["raylane", "Ray", "Python", "vLLM"])
def test_another_version_is_refused_by_the_nodes_name_with_both_versions(name: str) -> None:
    other = replace(A, versions={**VERSIONS, name: "9.9"})
    assert problems(HEAD, other, B) == [f"node 10.0.0.2: {name} 9.9 instead of {VERSIONS[name]}"]


def test_vllm_must_be_where_a_model_runs_on_it() -> None:
    without = {name: one for name, one in VERSIONS.items() if name != "vLLM"}
    assert problems(HEAD, replace(A, versions=without), B) == ["node 10.0.0.2: vLLM none instead of 0.32.0"]
    assert problems(HEAD, A, replace(B, versions=without)) == []


def test_nodes_of_others_may_run_what_they_like() -> None:
    other = replace(A, address="10.0.0.4", labels={}, versions={"raylane": "none"})
    foreign = replace(other, labels={POOL: "elsewhere"}, error="nobody there")
    assert problems(HEAD, A, B, other, foreign) == []


def test_a_node_that_cannot_answer_is_refused() -> None:
    assert problems(HEAD, replace(A, error="No module named 'deployments'"), B) == [
        "node 10.0.0.2: did not report its versions (is raylane installed there?): No module named 'deployments'"
    ]


def test_the_head_of_several_nodes_hosts_nothing() -> None:
    (problem,) = problems(replace(HEAD, labels={POOL: "gpu"}, versions=VERSIONS), A, B)
    assert problem.startswith("node 10.0.0.1: is the head of 3 nodes and has the label raylane.io/pool=gpu")
    (problem,) = problems(HEAD, replace(A, labels={POOL: EVERY_POOL}))
    assert problem.startswith("node 10.0.0.2: has the label raylane.io/pool=every_pool; allowed: only in a cluster of")
    assert problems(A, B) == ["the cluster has no living head"]


def test_a_pool_without_a_node_is_named_with_what_is_there() -> None:
    assert problems(HEAD, A) == [
        "no node has the label raylane.io/pool=cpu, which model s-simulated needs; the nodes and their labels: "
        "10.0.0.1: none, 10.0.0.2: gpu"
    ]
    gateways = [one for one in problems(HEAD, B, of=spec(pool="gpu")) if "pool=gpu" in one]
    assert len(gateways) == 1


def test_each_gateway_has_a_node_of_its_own() -> None:
    assert problems(HEAD, A, B, of=spec(replicas=2)) == []
    assert gateway_nodes(spec(), spec().regions[0], [HEAD, A, B]) == 2
    assert gateway_nodes(spec(pool="cpu"), spec().regions[0], [HEAD, A, B]) == 1
    assert problems(HEAD, A, B, of=spec(replicas=3)) == [
        "gateway.replicas = 3: allowed: 1 to 2, one for each node (`nodes`) of its pools"
    ]
    assert problems(HEAD, A, replace(A, address="10.0.0.5"), B, of=spec(replicas=3)) != []
    assert len(problems(HEAD, A, B, of=spec(replicas=2, pool="cpu"))) == 1


def test_files_must_be_where_they_are_read() -> None:
    assert problems(replace(HEAD, missing=("/models/m",)), A, replace(B, missing=("/models/m",))) == []
    assert problems(HEAD, replace(A, missing=("/models/m", "/costs.json")), B) == [
        "node 10.0.0.2: models.m.source = '/models/m' does not exist there"
    ]


def test_local_paths_alone_are_looked_for(tmp_path: Path) -> None:
    paths = [key for model in spec().models for key in paths_on_nodes(model, spec())]
    assert paths == ["models.m.source", "models.s-simulated.simulated.costs"]
    gone = (str(tmp_path / "gone"), "~nobody-of-that-name/x")
    assert report_node((str(tmp_path), *gone)) == {"versions": versions_here(), "missing": gone}


def test_where_nothing_is_served_the_nodes_version_of_vllm_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert expected_versions([])["vLLM"] == versions_here()["vLLM"]
    monkeypatch.setattr("deployments.cell.node_check.versions_here", lambda: {"Ray": "2.60.0"})
    assert expected_versions([HEAD, A]) == {"Ray": "2.60.0", "vLLM": "0.32.0"}
    assert expected_versions([HEAD]) == {"Ray": "2.60.0"}


def test_nodes_of_a_pool_with_zones_must_be_in_one_of_them() -> None:
    cluster = spec()
    region = cluster.regions[0]
    pools = tuple(pool.model_copy(update={"zones": ("a", "b")} if pool.name == "gpu" else {}) for pool in region.pools)
    zoned = cluster.model_copy(update={"regions": (region.model_copy(update={"pools": pools}),)})
    assert problems(HEAD, replace(A, labels={POOL: "gpu", ZONE: "b"}), B, of=zoned) == []
    (problem,) = problems(HEAD, A, B, of=zoned)
    assert problem == "node 10.0.0.2: has no label raylane.io/zone; needed, as a node of pool gpu: a or b"
    (problem,) = problems(HEAD, replace(A, labels={POOL: "gpu", ZONE: "c"}), B, of=zoned)
    assert "has the label raylane.io/zone=c; needed" in problem
