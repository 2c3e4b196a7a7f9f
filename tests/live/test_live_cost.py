"""Ten thousand requests of three tenants on simulated engines, with kills, steps in the number of replicas and idle
time: the bill adds up to replica-seconds times price, has the tokens that the engines counted, and charges equal
requests equally."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from deployments.accounting.bill import HOUR_NS, rounded
from deployments.accounting.facts import FACTS, AttemptUsage, Count, ReplicaBegun, ReplicaReady
from deployments.accounting.pricing import StepPricing
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.gateway.entrance import digest_of
from deployments.protocol import FEED_PATH, Finished
from deployments.store import FILE_NAME, reader
from tests.feeds import Messages
from tests.live.clients import Answer, at_once, clients
from tests.live.cluster import LiveCluster, eventually, eventually_async, held
from tests.simulated import simulated_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MODEL = "billed-simulated"
PRICE = Fraction("36.5")
REQUESTS, AT_ONCE = 10_000, 48
SEQUENCES, STEP_TOKENS = 32, 1_024
COST = CostModel(line(0.012, 4e-5), line(0.0, 1e-5), plain_attention(2e-8, 1e-10))
TENANTS = {"one": 40, "other": 40, "ten": 400, "quiet": 40}
"""Words of each one's prompts; `quiet` sends nothing."""
OUTPUT = 12


@dataclass(slots=True)
class FeedTap:
    """What the engines count, read from their feeds as a gateway does."""

    counted: dict[str, Finished] = field(default_factory=dict)
    followed: dict[str, asyncio.Task[None]] = field(default_factory=dict)


@asynccontextmanager
async def tapped(cluster: LiveCluster) -> AsyncIterator[FeedTap]:
    """Follows all replicas, also those that come."""
    tap = FeedTap()
    session = aiohttp.ClientSession(headers=cluster.credentials, timeout=aiohttp.ClientTimeout(total=None))

    async def follow(url: str) -> None:
        async with session.get(url + FEED_PATH) as response:
            async for message in Messages(response):
                if isinstance(message, Finished) and message.usage.sequences:
                    tap.counted[message.request_id] = message

    async def watch() -> None:
        while True:
            try:
                for replica in await asyncio.to_thread(cluster.replicas):
                    if replica["url"] not in tap.followed:
                        tap.followed[replica["url"]] = asyncio.create_task(follow(replica["url"]))
            except (OSError, KeyError, StopIteration, ValueError, RuntimeError):  # a gateway was killed
                pass
            await asyncio.sleep(0.3)

    task = asyncio.create_task(watch())
    try:
        await asyncio.sleep(2)
        yield tap
    finally:
        tasks = [task, *tap.followed.values()]
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await session.close()


async def test_ten_thousand_requests_with_kills_steps_and_idle_time(tmp_path: Path, tell: list[str]) -> None:
    with held(tmp_path, "billed", spec_in(tmp_path)) as cluster:
        await asyncio.to_thread(eventually, lambda: cluster.is_whole() and len(cluster.gateways()) == 2)
        async with tapped(cluster) as tap:
            answers = await traffic(cluster)
            await asyncio.sleep(10)  # idle; and the last facts are delivered
        up = json.loads(await asyncio.to_thread(cluster.done, "cost", "--json", "--by", "tenant"))
        page = tmp_path / "cost.html"
        await asyncio.to_thread(cluster.done, "cost", "--out", str(page))
    down = json.loads(cluster.done("cost", "--json", "--by", "tenant"))
    with reader(cluster.run_dir / FILE_NAME) as store:
        facts = [FACTS.read(kind, body) for kind, body in store.execute("select kind, body from facts order by number")]
    assert "replica-hours" in page.read_text(encoding="utf-8")
    for record in (up, down):
        adds_up(record)
        tell.append(summary(record))
    assert down["basis"] == {f"{MODEL}@default": f"the step model of {MODEL} on nothing (roofline)"}
    usages = {one.attempt_id: one for one in facts if isinstance(one, AttemptUsage) and one.count is not Count.CUT}
    cut = {one.attempt_id for one in facts if isinstance(one, AttemptUsage)} - set(usages)
    done = [answer for answer in answers if answer.end == "done"]
    tell.append(f"{len(done)} of {len(answers)} answered, {len(cut)} attempts cut, {len(tap.counted)} counted")
    assert len(answers) == REQUESTS
    assert len(done) > 0.97 * REQUESTS
    counts_are_the_engines(down, usages, cut, tap)
    pays_what_it_should(down, usages, facts)
    works(down)


def adds_up(record: dict[str, Any]) -> None:
    """To the cent, and to the last nanosecond."""
    total, rows = record["total"], record["rows"]
    usd = Fraction(total["ns"], HOUR_NS) * PRICE
    assert sum(row["ns"] for row in rows) == total["ns"]
    assert Fraction(total["usd"]) == usd == sum(Fraction(row["usd"]) for row in rows)
    assert sum(Decimal(row["usd_shown"]) for row in rows) == rounded([usd])[0]
    assert record["unread_lines"] == 0


def counts_are_the_engines(
    record: dict[str, Any], usages: dict[str, AttemptUsage], cut: set[str], tap: FeedTap
) -> None:
    """Each attempt that an engine counted is in the bill with the same tokens, or listed as cut."""
    assert set(tap.counted) <= set(usages) | cut
    for attempt_id, message in tap.counted.items():
        if (one := usages.get(attempt_id)) is not None:
            assert one.count is Count.ENGINE
            assert (one.prompt_tokens, one.output_tokens) == (message.usage.prompt_tokens, message.usage.output_tokens)
    counted = [one for one in usages.values() if one.count is Count.ENGINE]
    for key, attribute in (("prompt_tokens", "prompt_tokens"), ("output_tokens", "output_tokens")):
        assert sum(row[key] for row in record["rows"]) == sum(getattr(one, attribute) for one in counted)
    work = [row for row in record["rows"] if row["share"] == "work"]
    assert sum(row["requests"] for row in work) == len(counted)
    assert sum(row["cut"] for row in record["rows"]) == len(cut) > 0


def pays_what_it_should(record: dict[str, Any], usages: dict[str, AttemptUsage], facts: list[Any]) -> None:
    """By the request: the number of each tenant's requests that were not cut is not quite the same."""
    work = {row["tenant"]: row for row in record["rows"] if row["share"] == "work"}
    assert set(work) == {"one", "other", "ten"}
    paid = {name: Fraction(row["usd"]) / row["requests"] for name, row in work.items()}
    assert float(paid["one"] / paid["other"]) == pytest.approx(1, rel=0.02)
    counted = [one for one in usages.values() if one.count is Count.ENGINE]
    seconds = sum(one.to_ns - one.from_ns for one in counted) / 1e9
    busy_s = sum(row["ns"] for row in work.values()) / 1e9
    batch = seconds / busy_s
    context = sum(one.prompt_tokens + one.output_tokens / 2 for one in counted) / len(counted)
    pricing = StepPricing(COST, STEP_TOKENS, "the test")
    works: dict[str, list[float]] = {"one": [], "ten": []}
    for one in counted:
        if one.tenant in works:
            of_one = pricing.work(one, batch, context)
            works[one.tenant].append(of_one.prefill + of_one.decode)
    says = (sum(works["ten"]) / len(works["ten"])) / (sum(works["one"]) / len(works["one"]))
    assert says > 1.3
    assert float(paid["ten"] / paid["one"]) == pytest.approx(says, rel=0.05)
    begun = [one for one in facts if isinstance(one, ReplicaBegun)]
    ready = {one.replica_id for one in facts if isinstance(one, ReplicaReady)}
    assert len({one.replica_id for one in begun}) >= 4, "two, one in the place of the killed one, one more"
    assert ready == {one.replica_id for one in begun}


def works(record: dict[str, Any]) -> None:
    """Each kind of time is there, and what is unattributed is small: kills cut seconds."""
    shares: dict[str, int] = {}
    for row in record["rows"]:
        shares[row["share"]] = shares.get(row["share"], 0) + row["ns"]
    assert set(shares) == {"work", "starting", "idle", "unattributed"}
    assert shares["unattributed"] < 0.03 * sum(shares.values())


def summary(record: dict[str, Any]) -> str:
    return "; ".join(
        f"{row['tenant'] or '-'} {row['share']} {row['ns'] / 1e9:.1f} s ${row['usd_shown']}" for row in record["rows"]
    )


async def traffic(cluster: LiveCluster) -> list[Answer]:
    """The requests of three tenants, mixed by chance; meanwhile a replica is killed, then a gateway, then there is one
    replica more, then one fewer."""
    rng = random.Random(7)
    tenants = [name for name in TENANTS if name != "quiet"]
    order = [tenants[number % 3] for number in range(REQUESTS)]
    rng.shuffle(order)
    done = 0

    async with clients() as session:

        async def one(number: int) -> Answer:
            nonlocal done
            answer = await ask_as(session, cluster.url, order[number], number)
            done += 1
            return answer

        async def trouble() -> None:
            def after(share: float) -> bool:
                return done >= share * REQUESTS

            await eventually_async(lambda: after(0.15))
            os.kill((await asyncio.to_thread(cluster.replicas))[0]["pid"], signal.SIGKILL)
            await eventually_async(lambda: after(0.4))
            os.kill(next(iter((await asyncio.to_thread(cluster.gateways)).values())), signal.SIGKILL)
            await eventually_async(lambda: after(0.6))
            await asyncio.to_thread(cluster.done, "pin", MODEL, "3", "--for", "10m", "--why", "a step")
            await eventually_async(lambda: after(0.8))
            await asyncio.to_thread(cluster.done, "pin", MODEL, "2", "--for", "10m", "--why", "a step")

        troubling = asyncio.create_task(trouble())
        answers = await at_once(REQUESTS, AT_ONCE, one)
        await troubling
    return answers


async def ask_as(session: aiohttp.ClientSession, url: str, tenant: str, number: int) -> Answer:
    """A request whose prompt no other one begins with. A connection that the kill of a gateway broke is an error."""
    answer, began_s = Answer(), time.monotonic()
    body = {"model": MODEL, "prompt": f"{number} {'word ' * TENANTS[tenant]}", "max_tokens": OUTPUT, "ignore_eos": True}
    try:
        async with session.post(
            url + "/v1/completions", json=body, headers={"authorization": f"Bearer {tenant}"}
        ) as response:
            answer.status = response.status
            content = await response.json()
            answer.end, answer.code = ("error", content["error"]["code"]) if "error" in content else ("done", None)
    except (aiohttp.ClientError, ValueError) as error:
        answer.code = repr(error)
        await asyncio.sleep(0.2)
    answer.ended_s = time.monotonic()
    assert answer.ended_s - began_s < 300
    return answer


def spec_in(folder: Path) -> dict[str, Any]:
    """Two gateways, and two simulated replicas of a pool with a price, of which operators may have one to three."""
    limits = EngineModelLimits(SEQUENCES, STEP_TOKENS, 200_000)
    pool = {"name": "h100", "accelerator": "H100", "nodes": 1, "gpus_per_node": 8, "price_usd_per_hour": float(PRICE)}
    own = {
        "settings": {"stream_interval": 16},
        "health": {"period_s": 1, "timeout_s": 60, "stall_s": 60},
        "replicas": {"count": 2, "min": 1, "max": 3},
    }
    model = simulated_model(MODEL, folder / "costs.json", limits, COST, **own)
    return {
        "version": 1,
        "regions": [{"name": "here", "pools": [pool]}],
        "models": [model],
        "autoscaling": {"policy": "fixed"},
        "classes": [{"name": "interactive", "ttft_ms": 30_000}],
        "tenants": [{"name": name, "keys": [digest_of(name)]} for name in TENANTS],
        "gateway": {"host": "127.0.0.1", "replicas": 2},
    }
