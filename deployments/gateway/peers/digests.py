"""The exchange of digests: once a period the owners in this gateway ask all peers, and hear what they answer.

A peer is asked for all models at once, over one kept connection. What it says is checked like a client's word: its
form here, the rest by `deployments/peering`, which also measures its age and the round trip.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from deployments.gateway.peers.client import PeerClient, PeerFailed
from deployments.ownership.dispatcher import Dispatcher
from deployments.peering import Digest, DigestRefusal, Question

log = logging.getLogger("raylane.peers")

DIGEST_PATH = "/raylane/peers/digest"
_LOG_EVERY_S = 60.0

Questions = Mapping[str, Question]
"""By model."""


@dataclass(frozen=True, slots=True)
class _Asked:
    questions: Questions


def read_questions(content: Any) -> Questions:
    """Raises ValueError."""
    return msgspec.convert(content, _Asked).questions


def digest_to_json(digest: Digest) -> dict[str, Any]:
    """A digest as JSON has it. A wait that is infinite is not known: it is left out."""
    content: dict[str, Any] = msgspec.to_builtins(digest)
    for model in content["models"]:
        model["lanes"] = [lane for lane in model["lanes"] if all(map(math.isfinite, lane[1:]))]
    return content


def read_digest(content: Any) -> Digest:
    """Raises ValueError."""
    return msgspec.convert(content, Digest)


def answers_of(dispatchers: Mapping[str, Dispatcher], questions: Questions) -> dict[str, Any]:
    """The digests of the models that this gateway owns, as JSON."""
    found = {}
    for model, question in questions.items():
        dispatcher = dispatchers.get(model)
        owner = dispatcher.own if dispatcher is not None else None
        if owner is not None and owner.peering is not None:
            found[model] = digest_to_json(owner.peering.digest(question))
    return found


class DigestExchange:
    """Of one gateway: asks for the models that it owns."""

    def __init__(self, client: PeerClient, dispatchers: Mapping[str, Dispatcher], period_s: float, max_age_s: float):
        self._client = client
        self._dispatchers = dispatchers
        self._period_s = period_s
        self._max_age_s = max_age_s
        self._asking: set[asyncio.Task[None]] = set()
        self._logged_s: dict[str, float] = {}
        self.refused: Counter[tuple[str, str]] = Counter()
        """Digests that were not taken over, by peer and `DigestRefusal`."""
        self.failed: Counter[str] = Counter()
        """Questions that a peer did not answer, by peer."""

    async def run(self) -> None:
        """Asks for ever, once a period. A question that is not answered within `max_age_s` is given up, with its
        connection."""
        due_s = time.monotonic()
        while True:
            try:
                self._ask()
            except Exception:
                log.exception("no question was asked in this period")
            due_s = max(due_s + self._period_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())

    async def close(self) -> None:
        for task in tuple(self._asking):
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    def _ask(self) -> None:
        questions: dict[str, dict[str, list[int]]] = {}
        for model, dispatcher in self._dispatchers.items():
            if (owner := dispatcher.own) is not None and owner.peering is not None:
                for cell, question in owner.peering.ask().items():
                    questions.setdefault(cell, {})[model] = list(question)
        for cell, asked in questions.items():
            task = asyncio.create_task(self._ask_one(cell, asked))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask_one(self, cell: str, questions: Mapping[str, list[int]]) -> None:
        try:
            answer = await self._client.post_json(cell, DIGEST_PATH, {"questions": questions}, self._max_age_s)
            digests = {model: read_digest(found) for model, found in answer["digests"].items() if model in questions}
        except (PeerFailed, ValueError, KeyError, TypeError, AttributeError) as error:
            self.failed[cell] += 1
            self._log(cell, str(error) if isinstance(error, PeerFailed) else "its answer is no digest")
            return
        for model, digest in digests.items():
            dispatcher = self._dispatchers.get(model)
            owner = dispatcher.own if dispatcher is not None else None
            if owner is None or owner.peering is None:
                continue
            asked = replace(digest, models=tuple(one for one in digest.models if one.model == model))
            refusal = owner.peering.heard(asked) if digest.cell == cell else DigestRefusal.UNKNOWN_CELL
            if refusal is not None:
                self.refused[cell, refusal.value] += 1

    def _log(self, cell: str, what: str) -> None:
        """One a minute of each peer."""
        now = time.monotonic()
        if now - self._logged_s.get(cell, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._logged_s[cell] = now
            log.warning("no digest of cell %s: %s", cell, what)
