"""A live drill: sends the traffic of all regions to real cells, lets the faults happen, and keeps what the clients
saw."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from cli.bench.client import BenchClient
from cli.bench.prompts import Prompts, RequestOptions, measure_vocabulary
from planning.simulator.clients import preference
from tests.live.drill.case import DrillCase
from tests.live.drill.client import RegionClients, RegionEndpoint, drill_session
from tests.live.drill.drill import Drill, DrillTraffic, StartTimes
from tests.live.drill.local_cells import LocalCells
from tests.live.drill.record import DrillRecord, SentRequest, record_of

WARM_UP = 20
"""Requests to each cell that nobody counts: connections are opened, and estimates learned."""
_SETTLED_S = 3.0
"""A few digest periods, so that peers know of each other when the drill begins."""


@dataclass(frozen=True, slots=True)
class LiveClients:
    """How the clients ask: `timeout_s` is their patience with one request, from its beginning through all endpoints.
    `prompts`: the seed of the prompts' content; the same ones again would be found in prefix caches."""

    timeout_s: float = 120.0
    api_key: str | None = None
    prompts: int = 0


@dataclass(frozen=True, slots=True)
class LivedDrill:
    """A live run: what the clients saw, and the traffic at the times at which it was really sent."""

    record: DrillRecord
    traffic: DrillTraffic
    late_s: float
    """How late the clients sent a request, at most."""
    started: StartTimes | None = None
    """Of the drilled cell; None: not known."""


async def live_drill(
    case: DrillCase,
    drill: Drill | None,
    traffic: DrillTraffic,
    cells: LocalCells,
    clients: LiveClients,
    tell: Callable[[str], None] = lambda text: None,
) -> LivedDrill:
    """Runs the drill, or the traffic alone. Raises EndpointError where a cell does not answer beforehand."""
    async with drill_session() as session:
        tell("asking the endpoints")
        prompts = await _prompts(case, cells, clients)
        await asyncio.sleep(_SETTLED_S)
        began_s = time.monotonic()
        askers = {
            name: RegionClients(session, _endpoints(case, cells, name), began_s, clients.timeout_s, clients.api_key)
            for name in case.cells
        }
        replica_s: dict[str, float] = {}
        length_s = float(traffic.work.arrived_s[-1]) if drill is None else drill.length_s
        faults = asyncio.create_task(_faults(drill, cells, began_s, tell))
        async with _beside(_watched(cells, replica_s, length_s)), _beside(faults):
            found, sent_s = await _send_all(case, traffic, prompts, askers, began_s, faults)
    requests = [one for rows in found for one in rows]
    usd = case.usd(replica_s) if replica_s else None
    last_hop_s = None if drill is None else cells.last_hop_s(drill)
    record = record_of(case.cells, requests, replica_s, usd, last_hop_s)
    started = None if drill is None else cells.started(drill)
    return LivedDrill(record, traffic.sent(sent_s), float((sent_s - traffic.work.arrived_s).max()), started)


def _endpoints(case: DrillCase, cells: LocalCells, region: str) -> list[RegionEndpoint]:
    """The region's own one first, then the others by round trip."""
    urls = cells.urls_from(region)
    return [RegionEndpoint(name, urls[name]) for name in preference(region, list(urls), case.rtt_s)]


async def _prompts(case: DrillCase, cells: LocalCells, clients: LiveClients) -> Prompts:
    """A source of bodies, after a warm-up of each cell."""
    options = RequestOptions(case.model.name, "completions", ignore_eos=True)
    vocabulary = None
    for name in case.cells:
        async with BenchClient(
            cells.urls_from(name)[name], "completions", api_key=clients.api_key, timeout_s=clients.timeout_s
        ) as client:
            vocabulary = vocabulary or await measure_vocabulary(client, case.model.name)
            warm = Prompts(vocabulary, options, clients.prompts + 1_000_003)
            await asyncio.gather(*(client.send(warm.body(32, 4)) for _ in range(WARM_UP)))
    assert vocabulary is not None
    return Prompts(vocabulary, options, clients.prompts)


async def _send_all(
    case: DrillCase,
    traffic: DrillTraffic,
    prompts: Prompts,
    askers: Mapping[str, RegionClients],
    began_s: float,
    faults: "asyncio.Task[None]",
) -> tuple[list[list[SentRequest]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Each request at its time; what its client saw, and when it was sent. Ends early where the faults cannot be
    made."""
    work, tasks, sent_s = traffic.work, [], []
    for number, arrived_s in enumerate(work.arrived_s.tolist()):
        body = prompts.body(int(work.prompt_tokens[number]), int(work.output_tokens[number]))
        await asyncio.sleep(max(0.0, began_s + arrived_s - time.monotonic()))
        if faults.done():
            faults.result()  # raises what went wrong
        sent_s.append(time.monotonic() - began_s)
        asker = askers[case.cells[traffic.homes[number]]]
        asked = asker.ask(body, int(work.output_tokens[number]), f"drill-{number}", int(traffic.clients[number]))
        tasks.append(asyncio.create_task(asked))
    return list(await asyncio.gather(*tasks)), np.array(sent_s)


async def _faults(drill: Drill | None, cells: LocalCells, began_s: float, tell: Callable[[str], None]) -> None:
    """Begins and ends the faults at their times."""
    if drill is None:
        return
    tell(drill.in_words())
    await asyncio.sleep(max(0.0, began_s + drill.at_s - time.monotonic()))
    tell(f"{drill.kind}: it begins")
    await cells.begin(drill)
    if np.isfinite(drill.heals_s):
        await asyncio.sleep(max(0.0, began_s + drill.heals_s - time.monotonic()))
        await cells.end(drill)
        tell(f"{drill.kind}: it is over")


async def _watched(cells: LocalCells, replica_s: dict[str, float], for_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(for_s):
            await cells.watch_replicas(replica_s)


@asynccontextmanager
async def _beside(work: Awaitable[None]) -> AsyncIterator[None]:
    """Runs something as long as the block does."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
