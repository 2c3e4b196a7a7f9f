"""What requests take outside of the engine's steps, alone and beside others, read from the gateway's ledger
(`gateway.trace_file`).

The ledger's stages `gateway`, `connect` and `engine_http` are all of a request's way to its first byte that is neither
lane nor engine core: HTTP, tokenising, detokenising, and waiting for a processor and for the step that runs. Who comes
at a random moment of a window of T seconds waits for that step, since the engine's core looks for new requests between
steps, on average over the window,

    E[wait] = sum of step^2 / (2 T)                 (nobody waits while the engine is idle)

which the engine's model accounts for by itself, and which is therefore taken off what the ledger tells.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deployments.engine_model.cost_model import Curve
from planning.costs.steps import EngineSteps, samples


class LedgerError(ValueError):
    """A ledger file that cannot be read; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Around:
    """One request: seconds to its first byte as the gateway saw it, and the part of them that was neither lane nor
    engine core; and to its end."""

    ttft_s: float
    around_s: float
    wall_s: float


def read_arounds(path: Path) -> list[Around]:
    """The answered requests of a ledger file, in the order in which they ended. Raises LedgerError."""
    found = []
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from error
    for number, row in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(row)
            stages = entry["stages_s"]
            if entry["outcome"] == "ok" and "prefill" in stages:
                around = stages["gateway"] + stages.get("connect", 0.0) + stages.get("engine_http", 0.0)
                found.append(Around(float(entry["ttft_s"]), around, float(entry["wall_s"])))
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(f"{path}: line {number} is none of a ledger: {error!r}") from error
    return found


FRONT_SHARE = 0.6
"""Of what a request alone takes around the engine's steps, the part before them, where no step log tells it: it is
read, checked and tokenised there, only written after."""
FEW_ALONE = 10


@dataclass(frozen=True, slots=True)
class LoneRequest:
    """A request beside no other: when it was sent and when its client had the first token, on the monotonic clock."""

    sent_s: float
    first_s: float


def lone_back_s(requests: Sequence[LoneRequest], logs: Sequence[EngineSteps]) -> float | None:
    """From the end of the step with a request's first token until its client has it, at the median: the step is the
    first of any replica in that time that prefills. None where fewer than `FEW_ALONE` steps are found.

    Client and replicas must share a clock, as on one machine.
    """
    prefills = np.array(sorted(line.t_s for log in logs for line in log.lines if line.prompts))
    found = []
    for one in requests:
        number = int(np.searchsorted(prefills, one.sent_s))
        if number < len(prefills) and prefills[number] <= one.first_s:
            found.append(one.first_s - float(prefills[number]))
    return float(np.median(found)) if len(found) >= FEW_ALONE else None


@dataclass(frozen=True, slots=True)
class ProbeWindow:
    """Requests that came at random moments between two times of the monotonic clock, to `replicas` replicas that had
    `leases` each on average."""

    began_s: float
    ended_s: float
    leases: float
    arounds: tuple[Around, ...]


def mean_wait_s(logs: Sequence[EngineSteps], began_s: float, ended_s: float) -> float:
    """For the step that runs; the equation above, over all replicas."""
    squares = sum(sample.seconds**2 for log in logs for sample in samples(log.within(began_s, ended_s)))
    return squares / (2 * (ended_s - began_s) * len(logs))


def front_and_back(
    alone_s: float, windows: Sequence[ProbeWindow], logs: Sequence[EngineSteps], back_s: float | None = None
) -> tuple[Curve, float]:
    """From placement to the engine by the number of leases, never falling; and the seconds from a step's end to the
    client: `back_s` where it was measured, else a share of `alone_s`."""
    back_s = (1 - FRONT_SHARE) * alone_s if back_s is None else min(back_s, alone_s)
    at, seconds = [0.0], [alone_s - back_s]
    for window in sorted(windows, key=lambda one: one.leases):
        around_s = float(np.mean([one.around_s for one in window.arounds])) if window.arounds else 0.0
        front_s = around_s - back_s - mean_wait_s(logs, window.began_s, window.ended_s)
        if window.leases > at[-1]:
            at.append(window.leases)
            seconds.append(max(front_s, seconds[-1]))
    return Curve((*at, at[-1] + 1.0), (*seconds, seconds[-1])), back_s
