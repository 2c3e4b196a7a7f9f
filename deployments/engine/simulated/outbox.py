"""What a simulated engine has to say to one client: the listener of its jobs, which turns tokens into bytes for the
task that sends them."""

import asyncio

from deployments.engine.exchanges import Exchanges, SequenceStats
from deployments.engine.simulated.answer import AnswerEvents
from deployments.engine.simulated.driver import SequenceJob


class AnswerOutbox:
    """One answer, of one job or several. `events` None: it is not streamed."""

    def __init__(self, attempt_id: str, exchanges: Exchanges, speed: float, events: AnswerEvents | None) -> None:
        self.jobs: list[SequenceJob] = []
        self.broken = False
        """The engine has died."""
        self.left = False
        """The client has."""
        self._attempt_id = attempt_id
        self._exchanges = exchanges
        self._speed = speed
        self._events = events
        self._reasons: dict[SequenceJob, tuple[int, str]] = {}
        self._sent: dict[SequenceJob, int] = {}
        self._ended = 0
        self._pieces: list[bytes] = []
        self._wake = asyncio.Event()

    def expect(self, job: SequenceJob, reason: str) -> None:
        """A job of this answer; `reason`: why it will have ended."""
        self._reasons[job] = (len(self.jobs), reason)
        self.jobs.append(job)

    @property
    def done(self) -> bool:
        return self._ended == len(self.jobs)

    @property
    def choices(self) -> list[tuple[int, str]]:
        return [(job.sequence.output, reason) for job, (_, reason) in self._reasons.items()]

    @property
    def cached(self) -> int:
        return sum(job.sequence.cached for job in self.jobs)

    async def take(self) -> bytes:
        """The bytes that wait; waits for some, for the end, or for whatever breaks the answer off."""
        await self._wake.wait()
        self._wake.clear()
        taken, self._pieces = b"".join(self._pieces), []
        return taken

    def leave(self) -> None:
        self.left = True
        self._wake.set()

    def reached(self, job: SequenceJob, tokens: int) -> None:
        self._say(job, tokens, None)

    def ended(self, job: SequenceJob) -> None:
        """A job's end: its statistics are recorded, as vLLM's are, before the answer is complete."""
        self._exchanges.record(self._attempt_id, self._stats(job))
        self._ended += 1
        if self._events is not None:
            self._say(job, job.sequence.output, self._reasons[job][1])
        self._wake.set()

    def failed(self) -> None:
        self.broken = True
        self._wake.set()

    def _say(self, job: SequenceJob, tokens: int, finish: str | None) -> None:
        assert self._events is not None
        self._pieces.append(self._events.tokens(self._reasons[job][0], self._sent.get(job, 0), tokens, finish))
        self._sent[job] = tokens
        self._wake.set()

    def _stats(self, job: SequenceJob) -> SequenceStats:
        sequence, speed = job.sequence, self._speed
        return SequenceStats(
            prompt_tokens=sequence.prompt,
            cached_tokens=sequence.cached,
            output_tokens=sequence.output,
            preemptions=int(sequence.order != job.order),
            queued_s=max(0.0, job.began_s - job.added_s)
            / speed,  # it may begin with a step that was due before it came
            prefill_s=(job.first_s - job.began_s) / speed,
            decode_s=(job.ended_s - job.first_s) / speed,
        )
