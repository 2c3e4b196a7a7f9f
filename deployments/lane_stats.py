"""What the scheduler shows of a lane. Apart from its room, and without imports: a command that only reads a cell's
report need not load the scheduler, nor the spec's classes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaneStats:
    """One lane: how many wait, their work in seconds (None: no rate yet) and prefill tokens, the age of the oldest,
    what the head waits for (`scheduling.WaitReason`).

    `eta_s` is the wait estimate that a request would get now (p50, p95). `covered` counts the estimates whose p95 held,
    `estimated` all, `censored` those that were cancelled before their p95, or that an outage spoiled.
    """

    name: str
    waiting: int
    work_tokens: float
    work_s: float | None
    oldest_wait_s: float
    head_waits_for: str | None
    eta_s: tuple[float, float] | None
    covered: int
    estimated: int
    censored: int
