"""Which replicas have which prompt prefixes cached, as far as the gateway can know: what it sent where, bounded per replica.

A prompt is cut into chunks; each chunk's hash chains the one before, so a hash names a whole prefix. The longest known one is found by bisection,
since where a prefix is known its shorter ones are too (eviction takes the least recently used hash, which keeps that true but for rare gaps; a gap
only makes a credit smaller). What the engine really had cached teaches `trust`, which scales every credit.
"""

from collections import OrderedDict

_TRUST_WEIGHT = 0.02


class PrefixIndex:
    """Prefix hashes by replica (some 400 bytes a hash), no more of each than its KV cache can hold."""

    def __init__(self) -> None:
        self.trust = 1.0
        self._by_hash: dict[int, set[str]] = {}
        self._by_replica: dict[str, OrderedDict[int, None]] = {}

    def longest(self, prefix: tuple[int, ...]) -> tuple[int, frozenset[str]]:
        """How many leading chunks some replica knows, and which replicas know that many."""
        if not prefix or prefix[0] not in self._by_hash:
            return 0, frozenset()
        low, high = 0, len(prefix) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if prefix[middle] in self._by_hash:
                low = middle
            else:
                high = middle - 1
        return low + 1, frozenset(self._by_hash[prefix[low]])

    def known(self, prefix: tuple[int, ...], replica_id: str) -> int:
        """How many leading chunks that replica knows."""
        known = self._by_replica.get(replica_id)
        if not known or not prefix or prefix[0] not in known:
            return 0
        low, high = 0, len(prefix) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if prefix[middle] in known:
                low = middle
            else:
                high = middle - 1
        return low + 1

    def add(self, prefix: tuple[int, ...], replica_id: str, most: int) -> None:
        """The prompt with that prefix goes to the replica, whose cache holds `most` chunks: what it had before them is evicted."""
        known = self._by_replica.setdefault(replica_id, OrderedDict())
        # From the longest to the shortest, so that the shortest, which most prompts share, are the last to be evicted.
        for chunk in reversed(prefix):
            if chunk in known:
                known.move_to_end(chunk)
            else:
                known[chunk] = None
                self._by_hash.setdefault(chunk, set()).add(replica_id)
        while len(known) > max(1, most):
            self._drop(known.popitem(last=False)[0], replica_id)

    def forget(self, replica_id: str) -> None:
        """The replica is gone, and its cache with it."""
        for chunk in self._by_replica.pop(replica_id, ()):
            self._drop(chunk, replica_id)

    def observe(self, credited_tokens: int, cached_tokens: int) -> None:
        """The engine had `cached_tokens` of a prompt cached for which `credited_tokens` were expected before `trust`."""
        if credited_tokens > 0:
            self.trust += _TRUST_WEIGHT * (min(1.0, cached_tokens / credited_tokens) - self.trust)

    def _drop(self, chunk: int, replica_id: str) -> None:
        holders = self._by_hash[chunk]
        holders.discard(replica_id)
        if not holders:
            del self._by_hash[chunk]
