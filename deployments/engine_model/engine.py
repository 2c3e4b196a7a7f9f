"""A simulated engine: the steps that vLLM's scheduling makes (`scheduler.py`), and the time that they take.

The engine moves from boundary to boundary. Between two of them lies one step that prefills, or a run of steps that only
decode, whose length has a closed form (`cost_model.py`): the run ends when its first sequence is finished, when the KV
cache is full, or when a request that has come can begin: at the next step boundary, with asynchronous scheduling at the
one after it. So a request costs a few boundaries, however many tokens it has.

With asynchronous scheduling (`limits.async_scheduling`; `v1/engine/core.py`, `step_with_batch_queue`) step N + 1 is
scheduled when step N begins. So it does not know of requests that came during step N, and sequences that end with step
N still hold their place and their blocks: both count from step N + 2 on. Sequences whose end is not known beforehand
(`Sequence.open_ended`) are scheduled once more, in vain. A step with nothing in it takes no time.
"""

import math
from dataclasses import dataclass

from deployments.engine_model.cost_model import Chunk, CostModel
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.scheduler import StepScheduler
from deployments.engine_model.sequence import ItlHistogram, Sequence
from deployments.engine_model.speculation import SpeculativeScheduler


@dataclass(frozen=True, slots=True)
class Boundary:
    """What came to pass at the end of a segment: first tokens, and ends."""

    first: tuple[Sequence, ...]
    finished: tuple[Sequence, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """What runs between two boundaries: the prompts of a step and their tokens, or steps of nothing but decodes;
    `ends_s`: when each step ends; `kv_tokens`: what decodes have in the KV cache at its start, `past_tokens` what the
    step's prompts have there."""

    prompts: int
    prompt_tokens: int
    past_tokens: int
    decodes: int
    kv_tokens: int
    ends_s: tuple[float, ...]


class EngineModel:
    """One engine. Whoever drives it calls `add` and `abort` as they happen and `advance` at `next_s`, in the order of
    time."""

    def __init__(self, limits: EngineModelLimits, cost: CostModel, scheduler: StepScheduler | None = None) -> None:
        self.next_s = math.inf
        """When the segment that runs ends; infinite while idle."""
        self.steps = 0
        self.itl = ItlHistogram()
        self._limits = limits
        self._cost = cost
        self._async = limits.async_scheduling
        kind = StepScheduler if limits.speculation is None else SpeculativeScheduler
        self._scheduler = kind(limits) if scheduler is None else scheduler
        self._blocks, self._lockstep = self._scheduler.blocks, self._scheduler.lockstep
        self._came = 0
        self.began_s = 0.0
        """When it began."""
        self._run = 0
        """Steps of the run of decodes that is under way; 0: a step that prefills, or idle."""
        self._aborted: list[Sequence] = []

    @property
    def running(self) -> int:
        return self._scheduler.running

    @property
    def waiting(self) -> int:
        return self._scheduler.waiting

    @property
    def preemptions(self) -> int:
        return self._scheduler.preemptions

    @property
    def kv_usage(self) -> float:
        """The share of the KV blocks in use."""
        return 1 - self._blocks.free / self._blocks.total

    @property
    def segment(self) -> Segment:
        """What runs now, up to `next_s`; without steps while idle."""
        chunks = self._scheduler.chunks
        ends: tuple[float, ...] = (self.next_s,) if self.next_s < math.inf else ()
        if self._run > 1:
            ends = tuple(self.began_s + self._run_s(steps) for steps in range(1, self._run + 1))
        return Segment(
            len(chunks),
            sum(tokens for _, tokens in chunks),
            sum(sequence.past for sequence, _ in chunks),
            self._blocks.decodes,
            self._lockstep.kv,
            ends,
        )

    def add(self, sequence: Sequence, now: float) -> None:
        """A request came. It begins at the next step boundary, with asynchronous scheduling at the one after it. Raises
        ValueError for one that the KV cache cannot hold even alone."""
        if self._blocks.count(sequence.prompt + sequence.output - 1) > self._blocks.total:
            tokens = f"{sequence.prompt} tokens of prompt and {sequence.output} of output"
            raise ValueError(f"{tokens} do not fit the KV cache of {self._limits.kv_tokens} tokens")
        self._came += 1
        sequence.came = self._came
        sequence.added_s = now
        if sequence.prefix:
            sequence.prefix = self._limits.known(sequence.prefix)
        if self.next_s == math.inf:
            self._scheduler.wait(sequence)
            self._plan(now, now)
        elif self._scheduler.full and not (self._async and self._limits.long_prefill_tokens):
            # it cannot begin, and nothing else depends on whether it waits
            self._scheduler.wait(sequence)
        elif not self._async or now <= self.began_s:
            self._scheduler.wait(sequence)
            self._cut(self._steps_begun(now))
        else:
            begun = self._steps_begun(now)
            self._scheduler.wait(sequence, late=begun >= self._run)
            self._cut(begun + 1)

    def abort(self, sequence: Sequence, now: float) -> None:
        """A request was given up: it ends at once, its blocks are free at the next step boundary. One that ended is no
        error."""
        if sequence.gone:
            return
        sequence.gone = True
        if self._scheduler.runs(sequence):
            self._aborted.append(sequence)
        else:
            self._scheduler.drop(sequence)
        self._cut(self._steps_begun(now))

    def advance(self) -> Boundary:
        """Ends the segment that runs, at `next_s`, and begins the next one."""
        now = seen_s = self.next_s
        if self._async:
            seen_s = self.began_s + (self._run_s(self._run - 1) if self._run > 1 else 0.0)
        decodes, steps = self._blocks.decodes, self._run or 1
        if decodes:
            self.itl.add((now - self.began_s) / steps, decodes * steps)
        if self._run:
            boundary = Boundary((), self._scheduler.end_run(self._run))
        else:
            boundary = Boundary(*self._scheduler.end_step(now))
        for sequence in self._aborted:
            self._scheduler.drop(sequence)
        self._aborted.clear()
        self._plan(seen_s, now)
        return boundary

    def _run_s(self, steps: int) -> float:
        return self._cost.run_s(steps, self._blocks.decodes, self._lockstep.kv)

    def _steps_begun(self, now: float) -> int:
        """How many steps of the segment that runs have begun."""
        if self._run <= 1:
            return 1
        return self._cost.steps_in(now - self.began_s, self._blocks.decodes, self._lockstep.kv)

    def _cut(self, steps: int) -> None:
        """Lets a run of decodes end after so many steps."""
        if steps < self._run:
            self.steps -= self._run - steps
            self._run = steps
            self.next_s = self.began_s + self._run_s(steps)

    def _plan(self, seen_s: float, now: float) -> None:
        """The next segment, from now on; its first step is scheduled at `seen_s`."""
        self.began_s = now
        self._begin(self._scheduler.schedule(seen_s))
        while self._scheduler.settle() and self.next_s == math.inf:
            self._begin(self._scheduler.schedule(now))

    def _begin(self, run: int) -> None:
        """The scheduler has decided: a run of so many steps; 0: a step with chunks, or none."""
        self._run = run
        chunks = self._scheduler.chunks
        drafted = self._scheduler.drafted
        if run and not drafted:
            self.steps += run
            self.next_s = self.began_s + self._run_s(run)
        elif run or chunks:
            self.steps += 1
            parts = [Chunk(tokens, sequence.past) for sequence, tokens in chunks]
            completing = sum(tokens == sequence.left for sequence, tokens in chunks)
            decodes, kv = self._blocks.decodes, self._lockstep.kv
            self.next_s = self.began_s + self._cost.step_s(parts, decodes, kv, completing, drafted)
        else:
            self.next_s = math.inf
