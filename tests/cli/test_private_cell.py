"""A private cell's spec, before anything is started."""

from pathlib import Path

import pytest
import yaml

from cli.private_cell import PrivateCell
from cluster.files import shipped
from cluster.spec import ClusterSpec, load_spec, parse_spec


def test_its_spec_is_the_models_own_on_ports_and_files_of_its_own(tmp_path: Path) -> None:
    spec = load_spec(shipped("specs/local.yaml"))
    cell = PrivateCell(spec, "demo", 3, tmp_path / "cell")
    text = (tmp_path / "cell" / "spec.yaml").read_text()
    private = parse_spec(text)
    assert private.gateway.host == "127.0.0.1"
    assert cell.url.endswith(f":{private.gateway.port}")
    assert private.gateway.port != spec.gateway.port
    (model,) = private.models
    assert model.replicas.count == 3
    assert model.step_log == str(cell.step_logs)
    assert private.gateway.trace_file == str(cell.trace_file)
    assert yaml.safe_load(text)["name"] != spec.name


def test_nothing_scales_what_is_measured(tmp_path: Path) -> None:
    spec = load_spec(shipped("specs/local.yaml"))
    scaled = spec.models[0].model_dump(exclude_unset=True) | {
        "replicas": {"count": 1, "max": 2},
        "autoscaling": {"policy": "backlog"},
    }
    PrivateCell(
        ClusterSpec.model_validate({**spec.model_dump(exclude_unset=True), "models": [scaled]}),
        "demo",
        3,
        tmp_path / "cell",
    )
    private = parse_spec((tmp_path / "cell" / "spec.yaml").read_text())
    assert (private.autoscaling_of(private.models[0]).policy, private.models[0].replicas.count) == ("fixed", 3)


def test_what_an_earlier_run_wrote_is_not_read_as_this_ones(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    with pytest.raises(ValueError, match="earlier run"):
        PrivateCell(load_spec(shipped("specs/local.yaml")), "demo", 1, tmp_path)
