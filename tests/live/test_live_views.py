"""`--all-regions` of `status`, `top`, `why` and `cost` on two real cells: both, one that does not answer, one with
another secret, one that runs another spec; and a tenant's limit that both cells count together.

Simulated engines. The tests run in their order, on one pair of cells.
"""

import asyncio
import time
from collections.abc import Iterator

import aiohttp
import pytest

from deployments.gateway.entrance import digest_of
from tests.live.cells import LiveCells, live_cells
from tests.live.clients import ask
from tests.live.cluster import ROOT, eventually, shipped_spec

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

KEYS = {name: f"the key of tenant {name}" for name in ("free", "limited")}
PER_MINUTE = 60
STORM_S = 40.0
OLD_S = 2.0
"""A digest that is older counts for nothing (`peering.max_age_s`)."""
WITHIN_S = 2.5
"""No peer is waited for longer (`deployments/gateway/peers/view.py`)."""


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCells]:
    spec = shipped_spec("three-regions")
    model = spec["models"][0]
    model["simulated"] |= {"costs": str(ROOT / "infra/specs/simulated-h100.costs.json"), "speed": 1.0, "start_up_s": 0}
    model["replicas"] = {"count": 1}
    limits = {"free": {}, "limited": {"requests_per_minute": PER_MINUTE}}
    tenants = [{"name": name, "keys": [digest_of(key)], **limits[name]} for name, key in KEYS.items()]
    pools = [{"name": "h100", "accelerator": "H100", "gpus_per_node": 1}]
    parts = {"pools": pools, "models": [model], "classes": spec["classes"], "tenants": tenants}
    with live_cells(tmp_path_factory.mktemp("views"), parts) as found:
        yield found


def session_of(tenant: str) -> aiohttp.ClientSession:
    headers = {"authorization": f"Bearer {KEYS[tenant]}"}
    return aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=30))


def asked(cells: LiveCells, command: str, *arguments: str) -> str:
    """What a command says of all regions, asked of `eu`, in one line; and it does not wait for long."""
    began = time.monotonic()
    done = cells["eu"].cli(command, *arguments, "--all-regions", "--url", cells["eu"].url)
    assert time.monotonic() - began < 4 * WITHIN_S, "a command takes some seconds to start, and hangs nowhere"
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


def page_s(cells: LiveCells) -> float:
    """How long the page takes that all of them read."""
    began = time.monotonic()
    assert cells["eu"].ask("/raylane/regions?view=status").status_code == 200
    return time.monotonic() - began


def both_known(cells: LiveCells) -> bool:
    return all(0 < cells.metric(name, "raylane_digest_age_seconds") < 1.5 for name in ("eu", "us"))


async def one_request(cells: LiveCells) -> str:
    """The id of a request that `eu` has answered."""
    model = cells["eu"].model()["name"]
    async with session_of("free") as session:
        body = {"model": model, "prompt": "1, 2, 3,", "max_tokens": 8}
        async with session.post(cells["eu"].url + "/v1/completions", json=body) as response:
            assert response.status == 200
            return response.headers["x-request-id"]


def test_each_command_shows_both_cells(cells: LiveCells, tell: list[str]) -> None:
    eventually(lambda: both_known(cells))
    request = asyncio.run(one_request(cells))
    for command in (("status", "--once"), ("top", "--once")):
        text = asked(cells, *command)
        assert "2 regions, 1 model, as eu sees them" in text
        assert "unreachable" not in text
    assert "in eu" in asked(cells, "why", request)
    # A cell that has just begun has no bill in its first seconds.
    eventually(lambda: {"eu", "us"} <= set(asked(cells, "cost", "--by", "region").split()))
    assert "unreachable" not in asked(cells, "cost", "--by", "region")
    tell.append(f"two cells: the page after {page_s(cells):.2f} s")


async def test_two_cells_count_a_tenants_limit_together(cells: LiveCells, tell: list[str]) -> None:
    """Both are stormed from the same moment on."""
    await asyncio.to_thread(eventually, lambda: both_known(cells))
    model, admitted = cells["eu"].model()["name"], {"eu": 0, "us": 0}
    rejected: set[tuple[int, str | None]] = set()
    began = time.monotonic()

    async def client(name: str, session: aiohttp.ClientSession) -> None:
        while time.monotonic() - began < STORM_S:
            answer = await ask(session, cells[name].url, model=model, max_tokens=1)
            admitted[name] += answer.end == "done"
            if answer.end != "done":
                rejected.add((answer.status, answer.code))
                await asyncio.sleep(0.2)

    async with session_of("limited") as session:
        await asyncio.gather(*(client(name, session) for name in admitted for _ in range(4)))
    whole, passed_s = sum(admitted.values()), time.monotonic() - began
    bound = 2 * PER_MINUTE + PER_MINUTE * (passed_s + OLD_S) / 60
    alone = PER_MINUTE + PER_MINUTE * passed_s / 60
    tell.append(
        f"{PER_MINUTE} requests a minute, two cells, {passed_s:.0f} s: {whole} admitted ({admitted}); the bound is "
        f"{bound:.0f}, one cell alone admits {alone:.0f}, two that do not know of each other {2 * alone:.0f}"
    )
    assert whole <= bound
    assert whole < 1.8 * alone, "it counts across the cells"
    assert {status for status, _ in rejected} == {429}
