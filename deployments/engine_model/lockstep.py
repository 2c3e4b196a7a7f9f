"""The sequences of an engine that decode: they are in each step, for one token, and so the steps up to the first end
among them are alike."""

import heapq

from deployments.engine_model.blocks import Blocks
from deployments.engine_model.sequence import Sequence


class Lockstep:
    """`step` counts the engine's steps. `kv`: the tokens that those who decode have in the KV cache."""

    def __init__(self, blocks: Blocks) -> None:
        self.step = 0
        self.kv = 0
        self._blocks = blocks
        self._ends: list[tuple[int, int, Sequence]] = []
        """A heap: when each ends, and in which order they began. Those that left meanwhile are still in it."""

    def join(self, sequence: Sequence) -> None:
        """From the next step on, it is in each step."""
        sequence.decodes = True
        sequence.start_step = self.step
        sequence.finish_step = self.step + sequence.output - sequence.done
        self._blocks.join(sequence.past, self.step)
        self.kv += sequence.past
        heapq.heappush(self._ends, (sequence.finish_step, sequence.order, sequence))

    def part(self, sequence: Sequence) -> None:
        """It is in no further step, unless it joins again."""
        steps = self.step - sequence.start_step
        self._blocks.part(sequence.past, sequence.start_step)
        sequence.known = sequence.past + max(0, steps - 1)
        sequence.past += steps
        sequence.done = min(sequence.done + steps, sequence.output)
        sequence.decodes = False
        self.kv -= sequence.past

    def foreseen(self, sequence: Sequence) -> bool:
        """Whether the end of one that has ended was known when the step before was planned."""
        return not sequence.open_ended

    def advance(self, steps: int) -> None:
        """So many steps have run."""
        self.step += steps
        self.kv += steps * self._blocks.decodes

    def ended(self) -> list[Sequence]:
        """Those whose last token is sampled by now."""
        ends, ended = self._ends, []
        while ends and ends[0][0] <= self.step:
            end = heapq.heappop(ends)
            if _is_valid(end):
                end[2].gone = True
                ended.append(end[2])
        return ended

    def longest_run(self) -> int:
        """For how many steps nobody ends, and there are blocks; at least 1."""
        ends = self._ends
        while not _is_valid(ends[0]):
            heapq.heappop(ends)
        return self._blocks.fitting(self.step, ends[0][0] - self.step)


def _is_valid(end: tuple[int, int, Sequence]) -> bool:
    step, order, sequence = end
    return sequence.decodes and sequence.finish_step == step and sequence.order == order and not sequence.gone
