"""A live drill: sends the traffic of all regions to real cells, lets the faults happen, and keeps what the clients
saw."""

import asyncio
import contextlib
import time
from collections.abc import Mapping

import numpy as np

from cli.bench.client import BenchClient
from cli.bench.prompts import Prompts, RequestOptions, measure_vocabulary
from planning.simulator.clients import preference
from tests.live.drill.case import DrillCase
from tests.live.drill.client import RegionClients, drill_session
from tests.live.drill.drill import Drill, DrillTraffic
from tests.live.drill.local_cells import LocalCells
from tests.live.drill.record import DrillRecord, SentRequest, record_of

WARM_UP = 20
"""Requests to each cell that nobody counts: connections are opened, and estimates learned."""
PATIENCE_S = 120.0
"""Of clients, with one request, from its beginning through all endpoints."""
_SETTLED_S = 3.0
"""A few digest periods, so that peers know of each other when the drill begins."""


async def live_drill(
    case: DrillCase, drill: Drill | None, traffic: DrillTraffic, cells: LocalCells, prompts_seed: int = 0
) -> tuple[DrillRecord, float]:
    """Runs the drill, or the traffic alone: what the clients saw, and how late they sent a request, at most. The same
    prompts again would be found in prefix caches. Raises EndpointError where a cell does not answer beforehand."""
    async with drill_session() as session:
        prompts = await _prompts(case, cells, prompts_seed)
        await asyncio.sleep(_SETTLED_S)
        began_s = time.monotonic()
        askers = {name: RegionClients(session, _urls(case, cells, name), began_s, PATIENCE_S) for name in case.cells}
        faults = asyncio.create_task(_faults(drill, cells, began_s))
        try:
            found, sent_s = await _send_all(case, traffic, prompts, askers, began_s, faults)
        finally:
            faults.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await faults
    record = record_of(case.cells, [one for rows in found for one in rows])
    return record, float((sent_s - traffic.work.arrived_s).max())


def _urls(case: DrillCase, cells: LocalCells, region: str) -> dict[str, str]:
    """The region's own one first, then the others by round trip."""
    urls = cells.urls_from(region)
    return {name: urls[name] for name in preference(region, list(urls), case.rtt_s)}


async def _prompts(case: DrillCase, cells: LocalCells, seed: int) -> Prompts:
    """A source of bodies, after a warm-up of each cell."""
    options = RequestOptions(case.model.name, "completions", ignore_eos=True)
    vocabulary = None
    for name in case.cells:
        async with BenchClient(cells.urls_from(name)[name], "completions", timeout_s=PATIENCE_S) as client:
            vocabulary = vocabulary or await measure_vocabulary(client, case.model.name)
            warm = Prompts(vocabulary, options, seed + 1_000_003)
            await asyncio.gather(*(client.send(warm.body(32, 4)) for _ in range(WARM_UP)))
    assert vocabulary is not None
    return Prompts(vocabulary, options, seed)


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


async def _faults(drill: Drill | None, cells: LocalCells, began_s: float) -> None:
    if drill is None:
        return
    await asyncio.sleep(max(0.0, began_s + drill.at_s - time.monotonic()))
    await cells.begin(drill)
    if np.isfinite(drill.heals_s):
        await asyncio.sleep(max(0.0, began_s + drill.heals_s - time.monotonic()))
        await cells.end(drill)
