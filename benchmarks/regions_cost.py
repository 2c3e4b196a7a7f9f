"""What peering costs a gateway: `python -m benchmarks.regions_cost`.

Three cells over simulated engines that take next to no time: `plain` without `peering` in its spec, and two peers. In
turns, `plain` and the first peer get the same requests, which stay where they are: CPU time of the gateway's process
for each, and TTFT. Then the first peer gets requests of a class that only the second one may serve: their TTFT less
that of the same requests sent to the second one directly is what a hop takes. The round trip is subtracted as the link
has it: a page of the peer read over the link, less the same one read directly.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import psutil
import typer

from benchmarks.harness import (
    JsonFile,
    console,
    in_turns,
    median_interval,
    plain_table,
    run_facts,
    run_program,
    write_json,
)
from cli.drill.client import REGION_HEADER
from cli.drill.links import CellLinks
from cli.drill.local_cells import LocalCell, cell_spec, write_peers_secret
from cli.private_cell import free_port
from cluster.files import shipped
from cluster.spec import ClusterSpec, load_spec

HOME, PEER, PLAIN = "eu", "us", "plain"
ABROAD = "abroad"
"""A class that may be served by the peer alone."""
_SPEED = 1_000.0
_GAP_S = 0.02
_CONCURRENCY = 8


def peers_spec(base: ClusterSpec) -> ClusterSpec:
    """Two regions of the spec with quick engines, and a class that only the second one may serve."""
    content = base.model_dump(mode="json", exclude_unset=True)
    content["regions"] = [region for region in content["regions"] if region["name"] in (HOME, PEER)]
    for model in content["models"]:
        model["simulated"] |= {"speed": _SPEED, "start_up_s": 0}
        model["replicas"] = {"count": 1}
    content["classes"] = [*content["classes"], {"name": ABROAD, "ttft_ms": 10_000, "residency": [PEER]}]
    return ClusterSpec.model_validate(content)


def plain_spec(peers: ClusterSpec) -> ClusterSpec:
    """The same without a peer."""
    content = peers.model_dump(mode="json", exclude_unset=True)
    content["regions"] = [region for region in content["regions"] if region["name"] == HOME]
    del content["peering"], content["regions"][0]["endpoint"]
    content["classes"] = [one for one in content["classes"] if one["name"] != ABROAD]
    return ClusterSpec.model_validate(content)


@dataclass(frozen=True, slots=True)
class Asker:
    """Sends requests to one cell."""

    session: aiohttp.ClientSession
    url: str
    model: str

    async def ttft_s(self, traffic_class: str = "", served_by: str = "") -> float:
        """Of one streamed answer. Raises ValueError where another cell than expected served it."""
        body = {"model": self.model, "prompt": [1] * 32, "max_tokens": 4, "ignore_eos": True, "stream": True}
        headers = {"x-raylane-class": traffic_class} if traffic_class else {}
        began_s, first_s = time.perf_counter(), 0.0
        async with self.session.post(self.url + "/v1/completions", json=body, headers=headers) as response:
            if response.status != 200 or served_by not in ("", response.headers.get(REGION_HEADER, "")):
                raise ValueError(f"{self.url}: {response.status}, served by {response.headers.get(REGION_HEADER)}")
            async for _ in response.content.iter_any():
                first_s = first_s or time.perf_counter()
        return first_s - began_s

    async def page_s(self, url: str) -> float:
        """Of a page that costs nothing, read at that URL."""
        began_s = time.perf_counter()
        async with self.session.get(url + "/health") as response:
            await response.read()
        return time.perf_counter() - began_s

    async def spaced(self, count: int, traffic_class: str = "", served_by: str = "") -> list[float]:
        """TTFT of requests one after the other, with a pause between them."""
        found = []
        for _ in range(count):
            found.append(await self.ttft_s(traffic_class, served_by))
            await asyncio.sleep(_GAP_S)
        return found

    async def burst(self, count: int) -> None:
        """So many requests by a few clients that send without pause."""
        left = iter(range(count))

        async def client() -> None:
            for _ in left:
                await self.ttft_s()

        await asyncio.gather(*(client() for _ in range(_CONCURRENCY)))


async def cpu_ms(asker: Asker, gateway: psutil.Process, count: int) -> float:
    """CPU time of the gateway's process for each request of a burst."""
    before = gateway.cpu_times()
    await asker.burst(count)
    after = gateway.cpu_times()
    return 1e3 * (after.user + after.system - before.user - before.system) / count


async def measured(
    session: aiohttp.ClientSession, cells: dict[str, LocalCell], link_url: str, model: str, rounds: int, count: int
) -> dict[str, Any]:
    """All rounds, the sides in turns."""
    askers = {name: Asker(session, cell.url, model) for name, cell in cells.items()}
    gateways = {name: psutil.Process(int((await cell.status())["gateway"]["pid"])) for name, cell in cells.items()}
    for name in (PLAIN, HOME, PEER):
        await askers[name].burst(count)
    await askers[HOME].spaced(10, ABROAD, PEER)
    cpu: dict[str, list[float]] = {PLAIN: [], HOME: []}
    ttft: dict[str, list[float]] = {PLAIN: [], HOME: []}
    hop: dict[str, list[float]] = {HOME: [], PEER: []}
    trip: dict[str, list[float]] = {"link": [], "direct": []}
    for number in range(rounds):
        for side in in_turns((PLAIN, HOME), number):
            cpu[side].append(await cpu_ms(askers[side], gateways[side], count))
            ttft[side].append(1e3 * statistics.median(await askers[side].spaced(count // 10)))
        for place, url in (("link", link_url), ("direct", askers[PEER].url)):
            trip[place].append(1e3 * statistics.median([await askers[PEER].page_s(url) for _ in range(count // 20)]))
        for side in in_turns((HOME, PEER), number):
            hop[side].append(1e3 * statistics.median(await askers[side].spaced(count // 20, ABROAD, PEER)))
    ratios = [with_peers / alone for with_peers, alone in zip(cpu[HOME], cpu[PLAIN], strict=True)]
    slower = [with_peers - alone for with_peers, alone in zip(ttft[HOME], ttft[PLAIN], strict=True)]
    trips = [over - direct for over, direct in zip(trip["link"], trip["direct"], strict=True)]
    added = [over - direct for over, direct in zip(hop[HOME], hop[PEER], strict=True)]
    return {
        "cpu_ms": cpu,
        "ttft_ms": ttft,
        "hop_ttft_ms": hop,
        "cpu_ratio": median_interval(ratios).as_json(),
        "ttft_more_ms": median_interval(slower).as_json(),
        "round_trip_ms": median_interval(trips).as_json(),
        "hop_adds_ms": median_interval([one - rtt for one, rtt in zip(added, trips, strict=True)]).as_json(),
    }


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; in each, all sides run once.")] = 7,
    count: Annotated[int, typer.Option(min=40, help="Requests of a burst.")] = 400,
    rtt_ms: Annotated[float, typer.Option(min=0, max=1_000, help="Between the peers.")] = 40.0,
    json_file: JsonFile = None,
) -> None:
    """Measure what peering costs requests that stay at home, and what a hop adds."""
    spec = peers_spec(load_spec(shipped("specs/three-regions.yaml")))
    model = spec.models[0].name

    async def work(folder: Path) -> dict[str, Any]:
        ports = {name: free_port() for name in (HOME, PEER, PLAIN)}
        urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        write_peers_secret(folder / "peers")
        async with CellLinks({name: urls[name] for name in (HOME, PEER)}, lambda one, other: rtt_ms / 1e3) as links:
            cells = {}
            for name in (HOME, PEER, PLAIN):
                own = folder / name
                own.mkdir()
                seen = {HOME: links.between[PEER, HOME].url, PEER: links.between[HOME, PEER].url} | {name: urls[name]}
                chosen = plain_spec(spec) if name == PLAIN else spec
                run_dir = "cost" if name == PLAIN else f"cost-{name}"  # of one region: the spec's name
                cell = LocalCell(HOME if name == PLAIN else name, urls[name], run_dir, own)
                content = cell_spec(chosen, model, "cost", seen, ports[name], cell.trace_file, folder / "peers")
                cell.prepare(content)
                cells[name] = cell
            try:
                await asyncio.gather(*(cell.start() for cell in cells.values()))
                timeout = aiohttp.ClientTimeout(total=60)
                async with aiohttp.ClientSession(timeout=timeout) as session:
                    await asyncio.sleep(5)  # some digests
                    found = await measured(session, cells, links.between[HOME, PEER].url, model, rounds, count)
            finally:
                await asyncio.gather(*(cell.stop() for cell in cells.values()))
        return {"schema": 1, **run_facts(), "rtt_ms": rtt_ms, **found}

    result = run_program(work)
    table = plain_table("what peering costs", "figure", "median (interval)")
    for key, name in (
        ("cpu_ratio", "CPU of the gateway for a request at home, with / without peering"),
        ("ttft_more_ms", "TTFT at home with peering, more than without (ms)"),
        ("round_trip_ms", f"the round trip of the link of {rtt_ms:g} ms, as measured (ms)"),
        ("hop_adds_ms", "a hop takes, beyond that (ms)"),
    ):
        one = result[key]
        table.add_row(name, f"{one['median']:.3f} ({one['low']:.3f} to {one['high']:.3f})")
    console.print(table)
    write_json(result, json_file)


if __name__ == "__main__":
    typer.run(main)
