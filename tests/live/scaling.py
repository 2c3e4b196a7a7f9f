"""What tests of scaling ask of a live cluster, and the runs that every kind of engine has to stand: a burst, up and
down again; zero and back."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import requests
import yaml

from autoscaling.log import SCALING, ScalingInputs, inputs_of, log_name
from autoscaling.policies.backlog.policy import RECOVER_S
from autoscaling.scaler.decision import ScalingDecision
from autoscaling.shadow.pair import Pair
from deployments.decision_log import log_files, read_log
from deployments.decisions import Header, Input
from deployments.wire import decoder
from tests.live.clients import Answer, ask
from tests.live.cluster import LiveCluster, eventually, eventually_async

_STARTS_S = 900.0
"""Engines that start while others serve on the same two cores take their time."""


def logs(cell: LiveCluster) -> list[Path]:
    """The files of its scaling log."""
    return log_files(cell.run_dir / "logs", log_name(cell.model()["name"]))


def scaling(cell: LiveCluster) -> dict[str, Any]:
    """What the autoscaler said last."""
    return dict(cell.model()["scaling"] or {"requested": -1, "reason": "", "alarms": []})


class Record(NamedTuple):
    """A decision and what it was taken from."""

    inputs: ScalingInputs
    decision: ScalingDecision


def records(cell: LiveCluster) -> list[Record]:
    """The log so far."""
    read = decoder(ScalingDecision)
    return [Record(inputs_of(one), read(one.decision)) for one in read_log(logs(cell)) if isinstance(one, Input)]


def metric(cell: LiveCluster, name: str) -> dict[str, float]:
    """A metric's samples by their labels."""
    lines = [one for one in cell.ask("/metrics", cell.owner_url()).text.splitlines() if one.startswith(name + "{")]
    return {one[len(name) : one.rindex(" ")]: float(one.rsplit(" ", 1)[1]) for one in lines}


def ready(cell: LiveCluster) -> int:
    return sum(replica["state"] == "ready" for replica in cell.replicas())


def names(cell: LiveCluster) -> set[str]:
    """Of the replicas that are ready."""
    return {replica["replica_id"] for replica in cell.replicas() if replica["state"] == "ready"}


def apply(cell: LiveCluster, **changes: Any) -> None:
    """Changes the model's or the cluster's section of the spec in force, by the real command."""
    spec = cell.ask("/raylane/spec").json()
    for section, values in changes.items():
        part = (
            spec["autoscaling"]
            if section == "autoscaling"
            else next(one for one in spec["models"] if one["name"] == cell.model()["name"])["replicas"]
        )
        part |= values
    file = cell.folder / "changed.yaml"
    file.write_text(yaml.safe_dump(spec))
    done = cell.cli("apply", str(file), "--url", cell.url)
    assert done.returncode == 0, done.stderr


@asynccontextmanager
async def load(
    cell: LiveCluster, session: aiohttp.ClientSession, at_once: int, **request: Any
) -> AsyncIterator[list[Answer]]:
    """So many clients that ask again and again, until the block ends: as much load for slow engines as for fast ones.
    All get their answers."""
    answers: list[Answer] = []
    ended = asyncio.Event()

    async def client() -> None:
        while not ended.is_set():
            answers.append(await ask(session, cell.url, **request))

    clients = [asyncio.create_task(client()) for _ in range(at_once)]
    try:
        yield answers
    finally:
        ended.set()
        await asyncio.gather(*clients)


def last_pair(cell: LiveCluster) -> Pair:
    """What decides, as the last header of the log has it."""
    return SCALING.load([entry.state for entry in read_log(logs(cell)) if isinstance(entry, Header)][-1])


async def burst(
    cell: LiveCluster,
    session: aiohttp.ClientSession,
    requests_per_s: float,
    replicas: int,
    tell: list[str],
    **request: Any,
) -> None:
    """A burst that needs more than so many replicas, if one serves `requests_per_s` at most: what it leaves after a
    start takes these more than a minute, or than such a start. The first books that show all of it are enough to
    decide so. Then one client goes on until one replica is left. Every request is answered, and the books balance."""
    calm = ("no_room", "steady", "cooling", "min_replicas")
    await eventually_async(
        lambda: any(one.decision.ready and one.decision.reason in calm for one in records(cell)[-1:]), every_s=0.2
    )
    last = records(cell)[-1]
    start_s, before = last.decision.terms["start_up_s"], last.inputs.signals.arrived
    at_once = math.ceil(1.2 * requests_per_s * (start_s + replicas * max(RECOVER_S, start_s)))
    began = time.time()
    asked = [asyncio.create_task(ask(session, cell.url, **request)) for _ in range(at_once)]

    def seen() -> list[Record]:
        return [one for one in records(cell) if one.inputs.signals.arrived >= before + at_once]

    await eventually_async(lambda: bool(seen()), every_s=0.05)
    first = seen()[0]
    tell.append(
        f"{at_once} requests were in the books, and decided on, after {first.inputs.signals.unix_s - began:.2f} s"
    )
    assert first.decision.requested > replicas, "decided by the first books that show all of it"
    answers = await asyncio.gather(*asked)
    async with load(cell, session, 1, **request) as few:
        await eventually_async(lambda: scaling(cell)["requested"] == 1 and ready(cell) == 1, _STARTS_S, every_s=0.2)
    assert {(answer.status, answer.end, answer.code) for answer in (*answers, *few)} == {(200, "done", None)}
    assert cell.settle()["endings"]["failed"] == 0
    assert [one.decision.requested for one in records(cell) if one.decision.changes][-1] == 1


def zero_and_back(cell: LiveCluster, **request: Any) -> None:
    """The last replica goes; the first request waits for the next one, and is answered."""
    apply(cell, replicas={"min": 0, "count": 0})
    eventually(lambda: scaling(cell)["requested"] == 0 and not cell.replicas())
    assert requests.get(cell.url + "/ready", timeout=30).status_code == 200
    answer = requests.post(cell.url + "/v1/completions", json={**request, "max_tokens": 5}, timeout=120)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 5
    assert any(one.decision.reason == "wake" for one in records(cell))
