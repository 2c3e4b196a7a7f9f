"""Speculative decoding: a draft proposes tokens, which the next step verifies together. vLLM's scheduling of it, 0.32.

A sequence that decodes is in a step with its last token and up to k drafted ones. Of these the model accepts the
first a, and samples one more, so that the sequence gains a + 1 tokens. It has blocks for all k + 1, whatever is
accepted, and for `lookahead` more that a draft model writes. With asynchronous scheduling the next step is planned as
if all were accepted; an answer that may end in a step is scheduled once more.

    P(a >= i) = acceptance[i - 1]        as vLLM counts it: accepted tokens at position i, by drafts

How many are accepted is drawn from the sequence's number and its tokens so far: the same run gives the same. Sequences
do not advance in lockstep, so each step is planned by itself, one sequence after the other.
"""

from deployments.engine_model.blocks import Blocks
from deployments.engine_model.limits import EngineModelLimits, Speculation
from deployments.engine_model.lockstep import Lockstep
from deployments.engine_model.scheduler import StepScheduler
from deployments.engine_model.sequence import Sequence

_MASK = (1 << 64) - 1


def accepted(speculation: Speculation, number: int, tokens: int) -> int:
    """How many drafted tokens of a sequence are accepted, of which so many tokens are sampled."""
    mixed = (number * 0x9E3779B97F4A7C15 + tokens * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        mixed = ((mixed ^ mixed >> shift) * factor) & _MASK
    drawn = (mixed ^ mixed >> 31) / (1 << 64)
    return sum(drawn < share for share in speculation.acceptance)


class Paced(Lockstep):
    """Sequences that decode, each at its own pace. `granted`: the tokens that the planned step has for each."""

    def __init__(self, blocks: Blocks, speculation: Speculation) -> None:
        super().__init__(blocks)
        self.granted: dict[Sequence, int] = {}
        self._speculation = speculation
        self._counted = blocks
        self._members: dict[Sequence, None] = {}

    def join(self, sequence: Sequence) -> None:
        sequence.decodes = True
        sequence.known = sequence.past
        sequence.planned = max(sequence.planned, sequence.past)
        self._members[sequence] = None
        self._counted.decodes += 1
        self.kv += sequence.past

    def part(self, sequence: Sequence) -> None:
        sequence.decodes = False
        sequence.planned = 0
        del self._members[sequence]
        self.granted.pop(sequence, None)
        self._counted.decodes -= 1
        self.kv -= sequence.past

    def advance(self, steps: int) -> None:
        self.step += steps
        for sequence, tokens in self.granted.items():
            if sequence.gone:
                continue
            drafted = min(tokens - 1, accepted(self._speculation, sequence.came, sequence.done))
            sequence.last = sequence.output - sequence.done == 1
            gained = min(1 + drafted, sequence.output - sequence.done)
            sequence.known = sequence.past
            sequence.past += gained
            sequence.done += gained
            self.kv += gained
        self.granted.clear()

    def ended(self) -> list[Sequence]:
        ended = [sequence for sequence in self._members if sequence.done >= sequence.output and not sequence.gone]
        for sequence in ended:
            sequence.gone = True
        return ended

    def foreseen(self, sequence: Sequence) -> bool:
        return sequence.last and not sequence.open_ended

    def longest_run(self) -> int:
        return 1


class SpeculativeScheduler(StepScheduler):
    """vLLM's scheduling with drafts."""

    def __init__(self, limits: EngineModelLimits) -> None:
        super().__init__(limits)
        speculation = limits.speculation
        if speculation is None:
            raise ValueError("limits.speculation: None; needed: how drafts are accepted")
        self._paced = self.lockstep = Paced(self.blocks, speculation)
        self._ahead = speculation.lookahead
        self._per_step = 1 + len(speculation.acceptance)
        self._prefills = self._goes_on = False
        """Whether a prompt goes on in the step that is planned, and whether anything does."""

    def _go_on(self, limit: int) -> int:
        self.drafted = 0
        return self._one_by_one(limit)

    def _share(self, sequence: Sequence, limit: int) -> tuple[int, int]:
        tokens = min(self._per_step if sequence.decodes else sequence.left, limit)
        return tokens, self._missing(sequence, tokens)

    def _missing(self, sequence: Sequence, tokens: int) -> int:
        """Blocks that a sequence lacks for so many tokens more."""
        count, room = self.blocks.count, max(sequence.room, sequence.past)
        return count(max(room, self._target(sequence, tokens))) - count(room)

    def _target(self, sequence: Sequence, tokens: int) -> int:
        past = sequence.planned if self._async and sequence.decodes else sequence.past
        return past + tokens + self._ahead

    def _grant(self, sequence: Sequence, tokens: int) -> None:
        self.blocks.free -= self._missing(sequence, tokens)
        sequence.room = max(sequence.room, self._target(sequence, tokens))
        sequence.planned = sequence.past + tokens

    def _take_chunks(self) -> None:
        for sequence, tokens in self.chunks:
            self._grant(sequence, tokens)
            self.blocks.remember(sequence, sequence.past + tokens)

    def _decoding(self, granted: dict[Sequence, tuple[int, int]]) -> None:
        for sequence, (tokens, _) in granted.items():
            if sequence.decodes:
                self._grant(sequence, tokens)
                self._paced.granted[sequence] = tokens
                self.drafted += tokens - 1

    def _admit(self, budget: int, limit: int, seen_s: float) -> None:
        self._prefills, self._goes_on = bool(self.chunks), bool(self.chunks or self._paced.granted)
        super()._admit(budget, limit, seen_s)

    def _beyond(self, past: int, left: int, budget: int) -> int:
        # one that begins with a single token is given as many as the others have, unless a prompt goes on
        if left > 1 or self._prefills or not (self._goes_on or past):
            return self._ahead
        return self._per_step - 1 + self._ahead if self._per_step <= budget else -1

    def _begun(self, sequence: Sequence, tokens: int, room: int) -> int:
        sequence.room, sequence.planned = room, room - self._ahead
        padding = room - self._ahead - sequence.past - tokens
        self.drafted += padding
        return tokens + padding
