"""What `deploy` says of the replicas before it changes them."""

from typing import Any

import pytest

from cli.deploy.outlook import RunningCell, outlook
from cluster.node_labels import labels_of
from cluster.spec import ClusterSpec
from deployments.serve_config import serve_config
from tests.cluster.launch.specs import LOCAL, MODEL, PUBLIC, spec_of


def running_cell(spec: ClusterSpec) -> dict[str, Any]:
    """Serve's applications with two replicas of one CPU each, on one node."""
    replicas: list[dict[str, Any]] = [{"node_id": "n1", "state": "RUNNING"}] * 2
    pending: dict[str, Any] = {"state": "PENDING_ALLOCATION"}
    running: dict[str, Any] = {
        app["name"]: {
            "deployed_app_config": app,
            "deployments": {"d": {"replicas": replicas, "required_resources": {"CPU": 1.0}}},
        }
        for app in serve_config(spec, spec.regions[0])["applications"]
    }
    running["gateway"]["deployments"] = {"g": {"replicas": [pending], "required_resources": {}}}
    return running


def said(cpus: float, model: dict[str, Any], start_s: float | None = None, **sections: Any) -> list[str]:
    """Of a change to `model`, where two replicas of one CPU run on one node of the pool with so many CPUs."""
    old, new = (spec_of(LOCAL, models=[one], **PUBLIC) for one in (MODEL, model))
    new = new.model_copy(update=sections)
    running = running_cell(old)
    pool = new.pool_of(new.models[0], new.regions[0]).name
    nodes = [
        {"node_id": "n1", "resources_total": {"CPU": cpus, "GPU": cpus}, "labels": labels_of(pool)},
        {"node_id": "n2", "resources_total": {"CPU": 64.0, "GPU": 8.0}, "labels": labels_of("another")},
    ]
    cell = RunningCell(running, nodes, {} if start_s is None else {MODEL["name"]: start_s})
    config = serve_config(new, new.regions[0])
    return list(outlook(new, new.regions[0], config, cell))


def test_a_changed_model_with_room_is_replaced_beside_itself() -> None:
    changed = {**MODEL, "settings": {"max_model_len": 512}}
    (line,) = said(8.0, changed, start_s=30.0)
    assert line == (
        "model-demo: 2 replicas are replaced, 1 at a time, each after its new one is ready; a start took 30 s: about "
        "60 s in all"
    )
    assert "how long a start takes is not known" in said(8.0, changed)[0]


def test_a_changed_model_without_room_says_what_is_lacking() -> None:
    (line,) = said(2.0, {**MODEL, "settings": {"max_model_len": 512}})
    assert "has room for a new replica beside the old ones: it needs" in line
    assert "(free: at most 0)" in line
    assert "The 2 old ones keep serving until there is room" in line


@pytest.mark.parametrize("lacking", ["deployments", "deployed_app_config"])
def test_an_application_that_could_not_be_built_has_no_replica(lacking: str) -> None:
    old, new = (spec_of(LOCAL, models=[{**MODEL, "settings": {"max_model_len": one}}], **PUBLIC) for one in (512, 256))
    running = running_cell(old)
    running["model-demo"] |= {"deployments": {}, **({} if lacking == "deployments" else {lacking: None})}
    config = serve_config(new, new.regions[0])
    assert list(outlook(new, new.regions[0], config, RunningCell(running, [], {}))) == ["model-demo: no replica runs"]


def test_what_changes_no_replica_says_nothing() -> None:
    assert said(2.0, {**MODEL, "replicas": {"count": 4}}) == []


def test_another_name_ends_the_replicas_and_replaces_the_gateways() -> None:
    lines = said(8.0, {**MODEL, "name": "other"})
    assert "model-demo: its replicas end" in lines
    assert any(line.startswith("gateways: replaced one after the other") for line in lines)
