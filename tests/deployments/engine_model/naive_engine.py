"""The engine's rules once more, step by step, block by block and without any closed form: slow, and simple enough to be
believed."""

from collections import deque
from dataclasses import dataclass, field

from deployments.engine_model.cost_model import Chunk, CostModel
from deployments.engine_model.limits import EngineModelLimits

Arrival = tuple[float, int, int, tuple[int, ...], int, bool]
"""When, tokens of prompt and output, prefix, priority, and whether its end is not known beforehand."""


@dataclass(eq=False)
class Naive:
    """A sequence. `computed` tokens are in the KV cache once the steps that are scheduled have run; `done` tokens are
    sampled, and `coming` will be by those steps."""

    index: int
    prompt: int
    output: int
    prefix: tuple[int, ...]
    priority: int
    open_ended: bool
    computed: int = 0
    done: int = 0
    coming: int = 0
    decoding: bool = False
    shared: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.prompt + self.done + self.coming


@dataclass(eq=False)
class Batch:
    """A step: its sequences with their tokens, those of them that decode, and those that sample."""

    granted: dict[Naive, int]
    decodes: list[Naive]
    sampled: list[Naive]
    ends_s: float


class NaiveEngine:
    """One run over requests, in the order of time."""

    def __init__(self, limits: EngineModelLimits, cost: CostModel) -> None:
        self.limits, self.cost = limits, cost
        self.running: list[Naive] = []
        self.waiting: list[Naive] = []
        self.unused: list[int] = []
        self.first: dict[int, float] = {}
        self.finish: dict[int, float] = {}
        self.preempted = 0

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)

    def free(self, granted: dict[Naive, int]) -> int:
        """Blocks nobody uses, where `granted` sequences have room for so many tokens more than they have computed."""
        shared = {chunk for one in self.running for chunk in one.shared}
        chunk = self.limits.chunk_tokens // self.limits.block_tokens
        private = sum(self.blocks(one.computed + granted.get(one, 0)) - len(one.shared) * chunk for one in self.running)
        return self.limits.kv_tokens // self.limits.block_tokens - private - len(shared) * chunk

    def give_up(self, one: Naive) -> None:
        """It leaves; what only it held of the prefixes is remembered."""
        self.running.remove(one)
        still = {chunk for other in self.running for chunk in other.shared}
        self.unused += [chunk for chunk in reversed(one.shared) if chunk not in still]
        one.shared = []

    def wait(self, one: Naive) -> None:
        self.waiting.append(one)
        self.waiting.sort(key=lambda other: (other.priority, other.index))

    def preempt_last(self) -> Naive:
        one = max(self.running, key=lambda other: (other.priority, other.index))
        self.give_up(one)
        one.computed, one.decoding = 0, False
        self.preempted += 1
        if one.done + one.coming < one.output:
            self.wait(one)
        return one

    def schedule(self) -> dict[Naive, int]:
        """Tokens by sequence for the next step, as vLLM's scheduler loops over them."""
        limits, granted, budget, before = self.limits, dict[Naive, int](), self.limits.step_tokens, self.preempted
        index = 0
        while index < len(self.running) and budget > 0:
            one = self.running[index]
            if one.done + one.coming >= one.output and not one.open_ended:
                index += 1
                continue
            desired = min(one.tokens - one.computed, budget)
            lost = False
            while self.free(granted) < self.blocks(one.computed + desired) - self.blocks(one.computed):
                place = {other: number for number, other in enumerate(self.running)}
                victim = self.preempt_last()
                index -= place[victim] < index
                budget += granted.pop(victim, 0)
                if victim is one:
                    lost = True
                    break
            if lost:
                break
            granted[one] = desired
            budget -= desired
            index += 1
        self.evict(granted)
        while self.waiting and self.preempted == before and budget > 0 and len(self.running) < limits.sequences:
            one = self.waiting[0]
            held = {chunk for other in self.running for chunk in other.shared}
            hits: list[int] = []
            for chunk in one.prefix[: (one.prompt - 1) // limits.chunk_tokens] if limits.chunk_tokens else ():
                if chunk not in held and chunk not in self.unused:
                    break
                hits.append(chunk)
            size = limits.chunk_tokens // limits.block_tokens
            revived = sum(chunk in self.unused for chunk in hits) * size
            if self.blocks(one.tokens) - len(hits) * size + revived > self.free(granted):
                break
            self.waiting.pop(0)
            self.unused = [chunk for chunk in self.unused if chunk not in hits]
            one.shared, one.computed = hits, len(hits) * limits.chunk_tokens
            self.running.append(one)
            granted[one] = min(one.tokens - one.computed, budget)
            budget -= granted[one]
            self.evict(granted)
        return granted

    def evict(self, granted: dict[Naive, int]) -> None:
        """Free blocks that remember a chunk are used up last-remembered last."""
        while len(self.unused) * (self.limits.chunk_tokens // self.limits.block_tokens) > self.free(granted):
            self.unused.pop(0)

    def batch(self, began_s: float) -> Batch:
        """Schedules the next step, which begins then."""
        granted = self.schedule()
        whole = [one for one in granted if one.computed + granted[one] == one.tokens]
        decodes = [one for one in granted if one.decoding]
        chunks = [one for one in granted if one not in decodes]
        read = sum(one.computed for one in decodes)
        took_s = self.cost.step_s(
            [Chunk(granted[one], one.computed) for one in chunks], len(decodes), read, len(whole) - len(decodes)
        )
        for one in granted:
            one.computed += granted[one]
        for one in whole:
            one.coming += 1
            if not one.decoding:
                one.decoding = True
                self.share(one)
        return Batch(granted, decodes, whole, began_s + (took_s if granted else 0.0))

    def share(self, one: Naive) -> None:
        """Its prompt is in the KV cache: others may use its chunks."""
        known = {chunk for other in self.running for chunk in other.shared} | set(self.unused)
        for chunk in one.prefix[len(one.shared) :] if self.limits.chunk_tokens else ():
            if chunk in known:
                break
            one.shared.append(chunk)

    def complete(self, batch: Batch) -> None:
        """A step has run: its tokens are there."""
        for one in batch.sampled:
            one.coming -= 1
            if one.done == one.output:
                continue  # scheduled once too often
            one.done += 1
            self.first.setdefault(one.index, batch.ends_s)
        for one in batch.sampled:
            if one.done == one.output and one.index not in self.finish:
                self.finish[one.index] = batch.ends_s
                if one in self.running:
                    self.give_up(one)

    def run(self, requests: list[Arrival]) -> None:
        """Until everything has ended: `EngineCore.step`, or `step_with_batch_queue`."""
        coming = deque((at, Naive(index, *rest)) for index, (at, *rest) in enumerate(requests))
        depth = 2 if self.limits.async_scheduling else 1
        batches, now, ready_s = deque[Batch](), -1.0, 0.0
        while coming or self.waiting or self.running or batches:
            if coming and not self.waiting and not self.running and not batches and coming[0][0] > now:
                now = coming[0][0]
                self.wait(coming.popleft()[1])  # one that finds the engine idle begins at once, alone
            else:
                while coming and coming[0][0] <= now:
                    self.wait(coming.popleft()[1])
            if self.waiting or self.running:
                batches.append(self.batch(max(now, ready_s)))
                ready_s = batches[-1].ends_s
                if len(batches) < depth and batches[-1].granted:
                    continue
            if batches:
                now = max(now, batches[0].ends_s)
                self.complete(batches.popleft())
