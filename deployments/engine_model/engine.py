"""A simulated engine: vLLM's scheduling (continuous batching, chunked prefill within the step's token budget,
max_num_seqs, KV blocks, preemption).

The engine moves from boundary to boundary. Between two of them lies one step that prefills, or a run of steps that only
decode, whose length has a closed form (`cost_model.py`): the run ends when its first sequence is finished, when the KV
cache is full, or at the next step boundary after a request has come. So a request costs a few boundaries, however many
tokens it has.

What a step does, in vLLM's order (`v1/core/sched/scheduler.py`, 0.32, priority scheduling): sequences that run decode a
token each, and the one whose prompt was begun goes on; where a sequence finds no free block, the one of the highest
priority number that came last is preempted: its blocks are freed, and it waits to prefill all of its tokens again.
Unless one was, waiting ones begin, by priority and then by who came first, while the token budget, max_num_seqs and the
blocks for their whole prompt allow. A sequence whose prompt is whole samples a token in that very step. So at most one
prompt is partly prefilled, and it is that of the last sequence to have begun.
"""

import heapq
import math
from dataclasses import dataclass

from deployments.engine_model.blocks import Blocks
from deployments.engine_model.cost_model import Chunk, CostModel
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.sequence import ItlHistogram, Sequence


@dataclass(frozen=True, slots=True)
class Boundary:
    """What came to pass at the end of a segment: first tokens, and ends."""

    first: tuple[Sequence, ...]
    finished: tuple[Sequence, ...]


class EngineModel:
    """One engine. Whoever drives it calls `add` and `abort` as they happen and `advance` at `next_s`, in the order of
    time."""

    def __init__(self, limits: EngineModelLimits, cost: CostModel) -> None:
        self.next_s = math.inf
        """When the segment that runs ends; infinite while idle."""
        self.preemptions = 0
        self.steps = 0
        self.itl = ItlHistogram()
        self._limits = limits
        self._cost = cost
        self._waiting: list[tuple[int, int, Sequence]] = []
        """A heap, by priority and then by who came first."""
        self._came = 0
        self._running: dict[int, Sequence] = {}
        """All that run, by and in the order in which they began."""
        self._partial: Sequence | None = None
        """The last of them, while its prompt is not whole."""
        self._ends: list[tuple[int, int, Sequence]] = []
        self._kv = 0
        """Tokens that the sequences that decode have in the KV cache."""
        self._blocks = Blocks(limits)
        self._orders = 0
        self._step = 0
        self._began_s = 0.0
        self._run = 0
        """Steps of the run of decodes that is under way; 0: a step that prefills, or idle."""
        self._chunks: list[tuple[Sequence, int]] = []
        self._aborted: list[Sequence] = []

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """The share of the KV blocks in use."""
        return 1 - self._blocks.free / self._blocks.total

    def add(self, sequence: Sequence, now: float) -> None:
        """A request came. It begins at the next step boundary. Raises ValueError for one that the KV cache cannot hold
        even alone."""
        if self._blocks.count(sequence.prompt + sequence.output - 1) > self._blocks.total:
            tokens = f"{sequence.prompt} tokens of prompt and {sequence.output} of output"
            raise ValueError(f"{tokens} do not fit the KV cache of {self._limits.kv_tokens} tokens")
        full = len(self._running) >= self._limits.sequences
        self._came += 1
        sequence.came = self._came
        sequence.added_s = now
        heapq.heappush(self._waiting, (sequence.priority, sequence.came, sequence))
        if self.next_s == math.inf:
            self._plan(now)
        elif not full:
            self._cut(now)

    def abort(self, sequence: Sequence, now: float) -> None:
        """A request was given up: it ends at once, its blocks are free at the next step boundary. One that ended is no
        error."""
        if sequence.gone:
            return
        sequence.gone = True
        if sequence.order and self._running.get(sequence.order) is sequence:
            self._aborted.append(sequence)
        else:
            self._waiting.remove((sequence.priority, sequence.came, sequence))
            heapq.heapify(self._waiting)
        self._cut(now)

    def advance(self) -> Boundary:
        """Ends the segment that runs, at `next_s`, and begins the next one."""
        now = self.next_s
        boundary = self._end_run(now) if self._run else self._end_step(now)
        for sequence in self._aborted:
            if self._running.get(sequence.order) is sequence:
                self._leave(sequence)
        self._aborted.clear()
        self._plan(now)
        return boundary

    def _cut(self, now: float) -> None:
        """Lets a run of decodes end at the next step boundary."""
        if self._run > 1:
            steps = self._cost.steps_in(now - self._began_s, self._blocks.decodes, self._kv)
            if steps < self._run:
                self.steps -= self._run - steps
                self._run = steps
                self.next_s = self._began_s + self._cost.run_s(steps, self._blocks.decodes, self._kv)

    def _end_run(self, now: float) -> Boundary:
        decodes, steps = self._blocks.decodes, self._run
        self.itl.add((now - self._began_s) / steps, decodes * steps)
        needed = self._blocks.needed(self._step, steps)
        self._blocks.take(needed, self._blocks.free - needed)
        self._step += steps
        self._kv += steps * decodes
        return Boundary((), self._finished())

    def _end_step(self, now: float) -> Boundary:
        decodes = self._blocks.decodes
        if decodes:
            self.itl.add(now - self._began_s, decodes)
        self._step += 1
        self._kv += decodes
        finished = list(self._finished())
        first = []
        for sequence, tokens in self._chunks:
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
        self._chunks = []
        return Boundary(tuple(first), tuple(finished))

    def _begin_decode(self, sequence: Sequence) -> bool:
        """The prompt is whole: a token was sampled. True: it was the last."""
        sequence.done += 1
        self._blocks.keep(sequence)
        if sequence.done >= sequence.output:
            self._leave(sequence)
            sequence.gone = True
            return True
        sequence.start_step = self._step
        sequence.finish_step = self._step + sequence.output - sequence.done
        self._blocks.join(sequence.past, self._step)
        self._kv += sequence.past
        heapq.heappush(self._ends, (sequence.finish_step, sequence.order, sequence))
        return False

    def _finished(self) -> tuple[Sequence, ...]:
        ends, ended = self._ends, []
        while ends and ends[0][0] <= self._step:
            _, order, sequence = heapq.heappop(ends)
            if self._running.get(order) is sequence and not sequence.gone:
                ended.append(sequence)
                self._leave(sequence)
                sequence.done = sequence.output
                sequence.gone = True
        return tuple(ended)

    def _leave(self, sequence: Sequence) -> None:
        del self._running[sequence.order]
        tokens = sequence.past
        if sequence is self._partial:
            self._partial = None
        elif sequence.finish_step:
            generated = self._step - sequence.start_step
            tokens += generated
            self._kv -= tokens
            self._blocks.part(sequence.past, sequence.start_step)
            sequence.finish_step = 0
        self._blocks.give_back(sequence, tokens)

    def _plan(self, now: float) -> None:
        self._began_s = now
        before = self.preemptions
        self._make_room()
        self._chunks = self._pack(before)
        if self._chunks:
            self._run = 0
            chunks = [Chunk(tokens, sequence.past) for sequence, tokens in self._chunks]
            completing = sum(tokens == sequence.left for sequence, tokens in self._chunks)
            self.steps += 1
            self._blocks.free -= self._blocks.needed(self._step, 1)
            self.next_s = now + self._cost.step_s(chunks, self._blocks.decodes, self._kv, completing)
        elif self._blocks.decodes:
            self._run = (
                1 if self.preemptions > before else self._longest_run()
            )  # after one step, waiting ones may begin again
            self.steps += self._run
            self.next_s = now + self._cost.run_s(self._run, self._blocks.decodes, self._kv)
        else:
            self._run = 0
            self.next_s = math.inf

    def _longest_run(self) -> int:
        ends = self._ends
        while (
            self._running.get(ends[0][1]) is not ends[0][2] or ends[0][2].gone or ends[0][2].finish_step != ends[0][0]
        ):
            heapq.heappop(ends)
        return self._blocks.fitting(self._step, ends[0][0] - self._step)

    def _make_room(self) -> None:
        """Preempts while the next token of each sequence that decodes finds no block."""
        while self._blocks.needed(self._step, 1) > self._blocks.free:
            self._preempt()

    def _preempt(self) -> Sequence:
        """The last in line leaves, and waits; returns it."""
        sequence = max(self._running.values(), key=lambda one: (one.priority, one.came))
        if sequence is not self._partial:
            sequence.done += self._step - sequence.start_step
        self._leave(sequence)
        sequence.left, sequence.past, sequence.cached = sequence.prompt + sequence.done, 0, 0
        heapq.heappush(self._waiting, (sequence.priority, sequence.came, sequence))
        self.preemptions += 1
        return sequence

    def _pack(self, preemptions: int) -> list[tuple[Sequence, int]]:
        """The prompts, and how many of their tokens, that the next step prefills; their blocks are taken. None begins
        where `preemptions` grew."""
        budget = self._limits.step_tokens - self._blocks.decodes
        self._blocks.forget(self._spare)
        packed: list[tuple[Sequence, int]] = []
        partial = self._partial
        if partial is not None:
            tokens = min(partial.left, budget)
            blocks = self._blocks.count(partial.past + tokens) - self._blocks.count(partial.past)
            while blocks > self._spare and self._preempt() is not partial:
                pass
            if partial is self._partial:
                packed.append((partial, tokens))
                budget -= tokens
                self._blocks.take(blocks, self._spare - blocks)
        while (
            self._waiting
            and self.preemptions == preemptions
            and budget > 0
            and len(self._running) < self._limits.sequences
        ):
            sequence = self._waiting[0][2]
            if not self._begin(sequence, budget, packed):
                break
            heapq.heappop(self._waiting)
            budget -= packed[-1][1]
        return packed

    @property
    def _spare(self) -> int:
        """Free blocks beyond those that the next step's decodes need."""
        return self._blocks.free - self._blocks.needed(self._step, 1)

    def _begin(self, sequence: Sequence, budget: int, packed: list[tuple[Sequence, int]]) -> bool:
        """A waiting sequence begins with what the budget lets it prefill, if there are blocks for its whole prompt.
        False: there are not."""
        blocks, tokens = self._blocks, sequence.prompt + sequence.done
        held, unused = blocks.lookup(sequence)
        shared = held * self._limits.chunk_tokens
        past, spare = max(shared, sequence.past), self._spare
        if blocks.count(tokens) - blocks.count(shared) + unused > spare:
            return False
        chunk = min(tokens - past, budget)
        taken = blocks.count(past + chunk) - blocks.count(shared) + unused
        self._orders += 1
        sequence.order = self._orders
        if sequence.begun_s is None:
            sequence.begun_s = self._began_s
        sequence.past = sequence.cached = past
        sequence.left = tokens - past
        self._running[sequence.order] = sequence
        blocks.hold(sequence, held)
        blocks.take(taken, spare - taken)
        packed.append((sequence, chunk))
        if chunk < sequence.left:
            self._partial = sequence
        return True
