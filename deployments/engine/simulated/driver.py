"""Drives a simulated engine in real time: one task that sleeps until the engine's next boundary, or until the next
tokens are due.

The engine jumps over runs of decode steps. Between two boundaries the steps are taken to be of equal length, and
every sequence that decodes gets a token with each; so the tokens of a stream come due at counts of steps, which one
heap holds for all of them. A turn that comes late (a busy machine) makes up for all that is due: the engine's own
clock never drifts.
"""

import asyncio
import contextlib
import heapq
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from itertools import pairwise
from typing import Protocol

from deployments.engine.backend import EngineLoad
from deployments.engine.step_log import EngineFacts, StepLine, StepLog
from deployments.engine_model.engine import EngineModel, Segment
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.sequence import Sequence


class Listener(Protocol):
    """Whoever waits for a sequence. Called in the event loop, and quick."""

    def reached(self, job: "SequenceJob", tokens: int) -> None:
        """So many of its tokens are there; the last of them comes by `ended`."""

    def ended(self, job: "SequenceJob") -> None:
        """All are there; its times are known."""

    def failed(self) -> None:
        """The engine has died."""


@dataclass(eq=False, slots=True)
class SequenceJob:
    """One sequence. Times are the engine's seconds; `began_s`: when it left the engine's own queue first. `stepwise`:
    its tokens are reported as they come, and not only at the end."""

    listener: Listener
    prompt: InitVar[int]
    output: InitVar[int]
    stepwise: bool
    prefix: InitVar[tuple[int, ...]] = ()
    open_ended: InitVar[bool] = False
    sequence: Sequence = field(init=False)
    open: bool = field(init=False, default=True)
    is_prefilling: bool = field(init=False, default=True)
    added_s: float = field(init=False, default=0.0)
    began_s: float = field(init=False, default=0.0)
    first_s: float = field(init=False, default=0.0)
    ended_s: float = field(init=False, default=0.0)
    first_step: int = field(init=False, default=0)
    """The engine's count of steps when its first token was there."""
    order: int = field(init=False, default=0)
    """The place in the engine's order that it had first: another one at its end shows that it was preempted."""

    def __post_init__(self, prompt: int, output: int, prefix: tuple[int, ...], open_ended: bool) -> None:
        self.sequence = Sequence(self, prompt, 0, output, prefix, open_ended=open_ended)


class SimulatedSteps:
    """Writes the step log of a simulated engine, as vLLM's engines do (`step_log.py`): so that `raylane calibrate` can
    measure an engine whose costs are known. Times are the engine's own; a turn that comes late does not change them."""

    def __init__(self, log: StepLog, limits: EngineModelLimits) -> None:
        self._log = log
        self._limits = limits
        log.begin(EngineFacts(limits.sequences, limits.step_tokens, limits.kv_tokens, limits.block_tokens))

    def note(self, ended: Segment, engine: EngineModel, zero_s: float, speed: float) -> None:
        """The steps of a segment that has ended; `engine` has begun the next one. `zero_s`: the clock when the engine's
        time was 0."""
        step = (ended.prompts, ended.prompt_tokens, ended.decodes)
        running = ended.prompts + ended.decodes
        for number, end_s in enumerate(ended.ends_s[:-1], 1):
            usage = self._usage(ended.kv_tokens + number * ended.decodes, running)
            self._log.write(StepLine(zero_s + end_s / speed, *step, running, engine.waiting, usage))
        after = engine.segment
        usage = self._usage(after.kv_tokens + after.past_tokens, engine.running)
        self._log.write(StepLine(zero_s + ended.ends_s[-1] / speed, *step, engine.running, engine.waiting, usage))

    def _usage(self, tokens: int, sequences: int) -> float:
        """The share of the KV cache's blocks: the last block of a sequence is half full on average."""
        return min(1.0, (tokens + sequences * self._limits.block_tokens / 2) / self._limits.kv_tokens)


_BEAT_S = 1.0
"""A turn at least this often while anything runs: a sign of life for the watchdog."""


@dataclass(eq=False)
class Driver:
    """Drives `engine`, `speed` times as fast as its costs say, and tells jobs of every `stream_interval` tokens.

    `load` is painted after each turn; `late` hears how late a turn came (seconds).
    """

    engine: EngineModel
    load: EngineLoad
    stream_interval: int
    speed: float = 1.0
    late: Callable[[float], None] = lambda late_s: None
    clock: Callable[[], float] = time.monotonic
    steps: SimulatedSteps | None = None

    def __post_init__(self) -> None:
        self._zero = self.clock()
        self._jobs: set[SequenceJob] = set()
        self._queued: deque[SequenceJob] = deque()
        self._due: list[tuple[int, int, int, SequenceJob]] = []
        """When tokens of streams come due: the engine's count of steps, a tie-breaker, how many tokens there are then,
        whose."""
        self._ties = 0
        self._began_s = 0.0
        self._steps = 0
        """The engine's count of steps at the last boundary."""
        self._changed = asyncio.Event()
        self._wakes_s = math.inf

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: SequenceJob) -> None:
        """A request came. Raises ValueError for one that the engine cannot hold."""
        self._catch_up()
        now = self._now()
        idle = self.engine.next_s == math.inf
        self.engine.add(job.sequence, now)
        if idle:
            self._began_s = now
        job.added_s = now
        self._jobs.add(job)
        self._queued.append(job)
        self._note_begun(now)
        self._changed_by_hand()

    def drop(self, job: SequenceJob) -> None:
        """A request was given up. One that ended is no error."""
        if not job.open:
            return
        self._catch_up()
        if job.open:
            job.open = False
            self._jobs.discard(job)
            self.engine.abort(job.sequence, self._now())
            self._changed_by_hand()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            self._catch_up()
            self._wakes_s = min(self._next_s(), self._now() + _BEAT_S * self.speed if self._jobs else math.inf)
            wait_s = None if self._wakes_s == math.inf else max(0.0, (self._wakes_s - self._now()) / self.speed)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    def fail(self) -> None:
        for job in list(self._jobs):
            job.open = False
            job.listener.failed()
        self._jobs.clear()
        self._paint()

    def _now(self) -> float:
        return (self.clock() - self._zero) * self.speed

    def _changed_by_hand(self) -> None:
        self._paint()
        if self._next_s() < self._wakes_s:
            self._changed.set()

    def _next_s(self) -> float:
        due = self._due
        while due and not due[0][3].open:
            heapq.heappop(due)
        boundary_s = self.engine.next_s
        if not due or boundary_s == math.inf:
            return boundary_s
        steps = self.engine.steps - self._steps
        ahead = due[0][0] - self._steps
        if ahead >= steps:
            return boundary_s
        return self._began_s + (boundary_s - self._began_s) * ahead / steps

    def _catch_up(self) -> None:
        now, turned = self._now(), False
        while (due_s := self._next_s()) <= now:
            if not turned:
                self.late((now - due_s) / self.speed)
                turned = True
            if due_s < self.engine.next_s:
                self._tell_next()
            else:
                self._advance(due_s)
        self.load.last_step = self.clock()
        if turned:
            self._paint()

    def _advance(self, now: float) -> None:
        engine = self.engine
        steps, segment, began_s = engine.steps, engine.segment, engine.began_s
        boundary = engine.advance()
        self.load.times.simulated([(end - start) / self.speed for start, end in pairwise((began_s, *segment.ends_s))])
        if self.steps is not None:
            self.steps.note(segment, engine, self._zero, self.speed)
        self._began_s, self._steps = now, steps
        for sequence in boundary.first:
            job: SequenceJob = sequence.tag
            job.first_s, job.first_step, job.is_prefilling = now, steps, False
            if job.open and job.stepwise and sequence.output > 1:
                job.listener.reached(job, 1)
                self._schedule(job, 1 + self.stream_interval)
        for sequence in boundary.finished:
            job = sequence.tag
            if job.open:
                job.open, job.ended_s = False, now
                self._jobs.discard(job)
                job.listener.ended(job)
        self._note_begun(now)
        while self._due and self._due[0][0] <= steps:
            self._tell_next()

    def _tell_next(self) -> None:
        _, _, tokens, job = heapq.heappop(self._due)
        if job.open:
            job.listener.reached(job, tokens)
            self._schedule(job, tokens + self.stream_interval)

    def _schedule(self, job: SequenceJob, tokens: int) -> None:
        """The last token comes with the end, and not before."""
        if tokens < job.sequence.output:
            self._ties += 1
            heapq.heappush(self._due, (job.first_step + tokens - 1, self._ties, tokens, job))

    def _note_begun(self, now: float) -> None:
        """The engine takes its queue in order: those at its head that have a place in it have begun."""
        queued = self._queued
        while queued and (queued[0].sequence.order or not queued[0].open):
            job = queued.popleft()
            job.began_s, job.order = now, job.sequence.order

    def _paint(self) -> None:
        load, engine = self.load, self.engine
        load.running, load.waiting, load.kv_usage = engine.running, engine.waiting, engine.kv_usage
        load.changed()
