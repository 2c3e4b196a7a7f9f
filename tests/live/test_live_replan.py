"""`raylane replan` beside two real cells of simulated engines: the autoscalers follow its floors and ceilings, prices
move them, capacity that cannot be had is planned elsewhere; a re-planner that is killed and a region that does not
answer leave nothing behind.

The tests run in their order, on one pair of cells.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.engine_model.cost_file import cost_file, write_cost_file
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from planning.replan import Observed, Replan, ReplanReason, SiteKey
from planning.replan.log import from_tree
from planning.replan.result import HeldBack
from tests.live.cells import Link, LiveCells, live_cells
from tests.live.clients import Answer, ask, clients
from tests.live.cluster import ROOT, eventually, eventually_async
from tests.live.scaling import logs, scaling

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

MODEL = "small-simulated"
EU, US = SiteKey("eu", MODEL), SiteKey("us", MODEL)
EVERY_S = 5
BOUNDS_S = 3 * EVERY_S
ROOM = 2
"""Replicas that fit into each region's pool; the spec and the worksheet allow four."""
TWO, THREE, FOUR = 7.0, 11.0, 15.5
"""Requests/s that need so many replicas: a replica holds 4.8 of them, of which nine tenths are planned with."""
LOST_S = 60.0
"""After so long without an answer a region counts as lost (`cli/replan/loop.py`)."""


def spec_in(folder: Path) -> dict[str, Any]:
    limits = EngineModelLimits(8, 512, 60_000)
    cost = CostModel(line(0.025, 5e-5), line(0.0, 1e-5), plain_attention(2e-8, 1e-10))
    write_cost_file(folder / "costs.json", cost_file(MODEL, "this machine", "measured", limits, cost))
    costs, quick = str(folder / "costs.json"), {"down_after_s": 4, "down_starts": 0, "level_s": 10}
    model = {
        "name": MODEL,
        "source": "nothing",
        "engine": "simulated",
        "simulated": {"costs": costs},
        "settings": {
            "max_model_len": 4_096,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 512,
            "stream_interval": 16,
            "cpus": 1,
        },
        "health": {"period_s": 5, "timeout_s": 60, "stall_s": 60},
        "replicas": {"count": 1, "min": 1, "max": 4},
        "autoscaling": {"policy": "backlog", "period_s": 0.5, "costs": costs, "backlog": quick},
    }
    links = [{"source": a, "target": b, "rtt_ms": 40.0} for a, b in (("eu", "us"), ("us", "eu"))]
    return {
        "pools": [{"name": "cpu", "cpus_per_node": ROOM}],
        "models": [model],
        "classes": [{"name": "interactive", "ttft_ms": 2_000}],
        "hardware": {"links": links},
    }


@dataclass
class Replanning:
    """The command's files. `sheet` names the spec of a cell that runs."""

    cells: LiveCells
    folder: Path

    @property
    def sheet(self) -> Path:
        return self.folder / "sheet.yaml"

    def price(self, eu: float, us: float) -> None:
        """Writes the worksheet, with these prices of a replica-hour."""
        stream = {
            "name": "chat",
            "model": MODEL,
            "class": "interactive",
            "rates": [{"region": "eu", "requests_per_s": 1}, {"region": "us", "requests_per_s": 1}],
            "input_tokens": {"mean": 20},
            "output_tokens": {"mean": 60},
        }
        prices = [
            {"gpu": "cpu", "region": region, "on_demand_usd_per_gpu_hour": usd}
            for region, usd in (("eu", eu), ("us", us))
        ]
        content = {
            "name": "replan",
            "spec": str(self.cells["eu"].folder / "spec.yaml"),
            "demand": [stream],
            "gpu_prices": prices,
        }
        part = self.sheet.with_suffix(".part")
        part.write_text(yaml.safe_dump(content))
        part.replace(self.sheet)

    def command(self, *options: str) -> list[str]:
        files = ["--log", str(self.folder / "replan.jsonl"), "--memo", str(self.folder / "memo")]
        times = ["--every", f"{EVERY_S}s", "--window", "5s"]
        return [sys.executable, "-m", "cli.main", "replan", str(self.sheet), *times, *files, *options]

    @property
    def environment(self) -> dict[str, str]:
        secrets = {f"RAYLANE_SECRET_{name.upper()}": self.cells[name].secret() for name in ("eu", "us")}
        return {**os.environ, **secrets, "COLUMNS": "200", "RAYLANE_HOME": str(self.folder)}

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / "replan.log").open("ab") as log:
            process = subprocess.Popen(
                self.command("--step", "1"), cwd=ROOT, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait(30)

    def plans(self) -> list[tuple[Observed, Replan]]:
        """The log, without headers."""
        try:
            lines = (self.folder / "replan.jsonl").read_text().splitlines()
        except OSError:
            return []
        contents = [json.loads(one) for one in lines]
        return [
            (from_tree(Observed, one["observed"]), from_tree(Replan, one["plan"]))
            for one in contents
            if "observed" in one
        ]

    def floors(self) -> dict[str, int]:
        """Of the last re-plan, by region."""
        plans = self.plans()
        return {one.site.region: one.floor for one in plans[-1][1].bounds} if plans else {}

    def said(self) -> str:
        return (self.folder / "replan.log").read_text()


@pytest.fixture(scope="module")
def replanning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replanning]:
    folder = tmp_path_factory.mktemp("replan")
    with live_cells(folder, spec_in(folder)) as cells:
        own = folder / "operator"
        own.mkdir()
        made = Replanning(cells, own)
        made.price(1.0, 1.0)
        yield made


def controls(replanning: Replanning, region: str) -> dict[str, int]:
    """The bounds that are in force in a cell."""
    (group,) = replanning.cells[region].ask("/raylane/bounds").json()["models"][MODEL]["groups"]
    return {one["kind"]: one["replicas"] for one in group["controls"]}


def requested(replanning: Replanning) -> dict[str, int]:
    return {region: scaling(replanning.cells[region])["requested"] for region in ("eu", "us")}


@contextmanager
def cut(link: Link) -> Iterator[None]:
    link.cut()
    try:
        yield
    finally:
        link.heal()


@asynccontextmanager
async def arriving(replanning: Replanning, per_s: float, region: str = "eu") -> AsyncIterator[list[Answer]]:
    """So many requests a second in a region, whatever becomes of them, until the block ends; all are answered then."""
    answers: list[Answer] = []

    async def one() -> None:
        answers.append(await ask(session, replanning.cells[region].url, model=MODEL, max_tokens=60))

    async def send() -> None:
        began, number = time.monotonic(), 0
        while True:
            asked.append(asyncio.create_task(one()))
            number += 1
            await asyncio.sleep(max(0.0, began + number / per_s - time.monotonic()))

    asked: list[asyncio.Task[None]] = []
    async with clients() as session:
        sending = asyncio.create_task(send())
        try:
            yield answers
        finally:
            sending.cancel()
            await asyncio.gather(*asked)


async def test_autoscalers_follow_and_prices_and_missing_room_move_the_floors(
    replanning: Replanning, tell: list[str]
) -> None:
    with replanning.running():
        await eventually_async(lambda: replanning.floors() == {"eu": 1, "us": 1}, every_s=0.5)
        assert await asyncio.to_thread(controls, replanning, "eu") == {"floor": 1, "ceiling": 2}
        async with arriving(replanning, THREE) as answers:
            began = time.monotonic()
            await eventually_async(lambda: replanning.floors() == {"eu": 2, "us": 1}, every_s=0.5)
            tell.append(f"demand for three replicas: planned after {time.monotonic() - began:.0f} s")
            replanning.price(5.0, 1.0)
            began = time.monotonic()
            await eventually_async(lambda: replanning.floors() == {"eu": 1, "us": 2}, every_s=0.5)
            await asyncio.to_thread(eventually, lambda: requested(replanning)["us"] == 2)
            assert scaling(replanning.cells["us"])["reason"] == "replan_floor", "its own load asks for less"
            shown = await asyncio.to_thread(
                replanning.cells["us"].done, "controls", "--url", replanning.cells["us"].url
            )
            assert "floor" in shown
            assert "re-plan: price" in shown
            tell.append(f"the price: moved after {time.monotonic() - began:.0f} s")
        async with arriving(replanning, FOUR) as more:
            began = time.monotonic()
            await eventually_async(lambda: replanning.floors() == {"eu": 2, "us": 2}, every_s=0.5)
            tell.append(f"no room for a third replica in us: planned in eu after {time.monotonic() - began:.0f} s")
            await asyncio.to_thread(eventually, lambda: requested(replanning) == {"eu": 2, "us": 2})
        assert {answer.end for answer in (*answers, *more)} == {"done"}
    _check(replanning)


def _check(replanning: Replanning) -> None:
    """What the log shows of the way there."""
    plans = replanning.plans()
    falls = [(observed.states[US], one) for observed, plan in plans for one in plan.bounds if one.floor < one.before]
    assert [(one.site, one.reason) for _, one in falls] == [(EU, ReplanReason.PRICE), (US, ReplanReason.ROOM)]
    assert falls[0][0].ready == 2, "what replaces it was ready"
    held = {one.held for _, plan in plans for one in plan.bounds if one.site == EU}
    assert HeldBack.NOT_READY in held
    assert {one.reason for _, plan in plans for one in plan.bounds if one.site == EU} >= {
        ReplanReason.DEMAND,
        ReplanReason.PRICE,
        ReplanReason.ROOM,
    }
    assert any(observed.states[US].room == ROOM for observed, _ in plans), "its autoscaler said so"
    eu, us = replanning.cells["eu"], replanning.cells["us"]
    files = [word for file in logs(us) for word in ("--log", str(file))]
    assert "re-plans" in eu.done("replay", str(replanning.folder / "replan.jsonl"))
    assert "replan_floor" in us.done("explain", MODEL, "--last", "50", "--reasons", "--json", *files)


async def test_a_killed_replanner_leaves_nothing_and_the_next_one_goes_on(
    replanning: Replanning, tell: list[str]
) -> None:
    with replanning.running() as process:
        before = len(replanning.plans())
        await eventually_async(lambda: len(replanning.plans()) > before, every_s=0.2)
        first = replanning.plans()[before][1]
        assert {one.reason for one in first.bounds} <= {ReplanReason.FIRST, ReplanReason.STEADY}
        assert set(await asyncio.to_thread(controls, replanning, "us")) == {"floor", "ceiling"}
        process.kill()
        began = time.monotonic()
        for region in ("eu", "us"):
            await asyncio.to_thread(eventually, lambda region=region: not controls(replanning, region), BOUNDS_S + 5)
        tell.append(f"killed: the last bounds ended after {time.monotonic() - began:.0f} s")
    await asyncio.to_thread(eventually, lambda: requested(replanning) == {"eu": 1, "us": 1})
    assert not scaling(replanning.cells["us"])["reason"].startswith("replan_")


async def test_a_region_that_does_not_answer_is_planned_around_and_comes_back(
    replanning: Replanning, tell: list[str]
) -> None:
    """The re-planner and `eu` do not reach `us`; its own clients do. Its demand takes both regions' one replica."""
    replanning.price(5.0, 1.0)
    before = len(replanning.plans())
    with replanning.running():
        async with arriving(replanning, TWO, "us") as answers:
            await eventually_async(lambda: len(replanning.plans()) > before + 2, every_s=0.5)
            assert replanning.floors() == {"eu": 1, "us": 1}
            with cut(replanning.cells.link):
                began = time.monotonic()
                await eventually_async(lambda: replanning.floors() == {"eu": 2}, every_s=0.5)
                lost_s = time.monotonic() - began
                assert await asyncio.to_thread(controls, replanning, "us") == {}, "it goes on by its own"
            assert lost_s > LOST_S
            tell.append(f"a region counted as lost, and the other one got what it needs for both, after {lost_s:.0f} s")
            assert "us is lost: " in replanning.said()
            began = time.monotonic()
            await eventually_async(lambda: replanning.floors() == {"eu": 1, "us": 1}, every_s=0.5)
            tell.append(f"it was back in the plan {time.monotonic() - began:.0f} s after it answered again")
            await asyncio.to_thread(eventually, lambda: set(controls(replanning, "us")) == {"floor", "ceiling"})
        assert {answer.end for answer in answers} == {"done"}
    reasons = {(one.site, one.reason) for _, plan in replanning.plans() for one in plan.bounds}
    assert {(EU, ReplanReason.REGION_LOST), (EU, ReplanReason.REGION_BACK)} <= reasons


def test_a_wrong_secret_is_said_at_once_and_nothing_is_ordered(replanning: Replanning) -> None:
    environment = {**replanning.environment, "RAYLANE_SECRET_US": "wrong"}
    began = time.monotonic()
    done = subprocess.run(
        replanning.command("--once"), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "requires its cluster's secret; set RAYLANE_SECRET_US" in done.stderr
    assert time.monotonic() - began < 30
