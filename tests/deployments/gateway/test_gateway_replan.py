"""`raylane replan` against two cells, each a real gateway: it reads them, prints the price, orders bounds, logs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cli.console import errors
from cli.main import app
from cli.replan.cells import Cells, secret_variable
from cli.replan.command import say_who_does_not_answer
from planning.replan import SiteKey
from tests.deployments.gateway.rig import SECRET, Rig
from tests.deployments.gateway.test_gateway_orders import MakeRig, get
from tests.planning.plans import small

SCALED: list[dict[str, Any]] = [
    {
        "name": "demo",
        "source": "/nowhere",
        "settings": {"max_model_len": 1_024},
        "replicas": {"count": 1, "min": 0, "max": 4},
        "autoscaling": {"policy": "backlog"},
    }
]
REGIONS = ("us-east-1", "eu-central-1")
MODEL: dict[str, Any] = {
    **small.SPEC["models"][0],
    "replicas": {"count": 1, "min": 0, "max": 4},
    "autoscaling": {"policy": "backlog", "costs": "cheap.json"},
}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path / "home"))


async def cells_of(make_rig: MakeRig) -> dict[str, Rig]:
    return {region: await make_rig(models=SCALED) for region in REGIONS}


def sheet(folder: Path, usd: tuple[float, float] = (1.0, 1.0)) -> Path:
    prices = [
        {"gpu": "L4", "region": region, "on_demand_usd_per_gpu_hour": each}
        for region, each in zip(REGIONS, usd, strict=True)
    ]
    demand = small.SHEET["demand"][0] | {"input_tokens": {"mean": 100}, "output_tokens": {"mean": 5}}
    return small.write(folder, {"demand": [demand], "gpu_prices": prices, "candidates": []}, {"models": [MODEL]})


async def replan(rigs: dict[str, Rig], *arguments: object) -> Result:
    endpoints = [word for region, rig in rigs.items() for word in ("--endpoint", f"{region}={rig.url}")]
    command = ["replan", *map(str, arguments), *endpoints, "--window", "5s", "--every", "5s"]
    environment = {"COLUMNS": "200", "RAYLANE_SECRET": SECRET}
    return await asyncio.to_thread(CliRunner().invoke, app, command, env=environment)


@pytest.mark.whole
async def test_a_replan_is_priced_logged_and_ordered_in_every_cell(make_rig: MakeRig, tmp_path: Path) -> None:
    rigs, files = await cells_of(make_rig), tmp_path / "sheet"
    files.mkdir()
    dry = await replan(rigs, sheet(files), "--dry-run", "--json", "--memo", tmp_path / "memo")
    assert dry.exit_code == 0, dry.output
    values = json.loads(dry.stdout)
    assert {one["region"] for one in values["bounds"]} == set(REGIONS)
    assert values["usd_per_hour"]["before"] == pytest.approx(2.0)
    assert values["coverage"] == "all"
    for rig in rigs.values():
        assert (await rig.directory.orders()).controls == (), "a dry run orders nothing"
    log = tmp_path / "replan.jsonl"
    done = await replan(rigs, sheet(files), "--once", "--log", log, "--memo", tmp_path / "memo")
    assert done.exit_code == 0, done.output
    assert "an hour" in done.stdout
    for rig in rigs.values():
        found = {control.kind.value: control for _, control in (await rig.directory.orders()).controls}
        assert set(found) == {"floor", "ceiling"}
        assert found["floor"].why.startswith("re-plan: ")
        assert "an hour" in found["floor"].why
    replayed = CliRunner().invoke(app, ["replay", str(log)])
    assert replayed.exit_code == 0, replayed.output
    assert "1 re-plans" in replayed.stdout


async def test_each_region_may_have_a_secret_of_its_own(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rigs = await cells_of(make_rig)
    monkeypatch.setenv("RAYLANE_SECRET", SECRET)
    monkeypatch.setenv(secret_variable("eu-central-1"), "wrong")
    cells = Cells({region: rig.url for region, rig in rigs.items()})
    await asyncio.to_thread(cells.look)
    assert cells.by_region["us-east-1"].error == ""
    assert "requires its cluster's secret; set RAYLANE_SECRET_EU_CENTRAL_1" in cells.by_region["eu-central-1"].error


@pytest.mark.whole
async def test_a_wrong_secret_ends_the_command_at_once(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rigs = await cells_of(make_rig)
    monkeypatch.setenv(secret_variable("eu-central-1"), "wrong")
    done = await replan(rigs, sheet(tmp_path), "--once", "--memo", tmp_path / "memo")
    assert done.exit_code == 2, done.output
    assert "requires its cluster's secret; set RAYLANE_SECRET_EU_CENTRAL_1" in " ".join(done.stderr.split())
    for rig in rigs.values():
        assert (await rig.directory.orders()).controls == ()


def test_a_region_is_named_when_it_stops_answering_and_when_it_answers_again() -> None:
    cells, said = Cells({"us": "http://127.0.0.1:9", "eu": "http://127.0.0.1:10"}), dict[str, str]()
    us = cells.by_region["us"]
    spoken = []
    for error in ("", "no answer", "no answer", "", ""):
        us.error = error
        with errors.capture() as capture:
            say_who_does_not_answer(cells, said)
        spoken.append(" ".join(capture.get().split()))
    assert spoken == ["", "us: no answer (it counts as lost after 60 s)", "", "us: answers again", ""]
    us.error, us.refused = "another secret", True
    with errors.capture() as capture:
        say_who_does_not_answer(cells, said)
    assert "another secret" in capture.get(), "one that was changed meanwhile ends nothing"


async def test_readings_hold_what_the_page_says(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYLANE_SECRET", SECRET)
    rig = await make_rig(models=SCALED)
    await rig.ask()
    cells = Cells({"us": rig.url, "eu": "http://127.0.0.1:9"})
    await asyncio.to_thread(cells.look)
    assert "does not answer" in cells.by_region["eu"].error
    reading = cells.by_region["us"].readings["demo"][1]
    assert sum(reading.flows.values()) == 1
    assert cells.states(0.0)[SiteKey("us", "demo")].ready == 1
    assert cells.states(2e9 * 5) == {}
    assert (await get(rig, "/raylane/bounds"))["region"]
