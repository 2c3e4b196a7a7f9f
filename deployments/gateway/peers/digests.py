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
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from deployments.gateway.peers.client import PeerClient, PeerFailed
from deployments.ownership.dispatcher import Dispatcher
from deployments.peering import Digest, DigestRefusal, LaneDigest, ModelDigest, Question, Received
from deployments.scheduling import TenantUse

log = logging.getLogger("raylane.peers")

DIGEST_PATH = "/raylane/peers/digest"
_LOG_EVERY_S = 60.0
_MAX_MODELS = 1_000

Questions = Mapping[str, Question]
"""By model."""


class _Form(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)  # a peer may be of a later version


_Number = Annotated[int, Field(ge=0, lt=1 << 63)]
_Name = Annotated[str, Field(max_length=256)]
_MAX = 1e18
"""Sums and products of what a peer says stay finite."""
_Amount = Annotated[float, Field(ge=0, le=_MAX)]


class _Lane(_Form):
    lane: _Name
    p50_s: _Amount
    p95_s: _Amount


class _Received(_Form):
    cell: _Name
    epoch: _Number
    number: _Number


_Use = tuple[_Name, _Amount, Annotated[float, Field(ge=-_MAX, le=_MAX)], _Number]
"""`TenantUse`. Tokens may be below zero: leases of an earlier owner are settled, too."""


class _ModelForm(_Form):
    model: _Name
    lanes: Annotated[list[_Lane], Field(max_length=64)]
    replicas: _Number
    max_sequences: _Number
    free_sequences: _Number
    max_kv_tokens: _Number
    free_kv_tokens: _Number
    prefill_tokens_per_s: _Amount
    usd_per_mtok: _Amount | None = None
    hands_over: bool = False
    tenants: Annotated[list[_Use], Field(max_length=100_000)] = []

    def plain(self) -> ModelDigest:
        lanes = tuple(LaneDigest(one.lane, one.p50_s, one.p95_s) for one in self.lanes)
        fields = {name: getattr(self, name) for name in ModelDigest.__slots__}
        return ModelDigest(**{**fields, "lanes": lanes, "tenants": tuple(TenantUse(*one) for one in self.tenants)})


class _DigestForm(_Form):
    cell: _Name
    epoch: _Number
    sequence: _Number
    answers: tuple[_Number, _Number]
    spec_version: _Name
    marks: Annotated[list[_Name], Field(max_length=100_000)]
    models: Annotated[list[_ModelForm], Field(max_length=_MAX_MODELS)]
    received: Annotated[list[_Received], Field(max_length=1_000)] = []

    def plain(self) -> Digest:
        return Digest(
            self.cell,
            self.epoch,
            self.sequence,
            Question(*self.answers),
            self.spec_version,
            frozenset(self.marks),
            tuple(one.plain() for one in self.models),
            tuple(Received(one.cell, one.epoch, one.number) for one in self.received),
        )


class _QuestionsForm(_Form):
    questions: Annotated[dict[_Name, tuple[_Number, _Number]], Field(max_length=_MAX_MODELS)]


def read_questions(content: Any) -> Questions:
    """Raises ValueError."""
    asked = _QuestionsForm.model_validate(content).questions
    return {model: Question(*question) for model, question in asked.items()}


def digest_to_json(digest: Digest) -> dict[str, Any]:
    """A digest as JSON has it. A wait that is infinite is not known: it is left out."""
    models = [
        {
            **{name: getattr(one, name) for name in ModelDigest.__slots__},
            "lanes": [lane._asdict() for lane in one.lanes if math.isfinite(lane.p50_s) and math.isfinite(lane.p95_s)],
        }
        for one in digest.models
    ]
    return {
        "cell": digest.cell,
        "epoch": digest.epoch,
        "sequence": digest.sequence,
        "answers": list(digest.answers),
        "spec_version": digest.spec_version,
        "marks": sorted(digest.marks),
        "models": models,
        "received": [one._asdict() for one in digest.received],
    }


def read_digest(content: Any) -> Digest:
    """Raises ValueError."""
    return _DigestForm.model_validate(content).plain()


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
            self._ask()
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
