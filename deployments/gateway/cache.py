"""Answers that are kept, and given again to requests that mean the same (docs/caching.md).

Each gateway has its own, in memory. An answer is kept under the version of the replica that made it, and given again
while a replica of that version is ready: it is one that the request might get now. It is judged when its ledger is
complete: kept is only what its client got whole, and as it had asked for it.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from cachetools import TTLCache

from cluster.spec import CacheSpec
from deployments.gateway.connection import AT_ONCE_BYTES, Connection, Recording, answer_headers
from deployments.gateway.entrance import Headers
from deployments.gateway.exchange import SIMULATED_MARK, sized
from deployments.gateway.flow import Awaited
from deployments.gateway.semantic import Embed, Key, Probe, SemanticIndex
from deployments.openai.endpoints import Endpoint
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import shown
from deployments.openai.meaning import Meaning, first_turn_of, meaning_of
from deployments.ownership.replicas import Replicas
from deployments.telemetry import table
from deployments.telemetry.exposition import MetricCounts
from deployments.telemetry.ledger import Ledger, RequestOutcome
from deployments.telemetry.table import Sample
from deployments.telemetry.verdicts import RequestVerdict

CACHE_HEADER = b"x-raylane-cache"
OPT_IN = b"on"
"""The header's value by which a client takes a kept answer though its request does not write `temperature: 0`."""

_HEAD = (b"content-type", SIMULATED_MARK[0])
"""Headers of an engine's answer that are kept with it."""
_CUT_OFF = (b'_reason":"abort"', b'_reason":"error"')
"""Of a choice that its engine gave up. (In a text the quotation marks are escaped.)"""
_UNTOUCHED = frozenset(map(RequestVerdict, ("admitted", "queued", "promoted", "placed", "refused", "resubmitted")))
"""What may be decided on a request that gets what it asked for; whatever else there is, or will be, may touch its
answer."""
_ENTRY_BYTES = 1_024
"""What an answer takes beside its bytes."""
_INDEXED_BYTES = 4_096
"""...with a vector of some hundred dimensions: the index has at most two of them for an answer."""
_SHARE = 16
"""No answer takes more than a sixteenth of the cache."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client allows: that a kept answer is `taken`, also of a request that would not get the same again (`any`);
    and that its answer is kept."""

    taken: bool
    any: bool


def wish_of(headers: Mapping[bytes, bytes]) -> Wish | None:
    """By `X-Raylane-Cache` and `Cache-Control`; None: neither. Raises ApiError."""
    given = headers.get(CACHE_HEADER)
    if given not in (None, OPT_IN):
        message = f"X-Raylane-Cache = {shown(given.decode('latin-1'))}: allowed: {OPT_IN.decode()}"
        raise ApiError(ErrorCode.INVALID_VALUE, message, param="X-Raylane-Cache")
    directives = {one.strip() for one in headers.get(b"cache-control", b"").lower().split(b",")}
    return None if b"no-store" in directives else Wish(b"no-cache" not in directives, given is not None)


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The whole answer, and what the engine had counted for it."""

    head: Headers
    body: bytes
    prompt_tokens: int
    output_tokens: int
    kept_s: float


@dataclass(frozen=True, slots=True)
class Hit:
    """A kept answer to a request; `similarity`: where it was given to a request that is alike, and not the same."""

    answer: KeptAnswer
    similarity: float | None = None


class ResponseCache:
    """All that one gateway keeps. What is being written down counts, too: both together have at most `max_bytes`, and
    what nobody has asked for longest goes first. `embed` makes the vectors of the semantic part, if it is on."""

    def __init__(self, settings: CacheSpec, embed: Embed | None = None) -> None:
        self.settings = settings
        self._entry_bytes = _ENTRY_BYTES if embed is None else _INDEXED_BYTES
        self._kept: TTLCache[Key, KeptAnswer] = TTLCache(
            settings.max_bytes, settings.max_age_s, time.monotonic, lambda kept: len(kept.body) + self._entry_bytes
        )
        self._semantic: SemanticIndex | None = None
        if settings.semantic is not None and embed is not None:
            self._semantic = SemanticIndex(settings.semantic, embed, self._kept.__contains__)
        self._recorded = 0
        self._lookups, self._saved = MetricCounts(table.CACHE_LOOKUPS), MetricCounts(table.CACHE_SAVED)

    async def look_up(
        self, endpoint: Endpoint, replicas: Replicas, ledger: Ledger, client: Connection, body: bytes
    ) -> Hit | None:
        """The kept answer to a request that came with this body. None: an engine is to answer, and what it answers is
        kept if it may be. Raises ApiError."""
        wish = wish_of(client.headers)
        if wish is None:
            return None
        given = (endpoint, body, ledger.tenant)
        try:
            meaning = meaning_of(*given) if len(body) <= AT_ONCE_BYTES else await asyncio.to_thread(meaning_of, *given)
        except UnicodeDecodeError:  # a member's name is no text: the engine judges that
            return None
        if not (meaning.repeats or wish.any):
            return None
        probe = None
        if wish.taken:
            versions = replicas.versions
            keys = ((version, meaning.digest) for version in versions)
            hit = next((Hit(one) for key in keys if (one := self._kept.get(key)) is not None), None)
            if hit is None and self._semantic is not None and (turn := first_turn_of(*given)) is not None:
                probe = Probe(ledger.model, ledger.tenant, ledger.traffic_class, turn)
                found = await self._semantic.look(probe, versions)
                kept = None if found is None else self._kept.get(found[1])
                hit = None if found is None or kept is None else Hit(kept, found[0])
            result = "miss" if hit is None else "hit" if hit.similarity is None else "alike"
            self._lookups.values[ledger.model, result] += 1
            client.carry(CACHE_HEADER, result)
            if hit is not None:
                return hit
        client.recording = recording = Recording(self.reserve)
        ledger.on_closed = partial(self._judge, meaning, probe, recording, ledger, replicas)
        return None

    async def give(self, hit: Hit, client: Connection) -> None:
        """Answers a client with it."""
        flow, kept, now = client.flow, hit.answer, time.monotonic()
        ledger = flow.ledger
        age_s = now - kept.kept_s
        facts: dict[str, object] = {"prompt_tokens": kept.prompt_tokens, "output_tokens": kept.output_tokens}
        if hit.similarity is not None:
            facts["similarity"] = round(hit.similarity, 4)
        reason = "same" if hit.similarity is None else "alike"
        ledger.decide(RequestVerdict.CACHED, reason, now, age_s=round(age_s, 3), **facts)
        streams = any(value.startswith(b"text/event-stream") for _, value in kept.head)
        client.carry(b"age", str(int(age_s)))
        flow.wait_for(Awaited.CLIENT, now)
        await client.start(200, [*kept.head, *(() if streams else sized(kept.body)), *answer_headers(ledger)])
        await client.finish(kept.body)
        self._saved.values[ledger.model, "in"] += kept.prompt_tokens
        self._saved.values[ledger.model, "out"] += kept.output_tokens

    def reserve(self, held: int, more: int) -> bool:
        """Room for `more` bytes of an answer that has `held`; a negative number gives back."""
        if more > 0 and held + more + self._entry_bytes > self.settings.max_bytes // _SHARE:
            return False
        self._recorded += more
        with suppress(KeyError):  # the last may grow too old at this moment
            while self._kept and self._kept.currsize + self._recorded > self.settings.max_bytes:
                self._kept.popitem()
        if self._recorded > self.settings.max_bytes:
            self._recorded -= more
            return False
        return True

    def sweep(self) -> None:
        """Forgets what is too old."""
        self._kept.expire()

    @property
    def size(self) -> int:
        """Bytes of all answers, with those that are being written down."""
        return int(self._kept.currsize) + self._recorded

    def samples(self) -> Iterator[Sample]:
        yield from self._lookups.samples()
        yield from self._saved.samples()
        yield table.CACHE_BYTES, (), self.size
        if self._semantic is not None:
            yield from self._semantic.samples()

    def _judge(
        self, meaning: Meaning, probe: Probe | None, recording: Recording, ledger: Ledger, replicas: Replicas
    ) -> None:
        body, done = bytes(recording.body or b""), ledger.usage
        version = replicas.version_of(ledger.replica_id or "")
        recording.give_up()
        if body and version and done is not None and done.sequences and is_untouched(ledger) and not cut_off(body):
            head = [one for one in recording.head if one[0] in _HEAD]
            kept = KeptAnswer(head, body, done.prompt_tokens, done.output_tokens, time.monotonic())
            self._kept[version, meaning.digest] = kept
            if self._semantic is not None and probe is not None:
                self._semantic.add(probe, (version, meaning.digest))
                self._semantic.prune(len(self._kept))


def is_untouched(ledger: Ledger) -> bool:
    """Whether a request of this cell got what it had asked for, of a replica of this cell."""
    whole = ledger.outcome is RequestOutcome.OK and ledger.status == 200 and ledger.peer is None
    return whole and all(one.verdict in _UNTOUCHED for one in ledger.decisions)


def cut_off(body: bytes) -> bool:
    return any(mark in body for mark in _CUT_OFF)
