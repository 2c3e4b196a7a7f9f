"""A private cell's spec, and its process."""

import asyncio
import subprocess
from pathlib import Path

import psutil
import pytest
import yaml

from cli.private_cell import PrivateCell, PrivateCellError
from cli.run_dir import State
from cluster.files import shipped
from cluster.spec import ClusterSpec, load_spec, parse_spec

SPEC = load_spec(shipped("specs/local.yaml"))


def test_its_spec_is_the_models_own_on_ports_and_files_of_its_own(tmp_path: Path) -> None:
    cell = PrivateCell(SPEC, "demo", 3, tmp_path / "cell")
    text = (tmp_path / "cell" / "spec.yaml").read_text()
    private = parse_spec(text)
    assert private.gateway.host == "127.0.0.1"
    assert cell.url.endswith(f":{private.gateway.port}")
    assert private.gateway.port != SPEC.gateway.port
    (model,) = private.models
    assert model.replicas.count == 3
    assert model.step_log == str(cell.step_logs)
    assert private.gateway.trace_file == str(cell.trace_file)
    assert yaml.safe_load(text)["name"] != SPEC.name


def test_nothing_scales_what_is_measured(tmp_path: Path) -> None:
    (model,) = SPEC.model_dump(exclude_unset=True)["models"]
    model |= {"replicas": {"count": 1, "max": 2}, "autoscaling": {"policy": "backlog"}}
    scaled = ClusterSpec.model_validate({**SPEC.model_dump(exclude_unset=True), "models": [model]})
    PrivateCell(scaled, "demo", 3, tmp_path / "cell")
    private = parse_spec((tmp_path / "cell" / "spec.yaml").read_text())
    assert (private.autoscaling_of(private.models[0]).policy, private.models[0].replicas.count) == ("fixed", 3)


PRODUCTION = f"""
version: 1
name: fleet
regions:
  - {{name: eu, endpoint: "https://eu.example.org", pools: [{{name: a, gpus_per_node: 0}}]}}
  - {{name: us, endpoint: "https://us.example.org", pools: [{{name: b}}]}}
models:
  - {{name: big, source: demo, settings: {{max_model_len: 512}}}}
  - {{name: demo, source: demo, settings: {{max_model_len: 512}}, regions: [us], residency: [us],
      fallback: [{{to: big}}], groups: [{{name: x, regions: [us]}}, {{name: y}}]}}
  - {{name: encoder, source: demo, task: embed, settings: {{max_model_len: 512}}}}
classes: [{{name: interactive, ttft_ms: 500, residency: [eu, us]}}, {{name: batch, ttft_ms: 9000}}]
tenants: [{{name: team, keys: ['sha256:{"0" * 64}'], peers: [eu]}}]
ladder: [{{rung: shed, classes: [batch]}}]
external: {{url: "https://api.example.org/v1", models: {{big: large}}, tenants: {{team: 9}}, region: eu,
  usd_per_mtok_in: 1, usd_per_mtok_out: 1}}
peering: {{tls: {{cert: c.pem, key: k.pem, ca: a.pem}}}}
gateway: {{tls: {{cert: c.pem, key: k.pem}}, cache: {{semantic: {{model: encoder}}}}, cors: {{origins: ["*"]}}}}
"""


def test_nothing_of_production_is_left_that_one_cell_and_a_client_without_a_key_cannot_have(tmp_path: Path) -> None:
    PrivateCell(parse_spec(PRODUCTION), "demo", 1, tmp_path / "cell")
    private = parse_spec((tmp_path / "cell" / "spec.yaml").read_text())
    (region,), gateway = private.regions, private.gateway
    assert (region.name, region.endpoint) == ("us", None)
    assert [view.group for view in private.views_in(region)] == ["x", "y"]
    left = (private.tenants, private.ladder, private.external, private.peering)
    assert not any((*left, gateway.tls, gateway.cache, gateway.cors))


async def test_a_model_that_may_start_for_longer_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.private_cell._START_S", 0.01)
    monkeypatch.setattr("cli.private_cell._STOP_S", 0.0)
    looks = iter([False, False, True])

    class Slow(Fake):
        async def _is_ready(self) -> bool:
            return next(looks)

    (model,) = SPEC.models
    health = model.health.model_copy(update={"startup_s": 60.0})
    slow = SPEC.model_copy(update={"models": (model.model_copy(update={"health": health}),)})
    async with Slow(slow, "demo", 1, tmp_path):
        pass


def test_what_an_earlier_run_wrote_is_not_read_as_this_ones(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    with pytest.raises(ValueError, match="earlier run"):
        PrivateCell(SPEC, "demo", 1, tmp_path)


class Fake(PrivateCell):
    """A cell whose command is a shell with a child, and is ready at once if it lives."""

    script = "sleep 600 & wait"

    def _bring_up(self) -> "subprocess.Popen[bytes]":
        with (self._folder / "up.log").open("wb") as log:
            return subprocess.Popen(["sh", "-c", self.script], stdout=log, stderr=log, start_new_session=True)

    async def _is_ready(self) -> bool:
        await asyncio.sleep(0.1)
        return self.script == Fake.script


@pytest.mark.whole
async def test_it_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.private_cell._STOP_S", 0.5)  # what `up` started and did not end
    async with Fake(SPEC, "demo", 1, tmp_path) as cell:
        processes = cell._processes()
        assert len(processes) == 2
    assert not [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


async def test_what_a_killed_command_has_left_ends_too(tmp_path: Path) -> None:
    ray = tmp_path / "raylane-ray"
    ray.mkdir()

    class Killed(Fake):
        script = f"sleep 600 > {ray}/log & wait"

        async def _is_ready(self) -> bool:
            return (ray / "log").exists()

    async with Killed(SPEC, "demo", 1, tmp_path / "cell") as cell:
        up, orphan = cell._processes()
        cell.run_dir.create()
        cell.run_dir.write_state(State(cell.run_dir.name, up.pid, up.create_time(), cell.url, str(ray), ready=True))
        up.kill()
        up.wait()
        assert orphan.is_running()
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE
    assert not ray.exists()


async def test_one_that_ends_while_it_starts_says_why(tmp_path: Path) -> None:
    cell = Fake(SPEC, "demo", 1, tmp_path)
    cell.script = "echo no room; exit 3"
    with pytest.raises(PrivateCellError, match="ended with 3; its log ends:\nno room"):
        await cell.__aenter__()
