"""The KV blocks of an engine: who has how many, what the prefix cache remembers, and how many blocks sequences in
lockstep will need.

Sequences that decode advance together, a token a step, and each needs a new block every `block_tokens` steps. Those
that need one in the same steps are counted together (`_phases`): a sequence of L tokens at step s is of phase (L -
s) modulo a block's tokens, and needs a block in the steps s with phase + s = 0. So the blocks of a run have a closed
form.

The prefix cache is vLLM's (`v1/core/block_pool.py`, 0.32): a block that is full is remembered by its content from the
step on that computes it; blocks that nobody uses any more keep their content until they are needed, the one that was
given up first goes first, and of one sequence the last block first. Blocks that were not full are used up before them.
A block that two sequences compute at the same time exists twice. Blocks that follow one another are kept together
(`BlockRange`): a chunk of a prefix whose hash the workload knows, or all that belongs to one sequence alone.
"""

from collections import OrderedDict

from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.sequence import BlockRange, Sequence


class PrefixCache:
    """Extents of chunks of `chunk_blocks` blocks each, and those that belong to one sequence."""

    def __init__(self, chunk_blocks: int) -> None:
        self.chunk_blocks = chunk_blocks
        self.unused_blocks = 0
        """Blocks of ranges that no sequence holds: they can be had for the asking."""
        self._unused: OrderedDict[BlockRange, None] = OrderedDict()
        self._by_hash: dict[int, list[BlockRange]] = {}

    def find(self, sequence: Sequence, blocks: int) -> tuple[list[BlockRange], int]:
        """The ranges with the leading blocks of a sequence, up to so many, and how many blocks it finds there."""
        found, position, size = list[BlockRange](), 0, self.chunk_blocks
        for number, key in enumerate(sequence.prefix):
            end = (number + 1) * size
            while position < min(end, blocks):
                range_ = self._holding(key, position % size)
                if range_ is None:
                    return found, position
                found.append(range_)
                position += range_.start + range_.blocks - position % size
            if position < end:
                break
        for range_ in sequence.own if position == len(sequence.prefix) * size else ():
            if range_.start != position or not range_.blocks or position >= blocks:
                break
            found.append(range_)
            position += range_.blocks
        if position > blocks and not found[-1].users:
            self._split(found[-1], position - blocks, sequence)
        return found, min(position, blocks)

    def _split(self, range_: BlockRange, blocks: int, sequence: Sequence) -> None:
        """The last blocks of a range that nobody holds become one of their own, which is evicted before it."""
        tail = BlockRange(range_.key, range_.start + range_.blocks - blocks, blocks)
        tail.users = 0
        range_.blocks -= blocks
        if range_.key is None:
            sequence.own.insert(sequence.own.index(range_) + 1, tail)
        else:
            self._by_hash[range_.key].append(tail)
        order = list(self._unused)
        self._unused = OrderedDict.fromkeys(
            one for old in order for one in ((tail, range_) if old is range_ else (old,))
        )

    def _holding(self, key: int, position: int) -> BlockRange | None:
        for range_ in self._by_hash.get(key, ()):
            if range_.start <= position < range_.start + range_.blocks:
                return range_
        return None

    def hold(self, ranges: list[BlockRange]) -> int:
        """A sequence uses them. Returns how many blocks of them nobody used."""
        revived = 0
        for range_ in ranges:
            if not range_.users:
                del self._unused[range_]
                revived += range_.blocks
            range_.users += 1
        self.unused_blocks -= revived
        return revived

    def remember(self, sequence: Sequence, blocks: int) -> None:
        """The first `blocks` blocks of a sequence are full, or will be after the step that is planned: those whose hash
        is known can be found from now on."""
        size = self.chunk_blocks
        blocks = min(blocks, len(sequence.prefix) * size)
        while sequence.full < blocks:
            number, start = divmod(sequence.full, size)
            count = min(size - start, blocks - sequence.full)
            last = sequence.held[-1] if sequence.held else None
            if last is not None and last.key == sequence.prefix[number] and start and sequence.full > sequence.found:
                last.blocks += count
            else:
                key = sequence.prefix[number]
                range_ = BlockRange(key, start, count)
                self._by_hash.setdefault(key, []).append(range_)
                sequence.held.append(range_)
            sequence.full += count

    def leave(self, sequence: Sequence, blocks: int) -> tuple[int, int]:
        """A sequence leaves of whose blocks so many are full. Returns how many of its ranges' blocks nobody holds any
        more, and how many blocks only it ever had in them."""
        self.remember(sequence, blocks)
        if blocks > sequence.full:
            sequence.held.append(BlockRange(None, sequence.full, blocks - sequence.full))
        computed = max(blocks, sequence.full) - sequence.found
        released = 0
        for range_ in reversed(sequence.held):  # the end is given up first
            range_.users -= 1
            if not range_.users:
                self._unused[range_] = None
                released += range_.blocks
        self.unused_blocks += released
        sequence.own = [] if sequence.gone else [range_ for range_ in sequence.held if range_.key is None]
        sequence.held, sequence.full, sequence.found = [], 0, 0
        return released, computed

    def evict(self, blocks: int) -> None:
        """So many blocks are wanted by others."""
        self.unused_blocks -= blocks
        while blocks:
            range_ = next(iter(self._unused))
            taken = min(blocks, range_.blocks)
            range_.blocks -= taken
            blocks -= taken
            if not range_.blocks:
                del self._unused[range_]
                if range_.key is not None:
                    others = self._by_hash[range_.key]
                    others.remove(range_)
                    if not others:
                        del self._by_hash[range_.key]


class Blocks:
    """`free`: blocks that nobody uses, those that the prefix cache remembers among them."""

    def __init__(self, limits: EngineModelLimits) -> None:
        self.total = self.free = limits.kv_tokens // limits.block_tokens
        self.decodes = 0
        """Sequences that decode."""
        self._size = limits.block_tokens
        self._phases = [0] * limits.block_tokens
        self._cache = PrefixCache(limits.chunk_blocks) if limits.prefix_caching else None

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
        size, phases = self._size, self._phases
        if steps == 1:
            return phases[-step % size]
        cycles, rest = divmod(steps, size)
        low = -(step + rest - 1) % size
        needed = cycles * self.decodes + sum(phases[low : low + rest])
        return needed + sum(phases[: low + rest - size]) if low + rest > size else needed

    def fitting(self, step: int, steps: int) -> int:
        """For how many of so many steps there are blocks; at least 1."""
        if self.free >= self.decodes * -(-steps // self._size):
            return steps
        fitting = self.free // self.decodes * self._size  # a cycle takes a block of each
        while fitting < steps and self.needed(step, fitting + 1) <= self.free:
            fitting += 1
        return max(1, min(steps, fitting))

    def forget(self, spare: int) -> None:
        """No more than so many blocks are left for what the prefix cache remembers."""
        if self._cache is not None and self._cache.unused_blocks > spare:
            self._cache.evict(self._cache.unused_blocks - spare)

    def find(self, sequence: Sequence) -> tuple[list[BlockRange], int]:
        """What a waiting sequence finds in the prefix cache, and how many of its blocks these are."""
        if self._cache is None:
            return [], 0
        # one token at least is computed, to sample from
        return self._cache.find(sequence, (sequence.prompt + sequence.done - 1) // self._size)

    def hold(self, sequence: Sequence, ranges: list[BlockRange], blocks: int) -> None:
        """A sequence begins with so many blocks that it found."""
        if self._cache is not None:
            self.free -= self._cache.hold(ranges)
            sequence.held, sequence.full, sequence.found = ranges, blocks, blocks

    def remember(self, sequence: Sequence, tokens: int) -> None:
        """So many tokens of a sequence are in the KV cache after the step that is planned."""
        if self._cache is not None and sequence.prefix:
            self._cache.remember(sequence, tokens // self._size)

    def give_back(self, sequence: Sequence, room: int, known: int) -> None:
        """A sequence leaves that has room for so many tokens, and of which the cache knows so many."""
        if self._cache is None:
            self.free += self.count(room)
            return
        found = sequence.found
        released, computed = self._cache.leave(sequence, known // self._size)
        self.free += self.count(room) - found - computed + released
