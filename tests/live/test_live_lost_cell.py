"""A cell is killed whole: SIGKILL for its gateway, its engines and its Ray, at once. What its own clients see, those of
the peer whose requests it had taken, and those that know both endpoints; on two cells with 40 ms between them."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from cli.bench.run import allow_many_connections
from cluster.spec import ClusterSpec
from tests.examples.askers import ALLOWED_S, figures, waits_after
from tests.live.cells import CELLS, slow_parts
from tests.live.clients import Stream, begin, clients, ends_of
from tests.live.cluster import eventually_async
from tests.live.drill.local_cells import LocalCells, local_cells
from tests.live.test_live_peers import there

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

RTT_S = 0.04
OVERLOAD, SOME, OWN = 64, 24, 4
STOPS_S = 2.0
"""Within so many seconds the peer sends it nothing more."""


def spec_in(folder: Path) -> ClusterSpec:
    """Of both cells; the drill gives them their endpoints and the secret."""
    parts = slow_parts(folder)
    pools = parts.pop("pools")
    regions = [
        {"name": name, "endpoint": f"http://127.0.0.1:{port}", "pools": pools} for port, name in enumerate(CELLS, 1)
    ]
    peering = {"secret": {"kind": "file", "folder": str(folder)}}
    return ClusterSpec.model_validate({"name": "lost", "regions": regions, "peering": peering, **parts})


async def test_a_cell_that_is_killed(tmp_path: Path, tell: list[str]) -> None:
    allow_many_connections()
    spec = spec_in(tmp_path)
    model = spec.models[0].name
    async with local_cells(spec, model, {frozenset(CELLS): RTT_S}, tmp_path) as cells:
        await learn(cells, model)
        await lost_under_load(cells, model, tell)
        us = cells.cells["us"]
        await us.stop()
        took_s = await us.start()
        tell.append(f"started again in {took_s:.0f} s")
        await lost_with_a_list(cells, model, tell)


async def learn(cells: LocalCells, model: str) -> None:
    """A few requests in each cell: from then on it knows how fast it is."""
    async with clients() as session:
        for cell in cells.cells.values():
            ends = await ends_of(begin(session, cell.url, 8, model=model))
            assert set(ends) == {("done", None)}, ends
    await cells.settled()


async def lost_under_load(cells: LocalCells, model: str, tell: list[str]) -> None:
    """`eu` has more than it can serve in time; `us` answers some of it, and its own clients, and has room for more."""
    eu, us = cells.cells["eu"], cells.cells["us"]
    async with clients() as session:
        own = begin(session, us.url, OWN, model=model, max_tokens=600)
        await eventually_async(lambda: all(one.has_begun for one in own), 30)
        streams = begin(session, eu.url, SOME, model=model, max_tokens=300)
        await eventually_async(lambda: len(there(streams)) >= 3, 30)
        before = len(cells.links.between["eu", "us"].hops_s)
        begun = there(streams)
        await us.kill()
        streams += begin(session, eu.url, OVERLOAD, model=model, max_tokens=100)  # it has more to send
        seen, ends = await ends_of(own), await ends_of(streams)
    killed_s = us.killed_s
    assert killed_s is not None
    assert {end for end, _ in seen} == {"cut"}, seen
    assert all(code for _, code in seen), "a connection that broke, and no end without a word"
    reset_s = max(one.answer.ended_s for one in own) - killed_s
    assert set(ends) == {("done", None), ("error", "peer_lost")}, ends
    assert {one.answer.code for one in begun} == {"peer_lost"}
    broken = [one.answer for one in streams if one.answer.code]
    assert {answer.region for answer in broken} == {"us"}
    assert all(answer.tokens for answer in broken), "what had no byte is served at home"
    told_s = max(answer.ended_s for answer in broken) - killed_s
    late_s = [at_s - killed_s for at_s in cells.links.between["eu", "us"].hops_s if at_s > killed_s]
    tell.append(
        f"cell killed: {OWN} of its own streams reset within {reset_s:.2f} s ({', '.join(_kinds(own))}); of {before} "
        f"that it got from its peer, {len(broken)} ended with an error event within {told_s:.2f} s; {len(late_s)} "
        f"offers to it after, the last one {max(late_s, default=0):.2f} s after"
    )
    assert reset_s < STOPS_S
    assert told_s < STOPS_S
    assert max(late_s, default=0.0) < STOPS_S


async def lost_with_a_list(cells: LocalCells, model: str, tell: list[str]) -> None:
    """Clients with the documented list, `us` first."""
    eu, us = cells.cells["eu"], cells.cells["us"]
    loop = asyncio.get_running_loop()

    def lose() -> float:
        asyncio.run_coroutine_threadsafe(us.kill(), loop).result(30)
        assert us.killed_s is not None
        return us.killed_s

    urls = [f"{cell.url}/v1" for cell in (us, eu)]
    waits_s = await asyncio.to_thread(waits_after, urls, lose, model, "none")
    tell.append(f"cell killed: {figures(waits_s)}")
    assert max(waits_s) < ALLOWED_S


def _kinds(streams: list[Stream]) -> Counter[str]:
    return Counter(str(one.answer.code).partition("(")[0] for one in streams)
