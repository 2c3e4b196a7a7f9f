"""A recorded run of one vLLM engine, and the engine model with the same requests: how far the costs of steps are off.

A run is a file of JSON lines, compressed with gzip or not, a request each:

    input_toks, output_toks                    tokens of the prompt and of the answer
    arrival_time                               when the client sent it, by the client's clock
    queued_ts, scheduled_ts                    when the engine first looked at it, and began it
    first_token_ts, last_token_ts              when its first and last token were there, by the engine's clock

Times are seconds; other keys are not read. A request's time counts from the client's sending it. What was scheduled as
soon as the engine looked at it did not queue.
"""

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from cluster.errors import InputError
from deployments.engine_model.cost_file import CostFile
from deployments.engine_model.cost_model import CostModel, slowed
from deployments.engine_model.engine import EngineModel
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.sequence import Sequence
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.workload import Workload, plain_workload
from planning.workload.arrivals import FloatArray
from planning.workload.lengths import IntArray

NO_QUEUE_S = 1e-3
_Tokens = Annotated[int, msgspec.Meta(ge=1)]


class RecordedRunError(InputError):
    """A run that cannot be read or compared; the message names file, line and what is allowed."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A line of the file."""

    input_toks: _Tokens
    output_toks: _Tokens
    arrival_time: float
    queued_ts: float
    scheduled_ts: float
    first_token_ts: float
    last_token_ts: float

    def __post_init__(self) -> None:
        if not self.queued_ts <= self.scheduled_ts <= self.first_token_ts <= self.last_token_ts:
            raise ValueError("queued_ts, scheduled_ts, first_token_ts and last_token_ts are not in this order")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Seconds and tokens by request, in the order in which they were sent. `tpot_s`: NaN for a single token."""

    arrived_s: FloatArray
    prompt: IntArray
    output: IntArray
    ttft_s: FloatArray
    tpot_s: FloatArray
    unqueued: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FigureComparison:
    """A figure in seconds, as it was measured and as it is simulated; `low` and `high`: at the ends of the range that
    the cost file states."""

    name: str
    measured_s: float
    simulated_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float:
        return self.simulated_s / self.measured_s - 1 if self.measured_s else math.inf

    @property
    def in_range(self) -> bool:
        return self.low_s <= self.measured_s <= self.high_s


def read_run(path: Path) -> RecordedRun:
    """The run in a file. Raises RecordedRunError."""
    decoder, rows, number = msgspec.json.Decoder(RecordedRequest), list[RecordedRequest](), 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for line in file:
                number += 1
                if line.strip():
                    rows.append(decoder.decode(line))
    except (OSError, EOFError, zlib.error) as error:  # the last two: a damaged gzip stream
        raise RecordedRunError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RecordedRunError(f"{path}: line {number}: {error}; allowed: a request (docs/costs.md)") from error
    if not rows:
        raise RecordedRunError(f"{path}: 0 requests; allowed: 1 or more (docs/costs.md)")
    rows.sort(key=lambda row: row.arrival_time)
    keys = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    arrived, queued, scheduled, first, last = (np.array([getattr(row, key) for row in rows]) for key in keys)
    prompt, output = (np.array([getattr(row, key) for row in rows]) for key in ("input_toks", "output_toks"))
    arrived += (queued - arrived).min()  # to the engine's clock: the fastest took no time to the engine's queue
    return RecordedRun(
        arrived - arrived[0],
        prompt,
        output,
        first - arrived,
        np.where(output > 1, (last - first) / np.maximum(output - 1, 1), np.nan),
        scheduled - queued < NO_QUEUE_S,
    )


def compared(run: RecordedRun, file: CostFile) -> list[FigureComparison]:
    """The run's figures beside those of the file's engine. Raises RecordedRunError for a request that the engine cannot
    hold."""
    cost, limits = file.cost_model(), file.limits()
    longest = int((run.prompt + run.output).max())
    if longest > file.engine.kv_tokens:
        raise RecordedRunError(
            f"the run has a request of {longest} tokens; allowed: at most the {file.engine.kv_tokens} KV tokens of the "
            "cost file's engine"
        )
    ends = [simulated_figures(run, slowed(cost, factor), limits) for factor in file.likely()]
    simulated = simulated_figures(run, cost, limits)
    return [
        FigureComparison(name, measured_s, simulated[name], *sorted(end[name] for end in ends))
        for name, measured_s in measured_figures(run).items()
    ]


def simulated_figures(
    run: RecordedRun, cost: CostModel, limits: EngineModelLimits, ready_s: float = 0.0
) -> dict[str, float]:
    """What the engine model does with the same requests. `ready_s`: when the engine took its first one."""
    arrived_s = np.maximum(run.arrived_s + cost.front(0.0), ready_s)
    out = run_engine(limits, cost, plain_workload(arrived_s, run.prompt, run.output))
    return _figures(out.first_s - run.arrived_s, out.tpot_s, run.unqueued)


def measured_figures(run: RecordedRun) -> dict[str, float]:
    return _figures(run.ttft_s, run.tpot_s, run.unqueued)


def _figures(ttft_s: FloatArray, tpot_s: FloatArray, unqueued: NDArray[np.bool_]) -> dict[str, float]:
    """Those that have a value: of all requests, and of those that did not queue."""
    found = {}
    for name, chosen in (("", np.ones(len(ttft_s), dtype=bool)), ("unqueued ", unqueued)):
        for kind, values in (("TTFT", ttft_s[chosen]), ("TPOT", tpot_s[chosen])):
            if not np.isnan(values).all():
                found[f"{name}{kind} mean"] = float(np.nanmean(values))
                found |= {f"{name}{kind} p{level}": float(np.nanpercentile(values, level)) for level in (50, 90)}
    return found


def run_engine(limits: EngineModelLimits, cost: CostModel, workload: Workload) -> SimulationOutcome:
    """Runs a workload on one engine alone, first come first served, as `vllm serve` does."""
    engine, out = (
        EngineModel(limits, cost),
        SimulationOutcome.empty(workload.arrived_s, workload.prompt_tokens, workload.output_tokens),
    )
    arrivals = workload.arrived_s.tolist()
    index = 0
    while index < len(arrivals) or engine.next_s < math.inf:
        if index < len(arrivals) and arrivals[index] <= engine.next_s:
            engine.add(
                Sequence(index, int(out.prompt_tokens[index]), 0, int(out.output_tokens[index])), arrivals[index]
            )
            out.placed_s[index] = arrivals[index]
            index += 1
            continue
        now = engine.next_s
        boundary = engine.advance()
        for sequence in boundary.first:
            out.first_s[_index(sequence)] = now + cost.back_s
        for sequence in boundary.finished:
            out.finished_s[_index(sequence)] = now + cost.back_s
        out.ended_s = now
    out.itl_s = {share: engine.itl.quantile(share) for share in (0.5, 0.9, 0.99)}
    out.preemptions = engine.preemptions
    return out


def _index(sequence: Sequence) -> int:
    assert isinstance(sequence.tag, int)
    return sequence.tag
