"""Requests' lives, as the relay would note them in a ledger."""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from deployments.protocol import Finished, Usage
from deployments.telemetry.ledger import Ledger

TIMES = st.floats(0, 1_000, allow_nan=False)
STAGES = ("queued_s", "prefill_s", "decode_s", "first_byte_s", "wall_s")


def ledger(**fields: object) -> Ledger:
    return Ledger("client", "engine", "/v1/completions", 100.0, 1_700_000_000.0, **fields)  # type: ignore[arg-type]


def finished(attempt_id: str = "engine", sequences: int = 1, **fields: float) -> Finished:
    times = dict.fromkeys(STAGES, 0.0) | fields
    first_byte_s, wall_s = times.pop("first_byte_s"), times.pop("wall_s")
    return Finished(attempt_id, 200, Usage(8, 2, 5, 0, sequences, **times), first_byte_s, wall_s)


@dataclass
class Life:
    """A request's life as the relay would note it: durations of what happens one after the other."""

    before_lane: float
    refusals: list[tuple[float, float]]
    last_wait: float
    placed: bool
    first_byte: float | None
    pieces: list[tuple[float, float]]
    last_stall: float
    tail: float
    stream: bool
    done: Finished | None = field(default=None)

    def run(self) -> Ledger:
        one = ledger(stream=self.stream)
        now = one.arrived_s + self.before_lane
        one.submitted(now)
        for wait, attempt in self.refusals:
            now += wait
            one.left_lane(now, placed=True)
            now += attempt
            one.refused(now)
        now += self.last_wait
        one.left_lane(now, placed=self.placed)
        if self.placed and self.first_byte is not None:
            now += self.first_byte
            one.first_byte_s = now
            for stall, wait in self.pieces if self.stream else []:
                one.client_stall_s += stall
                one.engine_wait_s += wait
                now += stall + wait
            one.last_byte_s = now
            one.last_stall_s = self.last_stall
            now += self.last_stall
            one.finished = self.done
        elif self.placed:
            now += self.last_stall
            one.last_byte_s = now
        one.ended_s = now + self.tail
        return one


DONE = st.builds(finished, st.just("engine"), st.integers(0, 3), **dict.fromkeys(STAGES, TIMES)) | st.none()
PAIRS = st.tuples(TIMES, TIMES)
LIVES = st.builds(
    Life,
    before_lane=TIMES,
    refusals=st.lists(PAIRS, max_size=3),
    last_wait=TIMES,
    placed=st.booleans(),
    first_byte=TIMES | st.none(),
    pieces=st.lists(PAIRS, max_size=5),
    last_stall=TIMES,
    tail=TIMES,
    stream=st.booleans(),
    done=DONE,
)
