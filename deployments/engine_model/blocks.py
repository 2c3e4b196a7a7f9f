"""The KV blocks of an engine: who has how many, and how many sequences in lockstep will need.

Sequences that decode advance together, a token a step, and each needs a new block every `block_tokens` steps. Those
that need one in the same steps are counted together (`_phases`): a sequence of L tokens at step s is of phase (L -
s) modulo a block's tokens, and needs a block in the steps s with phase + s = 0. So the blocks of a run have a closed
form.
"""

from collections import OrderedDict

from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.sequence import Sequence


class PrefixCache:
    """Chunks of `chunk_blocks` blocks each."""

    def __init__(self, chunk_blocks: int) -> None:
        self.chunk_blocks = chunk_blocks
        self._users: dict[int, int] = {}
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
            elif chunk not in self._users:
                break
            found += 1
        return found, unused

    def hold(self, prefix: tuple[int, ...], count: int) -> None:
        """A sequence uses the first `count` chunks, which are there."""
        for chunk in prefix[:count]:
            if chunk in self._unused:
                del self._unused[chunk]
            self._users[chunk] = self._users.get(chunk, 0) + 1

    def keep(self, prefix: tuple[int, ...], since: int) -> int:
        """A sequence has computed its prompt: its chunks from `since` on are shared from now on, up to the first that
        another put there meanwhile.

        Returns how many chunks it holds now.
        """
        held = since
        for chunk in prefix[since:]:
            if chunk in self._users or chunk in self._unused:
                break
            self._users[chunk] = 1
            held += 1
        return held

    def leave(self, prefix: tuple[int, ...], count: int) -> int:
        """A sequence ends that held `count` chunks. Returns how many of them nobody holds any more."""
        released = 0
        for chunk in reversed(prefix[:count]):  # the end of a prompt is given up first
            self._users[chunk] -= 1
            if not self._users[chunk]:
                del self._users[chunk]
                self._unused[chunk] = None
                released += 1
        return released

    def evict(self, blocks: int) -> None:
        """So many blocks are wanted by others."""
        for _ in range(-(-blocks // self.chunk_blocks)):
            self._unused.popitem(last=False)


class Blocks:
    """`free`: blocks that nobody uses, those that the prefix cache remembers among them."""

    def __init__(self, limits: EngineModelLimits) -> None:
        self.total = self.free = limits.kv_tokens // limits.block_tokens
        self.decodes = 0
        """Sequences that decode."""
        self._size = limits.block_tokens
        self._chunk_tokens = limits.chunk_tokens
        self._phases = [0] * limits.block_tokens
        self._prefixes = PrefixCache(limits.chunk_tokens // limits.block_tokens) if limits.chunk_tokens else None

    def count(self, tokens: int) -> int:
        return -(-tokens // self._size)

    def join(self, tokens: int, step: int) -> None:
        """A sequence with so many tokens decodes from that step on."""
        self._phases[(tokens - step) % self._size] += 1
        self.decodes += 1

    def part(self, tokens: int, step: int) -> None:
        """One that had so many tokens at that step decodes no more."""
        self._phases[(tokens - step) % self._size] -= 1
        self.decodes -= 1

    def needed(self, step: int, steps: int) -> int:
        """How many the sequences that decode need in so many steps from `step` on."""
        cycles, rest = divmod(steps, self._size)
        return cycles * self.decodes + sum(self._phases[-(step + ahead) % self._size] for ahead in range(rest))

    def fitting(self, step: int, steps: int) -> int:
        """For how many of so many steps there are blocks; at least 1."""
        if self.free >= self.decodes * -(-steps // self._size):
            return steps
        fitting = self.free // self.decodes * self._size  # a cycle takes a block of each
        while fitting < steps and self.needed(step, fitting + 1) <= self.free:
            fitting += 1
        return max(1, min(steps, fitting))

    def take(self, blocks: int, spare: int) -> None:
        """So many are in use from now on, and `spare` remain beyond what the next step's decodes need: no more can
        remember chunks."""
        self.free -= blocks
        self.forget(spare)

    def forget(self, spare: int) -> None:
        """Chunks give way where fewer blocks are left than remember one."""
        if self._prefixes is not None and self._prefixes.unused_blocks > spare:
            self._prefixes.evict(self._prefixes.unused_blocks - spare)

    def give_back(self, sequence: Sequence, tokens: int) -> None:
        """A sequence leaves that has so many tokens. Chunks that others hold too stay in use; those that nobody holds
        are free, and remembered."""
        self.free += self.count(tokens)
        if self._prefixes is not None and sequence.held:
            released = self._prefixes.leave(sequence.prefix, sequence.held)
            self.free -= (sequence.held - released) * self._prefixes.chunk_blocks
            sequence.held = 0

    def lookup(self, sequence: Sequence) -> tuple[int, int]:
        """How many chunks of its prompt a waiting sequence finds in the prefix cache, and how many blocks of these are
        free as yet."""
        if self._prefixes is None or not sequence.prefix:
            return 0, 0
        usable = (sequence.prompt - 1) // self._chunk_tokens  # one token at least is computed, to sample from
        held, unused = self._prefixes.match(sequence.prefix[:usable])
        return held, unused * self._prefixes.chunk_blocks

    def hold(self, sequence: Sequence, chunks: int) -> None:
        sequence.held = chunks
        if self._prefixes is not None and chunks:
            self._prefixes.hold(sequence.prefix, chunks)

    def keep(self, sequence: Sequence) -> None:
        """Its prompt is computed: its chunks can be shared from now on."""
        if self._prefixes is not None and sequence.prefix:
            sequence.held = self._prefixes.keep(sequence.prefix, sequence.held)
