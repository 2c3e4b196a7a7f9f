"""One view of all cells, through gateways that call each other over HTTP: any cell shows all of them, and one that does
not answer holds up nobody."""

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from typer.testing import CliRunner

from cli.console import console
from cli.main import app
from deployments.accounting.bill import Bill
from deployments.gateway.entrance import digest_of
from deployments.gateway.operators.cost_reporter import usages_of
from deployments.gateway.peers.view import REGIONS_PATH, VIEW_PATH, WITHIN_S
from deployments.wire import from_plain
from tests.deployments.gateway.peers.cells import Cells, MakeCells
from tests.deployments.gateway.rig import ASK, MakeRig

NAMES = ("eu", "us", "ap")


@pytest.fixture
async def three(make_cells: MakeCells) -> Cells:
    """Three cells with a replica each."""
    cells = make_cells(*NAMES)
    for name in NAMES:
        await cells.start(name)
    return cells


def secret_of(cell: str) -> str:
    """Each cell has its own."""
    return f"the cluster's secret of {cell}"


def credentials(cell: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret_of(cell)}"}


async def look(cells: Cells, home: str, view: str = "status", code: int = 200, **query: str) -> Any:
    """What a cell shows of all."""
    path = f"{REGIONS_PATH}?{urlencode({'view': view, **query})}"
    status, found = await cells[home].get(path, **credentials(home))
    assert status == code, found
    return found


def by_region(found: Any) -> dict[str, Any]:
    return {one["region"]: one for one in found["regions"]}


async def test_any_cell_shows_all_cells(three: Cells) -> None:
    for home in NAMES:
        found = await look(three, home)
        assert found["home"] == home
        assert [(one["region"], one["reachable"], one["error"]) for one in found["regions"]] == [
            (name, True, "") for name in NAMES
        ]
        assert [one["endpoint"] for one in found["regions"]] == [three[name].url for name in NAMES]
        ids = [one["content"]["gateway"]["id"] for one in found["regions"]]
        assert ids == [three[name].gateway.gateway_id for name in NAMES]
        assert all(0 <= one["age_s"] < 1 for one in found["regions"])


async def test_prometheus_can_tell_the_cells_apart(three: Cells) -> None:
    for name in NAMES:
        _, groups = await three[name].get("/raylane/http_sd", **credentials(name))
        assert {group["labels"]["cell"] for group in groups} == {f"test-{name}"}


async def test_status_says_how_old_digests_are_by_the_cells_own_clock(three: Cells) -> None:
    await three.met()
    known = await known_to_us(three)
    assert known.keys() == {"eu", "ap"}
    assert all(0 <= peer["age_s"] < 1 and 0 < peer["rtt_s"] < 1 and peer["trust"] == 1 for peer in known.values())
    await three["ap"].gateway.stop()
    await asyncio.sleep(1.2)
    known = await known_to_us(three)
    assert known["eu"]["age_s"] < 1
    assert known["eu"]["barred"] is None
    assert known["ap"]["barred"] == "no_digest"
    assert known["ap"]["age_s"] is None or known["ap"]["age_s"] > 1


async def known_to_us(cells: Cells) -> dict[str, Any]:
    """What `us` knows of its peers, as `eu` shows it."""
    (answer,) = (await look(cells, "eu", region="us"))["regions"]
    (model,) = answer["content"]["models"]
    return {peer["cell"]: peer for peer in model["peers"]}


async def test_a_cell_that_is_gone_is_shown_with_what_it_said_last(three: Cells) -> None:
    await look(three, "eu")
    await three["us"].gateway.stop()
    await asyncio.sleep(0.5)
    begun_s = time.monotonic()
    found = by_region(await look(three, "eu"))
    assert time.monotonic() - begun_s < WITHIN_S + 0.5
    assert found["ap"]["reachable"]
    gone = found["us"]
    assert not gone["reachable"]
    assert gone["content"]["gateway"]["id"] == three["us"].gateway.gateway_id
    assert 0.5 < gone["age_s"] < 10
    assert "us" in gone["error"]
    never = by_region(await look(three, "ap"))["us"]
    assert (never["reachable"], never["age_s"], never["content"]) == (False, None, None)


async def test_a_cell_that_says_nothing_holds_up_nobody(make_cells: MakeCells) -> None:
    cells = make_cells("eu", "us")
    await cells.start("eu")
    with socket.create_server(("127.0.0.1", cells._ports["us"])):
        begun_s = time.monotonic()
        found = by_region(await look(cells, "eu"))
        assert WITHIN_S - 0.5 < time.monotonic() - begun_s < WITHIN_S + 1.0
    assert [found[name]["reachable"] for name in ("eu", "us")] == [True, False]


async def test_a_request_is_found_from_any_cell(three: Cells) -> None:
    request_id = (await three["us"].answered())[2]["x-request-id"]
    await three["us"].settled()
    found = by_region(await look(three, "ap", "request", request_id=request_id))
    assert found["us"]["content"]["record"]["request_id"] == request_id
    assert found["eu"]["content"] == found["ap"]["content"] == {"record": None}


async def test_a_request_that_was_handed_over_has_a_record_in_both_cells(cells: Cells) -> None:
    """`eu` has no replica. The bill is that of `us`, with `eu` as the home."""
    status, _, headers = await cells["eu"].answered()
    assert status == 200
    await cells.settled()
    for home in ("eu", "us"):
        found = by_region(await look(cells, home, "request", request_id=headers["x-request-id"]))
        records = {name: one["content"]["record"] for name, one in found.items()}
        assert (records["eu"]["home"], records["us"]["home"]) == (None, "eu")
    (usage,) = (one for ledger in cells["us"].closed for one in usages_of(ledger))
    assert usage.home == "eu"
    assert [one for ledger in cells["eu"].closed for one in usages_of(ledger)] == []


async def test_bills_come_from_the_cells_directories(three: Cells) -> None:
    found = (await look(three, "eu", "cost", by="tenant,hour"))["regions"]
    assert [from_plain(one["content"], Bill) for one in found] == [Bill()] * 3


async def test_a_cell_with_another_secret_is_refused_and_shown_as_such(make_cells: MakeCells) -> None:
    cells = make_cells("eu", "us")
    await cells.start("eu")
    await cells.start("us", secret="x" * 40)
    found = by_region(await look(cells, "eu"))
    assert [found[name]["reachable"] for name in ("eu", "us")] == [True, False]
    assert "status 401" in found["us"]["error"]
    assert "needed: the same `peering.secret` in both" in found["us"]["error"]


async def test_who_is_no_peer_sees_nothing(three: Cells) -> None:
    for known in ({}, credentials("eu")):
        assert (await three["eu"].ask({"view": "status"}, VIEW_PATH, headers=known))[0] in (401, 403)
    assert (await three["eu"].get(f"{REGIONS_PATH}?view=status", authorization=""))[0] == 401


async def test_other_questions_are_refused_by_name(three: Cells) -> None:
    refused = await look(three, "eu", "everything", code=400)
    assert refused["error"]["message"].startswith("view = ")
    refused = await look(three, "eu", region="mars", code=400)
    assert "region = 'mars': unknown; allowed: eu, us, ap" in refused["error"]["message"]


async def test_the_commands_show_all_cells(three: Cells, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(console, "width", 200)
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAYLANE_SECRET", secret_of("us"))
    await three["ap"].gateway.stop()
    for command in (("status", "--once"), ("top", "--once"), ("cost",)):
        arguments = [*command, "--all-regions", "--url", three["us"].url]
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        assert result.exit_code == 0, result.output
        assert "ap is unreachable" in result.stdout + result.stderr
        assert command[0] == "cost" or "3 regions, 1 model, as us sees them" in result.stdout


async def test_a_prefix_has_the_same_salt_in_all_cells(make_cells: MakeCells) -> None:
    """By the secret that they share; their own differ."""
    cells = make_cells("eu", "us", tenants=[{"name": "a", "keys": [digest_of("key-a")]}])
    salts = []
    for name in ("eu", "us"):
        rig = await cells.start(name)
        status, _ = await rig.ask(ASK, headers={"authorization": "Bearer key-a"})
        assert status == 200
        salts.append(json.loads(rig.engines[0].seen[-1].body)["cache_salt"])
    assert salts[0] == salts[1]


async def test_a_cell_without_peers_says_so_and_has_its_own_salts(
    make_rig: MakeRig,
) -> None:
    rig = await make_rig(tenants=[{"name": "a", "keys": [digest_of("key-a")]}])
    status, answer = await rig.get(REGIONS_PATH)
    assert status == 404
    assert "needed: a spec with `peering`" in answer["error"]["message"]
