"""What an engine puts into its steps: vLLM's scheduling, without the time that steps take (`engine.py`).

What a step does, in vLLM's order (`v1/core/sched/scheduler.py`, 0.32, priority scheduling): sequences that run decode a
token each, and those whose prompt was begun go on; where a sequence finds no free block, the one of the highest
priority number that came last is preempted: its blocks are freed, and it waits to prefill again what the prefix cache
has lost of it by then. If that is the sequence itself, those behind it are left out of the step. Unless one was
preempted, waiting ones begin, by priority and then by who came first, while the token budget, max_num_seqs and the
blocks for their whole prompt allow. A sequence whose prompt is whole samples a token in that very step. So without a
limit for long prompts (`long_prefill_tokens`) at most one is partly prefilled, that of the last to have begun.
"""

import heapq
from operator import attrgetter

from deployments.engine_model.blocks import Blocks
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.lockstep import Lockstep
from deployments.engine_model.sequence import Sequence


class StepScheduler:
    """The sequences of one engine, and the steps that they are in."""

    def __init__(self, limits: EngineModelLimits) -> None:
        self.preemptions = 0
        self.drafted = 0
        """Tokens of drafts that the planned step verifies (`speculation.py`)."""
        self.chunks: list[tuple[Sequence, int]] = []
        """The prompts that the planned step prefills, and how many of their tokens."""
        self.blocks = Blocks(limits)
        self.lockstep: Lockstep = Lockstep(self.blocks)
        self._limits = limits
        self._async, self._caching = limits.async_scheduling, limits.prefix_caching
        self._drafts = limits.speculation is not None
        self._waiting: list[tuple[int, int, Sequence]] = []
        """A heap, by priority and then by who came first."""
        self._late: list[Sequence] = []
        """Those that came after the step that is planned was scheduled."""
        self._leaving: list[Sequence] = []
        """With asynchronous scheduling: those that have ended, until the step that did not know it is planned."""
        self._running: dict[int, Sequence] = {}
        """All that run, by and in the order in which they began."""
        self._partial: list[Sequence] = []
        """Those of them whose prompt is not whole, in the same order."""
        self._preempting = False
        """Whether the step that is planned has preempted."""
        self._left_out: list[Sequence] = []
        """Those that decode, but not in the step that is planned."""
        self._orders = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._late)

    @property
    def full(self) -> bool:
        """Whether nothing begins before something ends."""
        return len(self._running) >= self._limits.sequences

    def wait(self, sequence: Sequence, late: bool = False) -> None:
        """A sequence came, `late` for the step that is planned next."""
        if late:
            self._late.append(sequence)
        else:
            heapq.heappush(self._waiting, (sequence.priority, sequence.came, sequence))

    def runs(self, sequence: Sequence) -> bool:
        return self._running.get(sequence.order) is sequence

    def drop(self, sequence: Sequence) -> None:
        """A sequence was given up, between two steps if it runs."""
        if self.runs(sequence):
            self._leave(sequence)
        elif sequence in self._late:
            self._late.remove(sequence)
        elif (entry := (sequence.priority, sequence.came, sequence)) in self._waiting:
            self._waiting.remove(entry)
            heapq.heapify(self._waiting)

    def schedule(self, seen_s: float) -> int:
        """Plans the next step, as of `seen_s`: its `chunks`; or, if there are none, for how many steps the same
        sequences decode. 0: none does, or there are chunks."""
        self._preempting = False
        if self._left_out:
            for sequence in self._left_out:
                if self.runs(sequence):
                    self.lockstep.join(sequence)
            self._left_out.clear()
        limit = self._limits.long_prefill_tokens
        if not limit or len(self._running) + len(self._waiting) <= 1:
            limit = self._limits.step_tokens
        budget = self._go_on(limit)
        if self._waiting and not self._preempting:
            self._admit(budget, limit, seen_s)
        if self.chunks:
            self.blocks.free -= self.blocks.needed(self.lockstep.step, 1)
        if self.chunks or not self.blocks.decodes:
            return 0
        # the step after the next one may know of something that the next one does not
        soon = self._late or (self._leaving and (self._waiting or any(one.decodes for one in self._leaving)))
        return 1 if self._preempting or self._left_out or soon else self.lockstep.longest_run()

    def settle(self) -> bool:
        """The step that was just planned did not know of some; the next one does. True: if that step was empty, the
        next one may not be."""
        if not self._leaving and not self._late:
            return bool(self._left_out) or self._preempting
        for sequence in self._leaving:
            if self.runs(sequence):
                self._leave(sequence, 1 if self.chunks and sequence.decodes else 0)
        for sequence in self._late:
            self.wait(sequence)
        self._leaving, self._late = [], []
        return bool(self._waiting) or bool(self._left_out)

    def end_run(self, steps: int) -> tuple[Sequence, ...]:
        """A run of decodes is over; returns those that end with it."""
        self.blocks.free -= self.blocks.needed(self.lockstep.step, steps)
        if self._caching:
            self.blocks.forget(self.blocks.free)
        self.lockstep.advance(steps)
        return self._ended([])

    def end_step(self, now: float) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """A step with prompts is over; returns those that have their first token, and those that end with it."""
        self.lockstep.advance(1)
        first, whole = [], []
        for sequence, tokens in self.chunks:
            sequence.past += tokens
            sequence.left -= tokens
            if sequence.left or sequence.gone:
                continue
            if sequence in self._partial:
                self._partial.remove(sequence)
            if sequence.first_s is None:
                sequence.first_s = now
                first.append(sequence)
            sequence.done += 1
            sequence.known = sequence.past
            if sequence.done >= sequence.output:
                whole.append(sequence)
            else:
                self.lockstep.join(sequence)
        self.chunks = []
        return tuple(first), self._ended(whole)

    def _ended(self, ended: list[Sequence]) -> tuple[Sequence, ...]:
        """Those whose last token is sampled by now, `ended` among them, in the order in which they began."""
        ended += self.lockstep.ended()
        ended.sort(key=_order)
        for sequence in ended:
            sequence.gone = True
            if not self._async:
                self._leave(sequence)
            else:
                self._leaving.append(sequence)
                if sequence.decodes and self.lockstep.foreseen(sequence):
                    self.lockstep.part(sequence)
                elif not sequence.decodes and sequence.open_ended:
                    self.lockstep.join(sequence)
        return tuple(ended)

    def _leave(self, sequence: Sequence, reserved: int = 0, known: int | None = None) -> None:
        """Its place is free, and its blocks, with those for `reserved` tokens more than it has; the prefix cache knows
        `known` of them, if not all that it can."""
        del self._running[sequence.order]
        if sequence.decodes:
            self.lockstep.part(sequence)
        elif self._partial and sequence in self._partial:
            self._partial.remove(sequence)
        if known is None:
            drafted = not self._async and not sequence.left and sequence.known < sequence.past
            known = sequence.known + 1 if drafted else sequence.past
        self.blocks.give_back(sequence, max(sequence.room, sequence.past + reserved), known)
        sequence.room = 0

    def _go_on(self, limit: int) -> int:
        """Those that run go on. Returns how many tokens the step has room for beside them."""
        blocks = self.blocks
        needed, budget = blocks.needed(self.lockstep.step, 1), self._limits.step_tokens - blocks.decodes
        self.chunks = []
        if not self._partial and needed <= blocks.free:
            if self._caching:
                blocks.forget(blocks.free - needed)
            return budget
        for sequence in self._partial:
            tokens = min(sequence.left, limit)
            if tokens > budget:
                if sequence.order != self._orders:  # others come behind it
                    return self._one_by_one(limit)
                tokens = budget
            budget -= tokens
            needed += blocks.count(sequence.past + tokens) - blocks.count(sequence.past)
            self.chunks.append((sequence, tokens))
        if needed > blocks.free:
            return self._one_by_one(limit)
        blocks.forget(blocks.free - needed)
        self._take_chunks()
        return budget

    def _take_chunks(self) -> None:
        for sequence, tokens in self.chunks:
            self.blocks.free -= self.blocks.count(sequence.past + tokens) - self.blocks.count(sequence.past)
            self.blocks.remember(sequence, sequence.past + tokens)

    def _one_by_one(self, limit: int) -> int:
        """The same as vLLM does it, where tokens or blocks do not suffice for all."""
        blocks, budget = self.blocks, self._limits.step_tokens
        running, index, taken = list(self._running.values()), 0, 0
        granted: dict[Sequence, tuple[int, int]] = {}
        while index < len(running) and budget > 0:
            sequence = running[index]
            if sequence.gone and not sequence.decodes:
                index += 1
                continue
            tokens, needed = self._share(sequence, min(limit, budget))
            while needed > blocks.free - taken:
                victim = max(running, key=_last_in_line)
                place = running.index(victim)
                del running[place]
                index -= place < index
                freed, room = granted.pop(victim, (0, 0))
                budget, taken = budget + freed, taken - room
                self._preempt(victim, freed)
                if victim is sequence:
                    break
            else:
                granted[sequence] = tokens, needed
                budget, taken = budget - tokens, taken + needed
                blocks.forget(blocks.free - taken)
                index += 1
                continue
            break
        for sequence in running[index:]:
            if sequence.decodes:
                self.lockstep.part(sequence)
                self._left_out.append(sequence)
        self.chunks = [(one, tokens) for one, (tokens, _) in granted.items() if not one.decodes]
        self._take_chunks()
        self._decoding(granted)
        return budget

    def _share(self, sequence: Sequence, limit: int) -> tuple[int, int]:
        """How many tokens of a sequence that runs are to be in the step, and the blocks that it lacks for them."""
        past = sequence.past + (self.lockstep.step - sequence.start_step if sequence.decodes else 0)
        tokens = 1 if sequence.decodes else min(sequence.left, limit)
        return tokens, self.blocks.count(past + tokens) - self.blocks.count(past)

    def _decoding(self, granted: dict[Sequence, tuple[int, int]]) -> None:
        """Those that go on have so many tokens and blocks."""

    def _preempt(self, sequence: Sequence, granted: int) -> None:
        """It leaves, and waits unless it has ended. `granted`: the tokens that the step had for it."""
        self.preemptions += 1
        self._preempting = True
        if not sequence.decodes and not sequence.gone:
            self._leave(sequence, 0, sequence.past + granted)
        else:
            if sequence.decodes:
                self.lockstep.part(sequence)
            full = sequence.past + 1 if granted and not self._async else sequence.known
            if self._async == (granted > 0) and sequence.known < sequence.past:
                full += 1
            self._leave(sequence, 0, full)
        if not sequence.gone:
            sequence.left, sequence.past = sequence.prompt + sequence.done, 0
            self.wait(sequence)

    def _admit(self, budget: int, limit: int, seen_s: float) -> None:
        """Waiting sequences begin."""
        blocks, waiting = self.blocks, self._waiting
        reserved = blocks.needed(self.lockstep.step, 1)
        while waiting and budget > 0 and len(self._running) < self._limits.sequences:
            sequence = waiting[0][2]
            tokens = sequence.prompt + sequence.done
            ranges, found = blocks.find(sequence) if self._caching else ([], 0)
            past = found * self._limits.block_tokens or sequence.past
            chunk = min(tokens - past, limit)
            beyond = self._beyond(past, tokens - past, budget) if self._drafts else 0
            if beyond < 0 or (chunk > budget and not self._limits.chunked_prefill):
                break
            revived = sum(range_.blocks for range_ in ranges if not range_.users) if ranges else 0
            chunk = min(chunk, budget)
            room = past + chunk + beyond
            if blocks.count(max(tokens, room)) - found + revived > blocks.free - reserved:
                break
            heapq.heappop(waiting)
            if ranges:
                blocks.hold(sequence, ranges, found)
            blocks.free -= blocks.count(room) - found
            if self._caching:
                blocks.forget(blocks.free - reserved)
                blocks.remember(sequence, past + chunk)
            self._orders += 1
            sequence.order = self._orders
            self._running[sequence.order] = sequence
            if sequence.begun_s is None:
                sequence.begun_s = max(seen_s, sequence.added_s)
                sequence.cached = past
            sequence.past, sequence.left = past, tokens - past
            self.chunks.append((sequence, chunk))
            budget -= chunk if not self._drafts else self._begun(sequence, chunk, room)
            if chunk < sequence.left:
                self._partial.append(sequence)

    def _beyond(self, past: int, left: int, budget: int) -> int:
        """Tokens beyond its own for which one that begins needs blocks; negative: the budget does not suffice."""
        raise NotImplementedError

    def _begun(self, sequence: Sequence, tokens: int, room: int) -> int:
        """It has begun, with so much room. Returns how many tokens of the step's it takes."""
        raise NotImplementedError


_order = attrgetter("order")
_last_in_line = attrgetter("priority", "came")
