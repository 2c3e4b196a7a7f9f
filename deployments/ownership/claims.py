"""Makes an owner known to a replica: from then on the replica takes nothing under an earlier epoch, and tells what it runs."""

import asyncio
import json
from typing import Any

import aiohttp

from deployments.ownership.booking import read_booking
from deployments.ownership.running import Running
from deployments.protocol import CLAIM_PATH, STALE_EPOCH_CODE, ReplicaFacts

_ANSWER_S = 5.0


class Overtaken(Exception):
    """The replica has seen a later epoch."""

    def __init__(self, highest: int) -> None:
        super().__init__(highest)
        self.highest = highest


class ClaimFailed(Exception):
    """The replica did not answer, or not in the way that was agreed."""


async def claim(session: aiohttp.ClientSession, facts: ReplicaFacts, epoch: int, now: float) -> list[Running]:
    """What the replica runs, from the moment at which it knows the epoch. Raises Overtaken, ClaimFailed."""
    try:
        async with asyncio.timeout(_ANSWER_S), session.post(facts.url + CLAIM_PATH, json={"epoch": epoch}) as response:
            status, payload = response.status, await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ClaimFailed(repr(error)) from error
    try:
        answer: dict[str, Any] = json.loads(payload)
        if status == 409 and answer["error"]["code"] == STALE_EPOCH_CODE:
            raise Overtaken(int(answer["error"]["highest"]))
        if status != 200:
            raise ClaimFailed(f"{status}: {payload[:200]!r}")
        return [running for told in answer["running"] if (running := _running(told, facts.replica_id, now)) is not None]
    except (KeyError, TypeError, ValueError) as error:
        raise ClaimFailed(f"not an answer to a claim: {payload[:200]!r}") from error


def overtaken_by(status: int, payload: bytes) -> int | None:
    """The highest epoch, if an engine's answer is the refusal of one that was overtaken."""
    if status != 409:
        return None
    try:
        error = json.loads(payload)["error"]
        return int(error["highest"]) if error["code"] == STALE_EPOCH_CODE else None
    except (KeyError, TypeError, ValueError):
        return None


def _running(told: dict[str, Any], replica_id: str, now: float) -> Running | None:
    """What a replica tells of one request; None for one that no lease stands for (the tokenizer's)."""
    if not told["booking"]:
        return None
    return Running(read_booking(told["booking"]).lease(replica_id, now), bool(told["started"]))
