"""Runs the whole comparison: starts the first side, then each rival in turn beside it, so that two servers are up at a
time.

An idle Ray cluster takes several percent of a core from whoever is measured at that moment; what each side uses when
idle is therefore part of the result.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import cpu_seconds, pss_mib, run_facts
from benchmarks.server_process import end_descendants
from benchmarks.serving.contest import (
    ComparisonPlan,
    ComparisonShape,
    ComparisonSide,
    contender,
    contest_point,
    contest_singles,
)
from benchmarks.serving.sides import ROUTERS, Side, SideName, make_side
from cli.bench.prompts import measure_vocabulary
from cluster.spec import ClusterSpec

SCHEMA_VERSION = 1
_SETTLE_S = 5.0
_IDLE_S = 10.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """What to compare: the first of `sides` with each of the others, at the concurrencies `points`; `checkout`: the
    folder of the side of that name."""

    sides: Sequence[SideName]
    points: Sequence[int]
    shape: ComparisonShape
    checkout: Path | None = None


async def compare(spec: ClusterSpec, folder: Path, choice: ComparisonOptions, say: Say) -> dict[str, Any]:
    """The result of the first side against each of the others, as plain data. Raises ServerError when a side does not
    start."""
    first, *rivals = choice.sides
    result: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        **run_facts(),
        "model": spec.models[0].source,
        "engine": spec.models[0].settings.model_dump(mode="json", exclude_defaults=True),
        "shape": {**dataclasses.asdict(choice.shape), "points": list(choice.points)},
        "sides": {},
        "comparisons": [],
    }
    async with _running(make_side(first, spec, folder), result, say) as ours:
        for name in rivals:
            async with _running(make_side(name, spec, folder, choice.checkout), result, say) as rival:
                result["comparisons"].append(await _compare_pair(ours, rival, spec, choice, say))
    result["left_behind_at_the_end"] = end_descendants()
    return result


async def _compare_pair(
    ours: Side, rival: Side, spec: ClusterSpec, choice: ComparisonOptions, say: Say
) -> dict[str, Any]:
    async with contender(ours.name, ours.url) as us, contender(rival.name, rival.url) as them:
        plan = await _plan(us, spec, choice, text=rival.name in ROUTERS)  # SMG refuses prompts of token ids
        contenders = us, them
        found: dict[str, Any] = {"ours": ours.name, "rival": rival.name, "prompts": plan.vocabulary.how, "points": []}
        for concurrency in choice.points:
            point = await contest_point(*contenders, concurrency, plan)
            found["points"].append(point)
            say(f"{ours.name} / {rival.name} at {concurrency}: {point['ratio']['median']:.3f}")
        found["singles"] = await contest_singles(*contenders, plan) if choice.shape.singles else None
    return found


async def _plan(
    side: ComparisonSide, spec: ClusterSpec, choice: ComparisonOptions, text: bool = False
) -> ComparisonPlan:
    model = spec.models[0].name
    return ComparisonPlan(choice.shape, model, await measure_vocabulary(side.client, model, text))


@asynccontextmanager
async def _running(side: Side, result: dict[str, Any], say: Say) -> AsyncIterator[Side]:
    """The side, started, measured idle, and stopped again with its processes counted."""
    facts: dict[str, Any] = {}
    result["sides"][side.name] = facts
    say(f"starting {side.name} ...")
    try:
        facts["start_s"] = round(await side.server.start(), 1)
        facts |= await idle_facts(side)
        say(f"{side.name} is up at {side.url}: idle {facts['idle_cpu_percent']} % of a core, {facts['pss_mib']} MiB")
        yield side
    finally:
        facts["killed_at_stop"] = await side.server.stop()


async def idle_facts(side: Side) -> dict[str, Any]:
    """Processor and memory of a side that does nothing."""
    await asyncio.sleep(_SETTLE_S)
    before = cpu_seconds(side.server.tree())
    await asyncio.sleep(_IDLE_S)
    tree = side.server.tree()
    return {
        "processes": len(tree),
        "idle_cpu_percent": round((cpu_seconds(tree) - before) / _IDLE_S * 100, 1),
        "pss_mib": round(pss_mib(tree)),
    }
