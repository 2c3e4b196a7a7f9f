"""Kept answers to first turns that are alike but not the same (docs/caching.md).

A pooling model of the cluster makes a vector of the text; each tenant has an index of its own. What is nearest counts
only where all else of the request is the same, to the byte, and the numbers, names and negations of both texts are
equal. In shadow, which is the default, nothing is given and no request waits: it is only counted.
"""

import asyncio
import hashlib
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import numpy as np
from numpy.typing import NDArray

from cluster.spec import SemanticSpec
from deployments.gateway.exchange import post
from deployments.openai.endpoints import BY_KIND, BodyKind
from deployments.openai.marks import marks_of
from deployments.openai.meaning import FirstTurn
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.record import QueueTimeout, Rejected
from deployments.ownership.roles import PeerLease
from deployments.scheduling import Ending, Request
from deployments.telemetry import table
from deployments.telemetry.exposition import Distribution, MetricCounts
from deployments.telemetry.table import Sample

Key = tuple[str, bytes]
"""Of a kept answer: the version of the replica that gave it, and the digest of the whole request."""
Vector = NDArray[np.float32]

_EMBED_S = 0.25
"""For so long a request waits for its vector."""
_NEAREST = 16
"""So many neighbours are looked at: some may be of other system prompts, or gone."""
_SLACK = 64


class _Embedding(msgspec.Struct):
    embedding: list[float]


class _Embeddings(msgspec.Struct):
    data: tuple[_Embedding]


async def embed(session: aiohttp.ClientSession, dispatcher: Dispatcher, text: str, traffic_class: str) -> Vector | None:
    """The vector of a text, by a replica of a pooling model, under a lease like any other work. None: there was none in
    time, or the text is too long."""
    path, now = BY_KIND[BodyKind.EMBEDDING].path, time.monotonic()
    body = msgspec.json.encode({"model": dispatcher.model.name, "input": text})
    tokens = min(dispatcher.longest_context, dispatcher.ratio.tokens(len(text), 0))
    due_s = now + _EMBED_S
    request = Request(uuid.uuid4().hex, tokens, 0, now, due_s, due_s, traffic_class=traffic_class, hops=1)
    try:
        async with asyncio.timeout(_EMBED_S):
            if not (await dispatcher.submit(request)).accepted:
                return None
            placement, ending = await dispatcher.placement(request), Ending.CANCELLED
            lease = placement.lease
            try:
                url = None if isinstance(placement, PeerLease) else dispatcher.url_of(lease)
                if url is None:
                    return None
                credentials = dispatcher.credentials(lease)
                async with await post(session, url + path, lease.attempt_id, body, credentials) as response:
                    payload, ending = await response.read(), Ending.FINISHED
                    found = msgspec.json.decode(payload, type=_Embeddings) if response.status == 200 else None
            finally:
                dispatcher.release(lease, ending)
    except (TimeoutError, aiohttp.ClientError, QueueTimeout, Rejected, msgspec.DecodeError):
        return None
    vector = np.array([] if found is None else found.data[0].embedding, np.float32)
    length = float(np.linalg.norm(vector))
    return vector if 0 < length < np.inf else None


Embed = Callable[[str, str], Awaitable[Vector | None]]
"""Makes the vector of a text for a request of that traffic class; None: there was none in time."""


@dataclass(slots=True)
class Probe:
    """A first turn that is looked for. `vector`: once it is there. `key`: once its own answer is kept."""

    model: str
    tenant: str
    traffic_class: str
    turn: FirstTurn
    vector: Vector | None = None
    key: Key | None = None

    @property
    def marks(self) -> frozenset[str]:
        """Read only of a text that has a vector: of one too long for that it would take a second."""
        return marks_of(self.turn.text)


@dataclass(frozen=True, slots=True)
class _Entry:
    key: Key
    rest: bytes
    marks: frozenset[str]


class SemanticIndex:
    """Of one gateway. `is_kept` says whether the answer of that key is still there."""

    def __init__(self, settings: SemanticSpec, embed: Embed, is_kept: Callable[[Key], bool]) -> None:
        try:
            from usearch.index import Index
        except ModuleNotFoundError as error:
            raise RuntimeError(f"gateway.cache.semantic: {error}; needed: the extra `semantic` of raylane") from error
        self.settings = settings
        self._embed = embed
        self._is_kept = is_kept
        self._looking: set[asyncio.Task[object]] = set()
        self._new_index: Callable[[int], Any] = lambda dimensions: Index(ndim=dimensions, metric="cos", dtype="f32")
        self._indexes: dict[str, Any] = {}
        self._entries: defaultdict[str, dict[int, _Entry]] = defaultdict(dict)
        self._similarity = Distribution(table.CACHE_SIMILARITY)
        self._in_shadow = MetricCounts(table.CACHE_SHADOW_HITS)

    async def look(self, probe: Probe, versions: set[str]) -> tuple[float, Key] | None:
        """What is to be given, as `nearest`; in shadow nothing, at once."""
        if not self.settings.serve:
            task = asyncio.create_task(self._look(probe, versions))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)
            return None
        return await self._look(probe, versions)

    async def _look(self, probe: Probe, versions: set[str]) -> tuple[float, Key] | None:
        probe.vector = await self._embed(probe.turn.text, probe.traffic_class)
        found, threshold = self.nearest(probe, versions), self.settings.threshold
        if probe.key is not None:
            self.add(probe, probe.key)
        if found is None or threshold is None or found[0] < threshold:
            return None
        if not self.settings.serve:
            self._in_shadow.values[probe.model,] += 1
        return found

    def nearest(self, probe: Probe, versions: set[str]) -> tuple[float, Key] | None:
        """The key of the nearest answer that may be given, and how near it is (the cosine, at most 1): of the same
        tenant, to a request with all else the same and equal marks, by a replica of one of these versions."""
        index, entries = self._indexes.get(probe.tenant), self._entries[probe.tenant]
        if probe.vector is None or index is None or index.ndim != len(probe.vector):
            return None
        matches, marks = index.search(probe.vector, _NEAREST), probe.marks
        for number, distance in zip(matches.keys.tolist(), matches.distances.tolist(), strict=True):
            entry = entries[number]
            if entry.rest != probe.turn.rest or entry.key[0] not in versions or not self._is_kept(entry.key):
                continue
            is_equal = entry.marks == marks
            self._similarity.observe((probe.model, "equal" if is_equal else "differ"), 1 - distance)
            if is_equal:
                return 1 - distance, entry.key
        return None

    def add(self, probe: Probe, key: Key) -> None:
        """Its answer is kept under that key."""
        probe.key = key
        if probe.vector is None:  # there is none, or it is still being made
            return
        index = self._indexes.get(probe.tenant)
        if index is None or index.ndim != len(probe.vector):  # the pooling model is another
            index = self._indexes[probe.tenant] = self._new_index(len(probe.vector))
            self._entries[probe.tenant] = {}
        entries = self._entries[probe.tenant]
        number = int.from_bytes(hashlib.blake2b(key[0].encode() + key[1], digest_size=7).digest())
        if number in entries:
            index.remove(number)
        index.add(number, probe.vector)
        entries[number] = _Entry(key, probe.turn.rest, probe.marks)

    def prune(self, kept: int) -> None:
        """So many answers are kept: the index has at most twice as many, and some."""
        if sum(map(len, self._entries.values())) <= 2 * kept + _SLACK:
            return
        for tenant, entries in self._entries.items():
            for number in [number for number, entry in entries.items() if not self._is_kept(entry.key)]:
                self._indexes[tenant].remove(number)
                del entries[number]

    def samples(self) -> Iterator[Sample]:
        yield from self._similarity.samples()
        yield from self._in_shadow.samples()
