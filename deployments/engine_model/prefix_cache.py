"""The engine's prefix cache: chunks of prompts whose KV blocks are kept until others need the room, the one unused longest first (vLLM's order).

A chunk that a running sequence uses is held; the rest are free blocks that happen to remember something. Chunks are known by hashes that stand for
all before them too, so a prompt's first unknown chunk ends what it can use.
"""

from collections import OrderedDict


class PrefixCache:
    """Chunks of `chunk_blocks` blocks each."""

    def __init__(self, chunk_blocks: int) -> None:
        self.chunk_blocks = chunk_blocks
        self._holders: dict[int, int] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()

    @property
    def unused_blocks(self) -> int:
        """Blocks of chunks that no sequence holds: they can be had for the asking."""
        return len(self._unused) * self.chunk_blocks

    def match(self, prefix: tuple[int, ...]) -> tuple[int, int]:
        """How many leading chunks are there, and how many of these are unused as yet."""
        found = unused = 0
        for chunk in prefix:
            if chunk in self._unused:
                unused += 1
            elif chunk not in self._holders:
                break
            found += 1
        return found, unused

    def hold(self, prefix: tuple[int, ...], count: int) -> None:
        """A sequence uses the first `count` chunks, which are there."""
        for chunk in prefix[:count]:
            if chunk in self._unused:
                del self._unused[chunk]
            self._holders[chunk] = self._holders.get(chunk, 0) + 1

    def keep(self, prefix: tuple[int, ...], since: int) -> int:
        """A sequence has computed its prompt: its chunks from `since` on are shared from now on, up to the first that another put there meanwhile.

        Returns how many chunks it holds now.
        """
        held = since
        for chunk in prefix[since:]:
            if chunk in self._holders or chunk in self._unused:
                break
            self._holders[chunk] = 1
            held += 1
        return held

    def leave(self, prefix: tuple[int, ...], count: int) -> int:
        """A sequence ends that held `count` chunks. Returns how many of them nobody holds any more."""
        released = 0
        for chunk in reversed(prefix[:count]):  # the end of a prompt is given up first
            self._holders[chunk] -= 1
            if not self._holders[chunk]:
                del self._holders[chunk]
                self._unused[chunk] = None
                released += 1
        return released

    def evict(self, blocks: int) -> None:
        """So many blocks are wanted by others."""
        for _ in range(-(-blocks // self.chunk_blocks)):
            self._unused.popitem(last=False)
