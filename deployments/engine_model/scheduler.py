"""What an engine puts into its steps: vLLM's scheduling, without the time that steps take (`engine.py`).

What a step does, in vLLM's order (`v1/core/sched/scheduler.py`, 0.32, priority scheduling): sequences that run decode a
token each, and the one whose prompt was begun goes on; where a sequence finds no free block, the one of the highest
priority number that came last is preempted: its blocks are freed, and it waits to prefill all of its tokens again.
Unless one was, waiting ones begin, by priority and then by who came first, while the token budget, max_num_seqs and the
blocks for their whole prompt allow. A sequence whose prompt is whole samples a token in that very step. So at most one
prompt is partly prefilled, and it is that of the last sequence to have begun.

With asynchronous scheduling (`limits.async_scheduling`; `v1/engine/core.py`, `step_with_batch_queue`) step N + 1 is
scheduled when step N begins. So it does not know of requests that came during step N, and sequences that end with step
N still hold their place and their blocks: both count from step N + 2 on. Sequences whose end is not known beforehand
(`Sequence.open_ended`) are scheduled once more, in vain. A step with nothing in it takes no time.
"""

import heapq

from deployments.engine_model.blocks import Blocks
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.sequence import Sequence


class StepScheduler:
    """The sequences of one engine, and the steps that they are in."""

    def __init__(self, limits: EngineModelLimits) -> None:
        self.preemptions = 0
        self.chunks: list[tuple[Sequence, int]] = []
        """The prompts that the planned step prefills, and how many of their tokens."""
        self.kv = 0
        """Tokens that the sequences that decode have in the KV cache."""
        self.blocks = Blocks(limits)
        self._limits = limits
        self._async = limits.async_scheduling
        self._waiting: list[tuple[int, int, Sequence]] = []
        """A heap, by priority and then by who came first."""
        self._late: list[Sequence] = []
        """Those that came after the step that is planned was scheduled."""
        self._leaving: list[Sequence] = []
        """With asynchronous scheduling: those that have ended, until the step that did not know it is planned."""
        self._running: dict[int, Sequence] = {}
        """All that run, by and in the order in which they began."""
        self._partial: Sequence | None = None
        """The last of them, while its prompt is not whole."""
        self._ends: list[tuple[int, int, Sequence]] = []
        self._orders = 0
        self._step = 0

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
        before = self.preemptions
        while self.blocks.needed(self._step, 1) > self.blocks.free:
            self._preempt()
        self.chunks = self._pack(before, seen_s)
        if self.chunks:
            self.blocks.free -= self.blocks.needed(self._step, 1)
            return 0
        if not self.blocks.decodes:
            return 0
        return 1 if self.preemptions > before or self._changes_soon() else self._longest_run()

    def settle(self) -> bool:
        """The step that was just planned did not know of some; the next one does. True: one of them, or another,
        waits."""
        if not self._leaving and not self._late:
            return False
        for sequence in self._leaving:
            if self.runs(sequence):
                self._leave(sequence, 1 if self.chunks else 0)
        for sequence in self._late:
            self.wait(sequence)
        self._leaving.clear()
        self._late.clear()
        return bool(self._waiting)

    def end_run(self, steps: int) -> tuple[Sequence, ...]:
        """A run of decodes is over; returns those that end with it."""
        decodes = self.blocks.decodes
        needed = self.blocks.needed(self._step, steps)
        self.blocks.take(needed, self.blocks.free - needed)
        self._step += steps
        self.kv += steps * decodes
        return tuple(self._finished())

    def end_step(self, now: float) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """A step with prompts is over; returns those that have their first token, and those that end with it."""
        self._step += 1
        self.kv += self.blocks.decodes
        first, finished = [], self._finished()
        for sequence, tokens in self.chunks:
            sequence.past += tokens
            sequence.left -= tokens
            if sequence.left or sequence.gone:
                continue
            if sequence is self._partial:
                self._partial = None
            if sequence.first_s is None:
                sequence.first_s = now
                first.append(sequence)
            if self._begin_decode(sequence):
                finished.append(sequence)
        self.chunks = []
        return tuple(first), tuple(finished)

    def _begin_decode(self, sequence: Sequence) -> bool:
        """The prompt is whole: a token was sampled. True: it was the last."""
        sequence.done += 1
        self.blocks.keep(sequence)
        ends = sequence.done >= sequence.output
        if not ends or (self._async and sequence.open_ended):
            sequence.start_step = self._step
            sequence.finish_step = self._step + sequence.output - sequence.done
            sequence.decodes = True
            self.blocks.join(sequence.past, self._step)
            self.kv += sequence.past
        if ends:
            self._end(sequence)
        else:
            heapq.heappush(self._ends, (sequence.finish_step, sequence.order, sequence))
        return ends

    def _finished(self) -> list[Sequence]:
        """Those whose last token is sampled by now."""
        ends, ended = self._ends, []
        while ends and ends[0][0] <= self._step:
            _, order, sequence = heapq.heappop(ends)
            if self._running.get(order) is sequence and not sequence.gone:
                sequence.done = sequence.output
                ended.append(sequence)
                self._end(sequence)
        return ended

    def _end(self, sequence: Sequence) -> None:
        sequence.gone = True
        if not self._async:
            self._leave(sequence)
            return
        if sequence.decodes and not sequence.open_ended:
            self._stop_decoding(sequence)
        self._leaving.append(sequence)

    def _leave(self, sequence: Sequence, reserved: int = 0) -> None:
        """Its place and its blocks are free. One that decodes has `reserved` tokens' room beyond what it computed."""
        del self._running[sequence.order]
        if sequence is self._partial:
            self._partial = None
        if sequence.decodes:
            self._stop_decoding(sequence)
            self.blocks.give_back(sequence, sequence.past + reserved)
        else:
            self.blocks.give_back(sequence, sequence.past)

    def _stop_decoding(self, sequence: Sequence) -> None:
        self.blocks.part(sequence.past, sequence.start_step)
        sequence.past += self._step - sequence.start_step
        sequence.decodes = False
        self.kv -= sequence.past

    def _changes_soon(self) -> bool:
        """Whether the step after the next one knows of something that the next one does not."""
        return bool(self._late) or (
            bool(self._leaving) and (bool(self._waiting) or any(one.decodes for one in self._leaving))
        )

    def _longest_run(self) -> int:
        ends = self._ends
        while (
            self._running.get(ends[0][1]) is not ends[0][2] or ends[0][2].gone or ends[0][2].finish_step != ends[0][0]
        ):
            heapq.heappop(ends)
        return self.blocks.fitting(self._step, ends[0][0] - self._step)

    def _preempt(self) -> Sequence:
        """The last in line leaves, and waits unless it has ended; returns it."""
        sequence = max(self._running.values(), key=lambda one: (one.priority, one.came))
        self.preemptions += 1
        if sequence.decodes and not sequence.gone:
            sequence.done += self._step - sequence.start_step
        self._leave(sequence)
        if not sequence.gone:
            sequence.left, sequence.past, sequence.cached = sequence.prompt + sequence.done, 0, 0
            self.wait(sequence)
        return sequence

    def _pack(self, preemptions: int, seen_s: float) -> list[tuple[Sequence, int]]:
        """The prompts, and how many of their tokens, that the next step prefills; their blocks are taken. None begins
        where `preemptions` grew."""
        budget = self._limits.step_tokens - self.blocks.decodes
        self.blocks.forget(self._spare)
        packed: list[tuple[Sequence, int]] = []
        partial = self._partial
        if partial is not None:
            tokens = min(partial.left, budget)
            blocks = self.blocks.count(partial.past + tokens) - self.blocks.count(partial.past)
            while blocks > self._spare and self._preempt() is not partial:
                pass
            if partial is self._partial:
                packed.append((partial, tokens))
                budget -= tokens
                self.blocks.take(blocks, self._spare - blocks)
        while (
            self._waiting
            and self.preemptions == preemptions
            and budget > 0
            and len(self._running) < self._limits.sequences
        ):
            sequence = self._waiting[0][2]
            if not self._begin(sequence, budget, packed):
                break
            if sequence.begun_s is None:
                sequence.begun_s = max(seen_s, sequence.added_s)
            heapq.heappop(self._waiting)
            budget -= packed[-1][1]
        return packed

    @property
    def _spare(self) -> int:
        """Free blocks beyond those that the next step's decodes need."""
        return self.blocks.free - self.blocks.needed(self._step, 1)

    def _begin(self, sequence: Sequence, budget: int, packed: list[tuple[Sequence, int]]) -> bool:
        """A waiting sequence begins with what the budget lets it prefill, if there are blocks for its whole prompt.
        False: there are not."""
        blocks, tokens = self.blocks, sequence.prompt + sequence.done
        held, unused = blocks.lookup(sequence)
        shared = held * self._limits.chunk_tokens
        past, spare = max(shared, sequence.past), self._spare
        if blocks.count(tokens) - blocks.count(shared) + unused > spare:
            return False
        chunk = min(tokens - past, budget)
        taken = blocks.count(past + chunk) - blocks.count(shared) + unused
        self._orders += 1
        sequence.order = self._orders
        sequence.past = sequence.cached = past
        sequence.left = tokens - past
        self._running[sequence.order] = sequence
        blocks.hold(sequence, held)
        blocks.take(taken, spare - taken)
        packed.append((sequence, chunk))
        if chunk < sequence.left:
            self._partial = sequence
        return True
