"""Two real cells that help each other: hand-over under overload, cancellation across the hop, a peer that is killed
while it streams, and a link that is cut; on simulated engines, and the first two with vLLM."""

import asyncio
import json
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
import yaml

from tests.live.cells import LiveCells, live_cells
from tests.live.clients import STREAM, Answer, ask, clients
from tests.live.cluster import ROOT, eventually, eventually_async

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

OVERLOAD = 64
CUT_S = 6.0


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCells]:
    """Two cells of one slow simulated engine each, of 16 sequences: a few dozen requests are more than one cell can
    serve in time."""
    specs, folder = ROOT / "infra/specs", tmp_path_factory.mktemp("peers")
    spec: dict[str, Any] = yaml.safe_load((specs / "three-regions.yaml").read_text())
    limits = {"max_num_seqs": 16, "max_num_batched_tokens": 2_048}
    costs: dict[str, Any] = json.loads((specs / "simulated-h100.costs.json").read_text())
    costs["engine"] |= limits
    (folder / "costs.json").write_text(json.dumps(costs))
    model = spec["models"][0]
    model["simulated"] |= {"costs": str(folder / "costs.json"), "speed": 0.3, "start_up_s": 0}
    model["settings"] |= limits | {"max_model_len": 8_192}
    model["replicas"] = {"count": 1}
    parts = {
        "pools": [{"name": "h100", "accelerator": "H100", "gpus_per_node": 1}],
        "models": [model],
        "classes": [{"name": "interactive", "ttft_ms": 1_000}],
        "lanes": spec["lanes"],
    }
    with live_cells(folder, parts) as found:
        yield found


def ready(cells: LiveCells) -> None:
    """Each cell has a fresh digest of the other, and nothing runs."""
    for name in ("eu", "us"):
        eventually(lambda name=name: cells[name].quiet())  # type: ignore[misc]
        eventually(lambda name=name: 0 < cells.metric(name, "raylane_digest_age_seconds") < 1.5)  # type: ignore[misc]


async def learn(cells: LiveCells, model: str) -> None:
    """A few requests in each cell: from then on it knows how fast it is."""
    async with clients() as session:
        for name in ("eu", "us"):
            answers = await asyncio.gather(*(ask(session, cells[name].url, model=model) for _ in range(8)))
            assert {answer.end for answer in answers} == {"done"}, answers


async def overload(cells: LiveCells, model: str, count: int, tokens: int) -> list[Answer]:
    """So many streams at `eu` at once."""
    async with clients() as session:
        asks = (ask(session, cells["eu"].url, model=model, max_tokens=tokens) for _ in range(count))
        return list(await asyncio.gather(*asks))


class There:
    """One stream of a request that was handed over: the peer has sent its first bytes."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.text = b""

    async def rest(self) -> bytes:
        async for piece in self.response.content.iter_any():
            self.text += piece
        return self.text


async def find_one_there(cells: LiveCells, session: aiohttp.ClientSession, model: str, tokens: int) -> There:
    """Asks `eu`, which is full, until a stream comes from `us`."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        body = {**STREAM, "model": model, "max_tokens": tokens, "user": uuid.uuid4().hex}
        response = await session.post(cells["eu"].url + "/v1/completions", json=body)
        if response.headers.get("x-raylane-region") == "us":
            there = There(response)
            there.text = await response.content.readany()
            return there
        response.close()
    raise AssertionError(f"no request was handed over in a minute: {stays(cells)}")


def stays(cells: LiveCells) -> list[str]:
    """Why requests stayed at `eu`, and what it knows of `us`."""
    lines = cells["eu"].ask("/metrics").text.splitlines()
    return [line for line in lines if line.startswith(("raylane_stays", "raylane_digest_age", "raylane_hops"))]


async def fill(cells: LiveCells, session: aiohttp.ClientSession, model: str, count: int) -> list[asyncio.Task[Answer]]:
    """Keeps `eu` busy with `count` streams."""
    asks = (ask(session, cells["eu"].url, model=model, max_tokens=200) for _ in range(count))
    tasks = [asyncio.create_task(one) for one in asks]
    await asyncio.sleep(1.0)
    return tasks


async def test_an_overloaded_cell_hands_requests_over(cells: LiveCells, tell: list[str]) -> None:
    model = cells["eu"].model()["name"]
    await learn(cells, model)
    await asyncio.to_thread(ready, cells)
    answers = await overload(cells, model, OVERLOAD, 64)
    assert {answer.end for answer in answers} == {"done"}, Counter((answer.end, answer.code) for answer in answers)
    assert {answer.tokens > 0 for answer in answers} == {True}
    taken = cells.metric("eu", "raylane_hand_overs_total")
    assert taken > 0
    assert cells.metric("us", "raylane_guests_total") == taken
    assert cells.metric("eu", "raylane_hops_broken_total") == 0
    await asyncio.to_thread(ready, cells)
    records = [one for one in cells["eu"].records() if one["region"] == "us"]
    assert len(records) == taken
    seen = [(one["stages_s"]["hop"] > 0, one["output_tokens"]) for one in records]
    assert set(seen) == {(True, 64)}, Counter(seen)
    assert all(one["home"] == "eu" for one in cells["us"].records() if one["home"])
    tell.append(f"{len(answers)} streams at once: {taken:.0f} were served by the peer")


async def test_a_client_that_leaves_frees_the_peer(cells: LiveCells, tell: list[str]) -> None:
    model = cells["eu"].model()["name"]
    await asyncio.to_thread(ready, cells)
    async with clients() as session, clients() as leaving:
        busy = await fill(cells, session, model, OVERLOAD)
        there = await find_one_there(cells, leaving, model, 4_000)
        began_s = time.monotonic()
        there.response.close()
        await asyncio.gather(*busy)
        await asyncio.to_thread(eventually, cells["us"].quiet, 30)
        tell.append(f"the peer was quiet {time.monotonic() - began_s:.1f} s after its client had left")
    last = [one for one in cells["us"].records() if one["home"] == "eu" and one["outcome"] == "cancelled"]
    assert last, "the peer's ledger says that its client left"


async def test_a_peer_that_is_killed_ends_its_streams_with_an_error_event(cells: LiveCells) -> None:
    model = cells["eu"].model()["name"]
    await asyncio.to_thread(ready, cells)
    pid = cells["us"].gateway_pid()
    async with clients() as session, clients() as other:
        busy = await fill(cells, session, model, OVERLOAD)
        there = await find_one_there(cells, other, model, 4_000)
        os.kill(pid, signal.SIGKILL)
        text = await asyncio.wait_for(there.rest(), 30)
        assert b'"code": "peer_lost"' in text
        assert text.endswith(b"data: [DONE]\n\n")
        answers = await asyncio.gather(*busy)
    ends = Counter((answer.end, answer.code) for answer in answers)
    assert set(ends) <= {("done", None), ("error", "peer_lost")}, ends
    await eventually_async(lambda: cells["us"].process.poll() is None)
    await asyncio.to_thread(eventually, lambda: cells["us"].gateway_pid() != pid)
    await asyncio.to_thread(ready, cells)


async def test_a_link_that_is_cut_for_a_while_loses_nothing(cells: LiveCells, tell: list[str]) -> None:
    model = cells["eu"].model()["name"]
    await asyncio.to_thread(ready, cells)
    async with clients() as session:
        asking = [
            asyncio.create_task(ask(session, cells["eu"].url, model=model, max_tokens=100)) for _ in range(OVERLOAD)
        ]
        await asyncio.sleep(1.5)
        cells.link.cut()
        await asyncio.sleep(CUT_S)
        cells.link.heal()
        answers = await asyncio.gather(*asking)
    assert {answer.end for answer in answers} == {"done"}, Counter((answer.end, answer.code) for answer in answers)
    await asyncio.to_thread(ready, cells)
    broken = cells.metric("eu", "raylane_hops_broken_total")
    tell.append(f"link cut for {CUT_S:g} s: {len(answers)} streams answered, {broken:.0f} hops came home")


def test_with_vllm_requests_are_handed_over_and_cancelled_across_the_hop(
    tmp_path_factory: pytest.TempPathFactory, tell: list[str]
) -> None:
    """The demo model, two sequences at a time, in each of two cells."""
    spec: dict[str, Any] = yaml.safe_load((ROOT / "infra/specs/local.yaml").read_text())
    model = spec["models"][0]
    model["settings"] |= {"max_num_seqs": 2, "kv_cache_memory_bytes": 64 << 20}
    model["replicas"] = {"count": 1}
    parts = {
        "pools": spec["regions"][0]["pools"],
        "models": [model],
        "classes": [{"name": "interactive", "ttft_ms": 300}],
    }

    async def run(cells: LiveCells) -> None:
        await learn(cells, model["name"])
        await asyncio.to_thread(ready, cells)
        answers = await overload(cells, model["name"], 12, 200)
        assert {answer.end for answer in answers} == {"done"}, Counter((one.end, one.code) for one in answers)
        taken = cells.metric("eu", "raylane_hand_overs_total")
        assert taken > 0, stays(cells)
        tell.append(f"vLLM: {taken:.0f} of {len(answers)} streams were served by the peer")
        await asyncio.to_thread(ready, cells)
        async with clients() as session, clients() as leaving:
            busy = await fill(cells, session, model["name"], 12)
            there = await find_one_there(cells, leaving, model["name"], 1_500)
            there.response.close()
            await asyncio.gather(*busy)
            await asyncio.to_thread(eventually, cells["us"].quiet, 30)
        assert [one for one in cells["us"].records() if one["home"] == "eu" and one["outcome"] == "cancelled"]

    with live_cells(tmp_path_factory.mktemp("vllm"), parts) as cells:
        asyncio.run(run(cells))
