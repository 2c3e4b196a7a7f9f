"""`python -m benchmarks.lanes.itl`: whether replicas keep a class's `itl_ms`, and what that costs, in virtual time.

One engine under 1.2 times its capacity. The SLO is half way between the p95 of the answers' mean time between tokens
with two sequences (the floor) and without a cap. It is to be kept, by the class's attainment, in nine of the ten
minutes after the first two. The sides:

- `fixed`: the `max_num_seqs` of the most output tokens among those that keep it in nine minutes.
- `right`, `too fast`, `too slow`: the cap begins with what `best_point` says of the true costs, of costs that are 1.4
  times too low, and too high.
- `none`: it begins with `max_num_seqs`.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.harness import JsonFile, Traces, console, listed, plain_table, write_json
from benchmarks.lanes.mix import MIXES, LaneTraffic, lane_traffic
from benchmarks.lanes.simulated import TTFT_SLO_S, Rehearsal, cell_run, side_spec
from cluster.spec import DEFAULT_GROUP, ClusterSpec
from deployments.engine_model.cost_file import CostFile, read_cost_file
from deployments.engine_model.cost_model import slowed
from deployments.engine_model.itl_bounds import with_starts
from deployments.scheduling.policy import policy_of
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.workload import plain_workload
from planning.workload.trace import Trace

_BEGIN_S, _MINUTES, _CLASS = 120.0, 10, "interactive"
_KEPT, _ATTAINMENT = 9, 0.95
_FLOOR = 2
_FACTORS = {"right": 1.0, "too fast": 1 / 1.4, "too slow": 1.4}


@dataclass(frozen=True, slots=True)
class ItlRun:
    """A run from `_BEGIN_S` on: output tokens a second, the p95 of the answers' mean time between tokens, the share of
    answers in time, and in how many minutes that was at least the attainment."""

    tokens_per_s: float
    p95_s: float
    in_time: float = 1.0
    kept: int = _MINUTES


class ItlContest:
    """One engine and one mix of traffic."""

    def __init__(self, costs: CostFile, traffic: LaneTraffic, seed: int) -> None:
        self._costs = costs
        self.maximum = costs.limits().sequences
        until_s = _BEGIN_S + 60.0 * _MINUTES
        rate = 1.2 * Rehearsal(costs, traffic).capacity(seed)
        self._mix = traffic.draw(rate, until_s, seed + 1)
        ends = [self.run(sequences, None) for sequences in (_FLOOR, self.maximum)]
        self.floor_s, self.uncapped = ends[0].p95_s, ends[1]
        self.itl_s = (self.floor_s + self.uncapped.p95_s) / 2

    def run(self, max_num_seqs: int, itl_s: float | None, start: int | None = None) -> ItlRun:
        """With a fixed `max_num_seqs`, judged by `itl_s`; with a `start`: with the cap, which begins there."""
        mix, spec = self._mix, self._spec(itl_s if start is not None else None)
        policy = policy_of(spec)
        if start is not None:
            policy = replace(policy, itl={_CLASS: replace(policy.itl[_CLASS], starts={DEFAULT_GROUP: start})})
        work = plain_workload(mix.arrived_s, mix.prompt_tokens, mix.output_tokens, TTFT_SLO_S)
        out = cell_run(self._costs, spec, work, policy=policy, sequences=max_num_seqs)
        return _judged(mix, out, itl_s)

    def best_fixed(self) -> tuple[int, ItlRun]:
        """The best `max_num_seqs`, one in every 6 %, from the largest on until two in turn give less."""
        best, sequences, worse = (_FLOOR, ItlRun(0.0, 0.0)), self.maximum, 0
        while sequences > _FLOOR and worse < 2:
            found = self.run(sequences, self.itl_s)
            if found.kept >= _KEPT:
                worse = 0 if found.tokens_per_s > best[1].tokens_per_s else worse + 1
                best = max(best, (sequences, found), key=lambda one: one[1].tokens_per_s)
            sequences = min(sequences - 1, round(sequences / 1.06))
        return best

    def starts(self) -> dict[str, int]:
        """With how many sequences the cap begins, by side."""
        limits, cost = self._costs.limits(), self._costs.cost_model()
        costs = {side: (limits, slowed(cost, by)) for side, by in _FACTORS.items()}
        return {**with_starts(policy_of(self._spec(self.itl_s)), costs).itl[_CLASS].starts, "none": self.maximum}

    def _spec(self, itl_s: float | None) -> ClusterSpec:
        slo: dict[str, Any] = {} if itl_s is None else {"itl_ms": 1e3 * itl_s}
        one = {"name": _CLASS, "ttft_ms": 5_000, "attainment": _ATTAINMENT, **slo}
        return side_spec("lanes", classes=[one])


def _judged(mix: Trace, out: SimulationOutcome, itl_s: float | None) -> ItlRun:
    end_s, first_s, finished_s = mix.arrived_s[-1], out.first_s, out.finished_s
    within_s = np.minimum(finished_s, end_s) - np.maximum(first_s, _BEGIN_S)
    share = np.nan_to_num(np.clip(within_s / np.maximum(finished_s - first_s, 1e-9), 0.0, 1.0))
    rate = float((share * mix.output_tokens).sum() / (end_s - _BEGIN_S))
    several = mix.output_tokens > 1
    answered = several & (finished_s >= _BEGIN_S) & (finished_s < end_s)
    tpot_s = out.tpot_s
    p95_s = float(np.quantile(tpot_s[answered], 0.95))
    if itl_s is None:
        return ItlRun(rate, p95_s)
    minute = np.floor((finished_s - _BEGIN_S) / 60.0)
    kept = [float((tpot_s[answered & (minute == n)] <= itl_s).mean()) >= _ATTAINMENT for n in range(_MINUTES)]
    return ItlRun(rate, p95_s, float((tpot_s[answered] <= itl_s).mean()), sum(kept))


def main(
    costs: Annotated[Path, typer.Argument(help="A cost file of the engine (`raylane calibrate`).")],
    traces: Traces,
    mixes: Annotated[str, typer.Option(help=f"Some of: {', '.join(MIXES)}.")] = "azure-mooncake",
    seeds: Annotated[str, typer.Option(help="Seeds.")] = "0,1,2",
    json_file: JsonFile = None,
) -> None:
    """Keep a time between tokens in virtual time."""
    file, found = read_cost_file(costs), []
    context = side_spec("lanes").models[0].settings.max_model_len
    for mix in listed("--mixes", mixes, MIXES):
        traffic = lane_traffic(traces, context, mix)
        for seed in map(int, seeds.split(",")):
            contest = ItlContest(file, traffic, seed)
            best, fixed = contest.best_fixed()
            title = (
                f"{mix}, seed {seed}: itl_ms {1e3 * contest.itl_s:.1f} (floor {1e3 * contest.floor_s:.1f}, uncapped "
                f"{1e3 * contest.uncapped.p95_s:.1f} ms and {contest.uncapped.tokens_per_s:.0f} tokens/s)"
            )
            table = plain_table(title, "side", "begins with", "kept of 10", "in time", "tokens/s", "of fixed", left=1)
            sides = {"fixed": (best, fixed)}
            for side, start in contest.starts().items():
                sides[side] = start, contest.run(contest.maximum, contest.itl_s, start)
            for side, (start, run) in sides.items():
                ratio = run.tokens_per_s / fixed.tokens_per_s if fixed.tokens_per_s else float("nan")
                figures = {"kept": run.kept, "in_time": run.in_time, "tokens_per_s": run.tokens_per_s, "ratio": ratio}
                found.append({"mix": mix, "seed": seed, "side": side, "itl_s": contest.itl_s, "start": start} | figures)
                rest = (f"{run.in_time:.3f}", f"{run.tokens_per_s:.0f}", f"{ratio:.3f}")
                table.add_row(side, str(start), str(run.kept), *rest)
            console.print(table)
    write_json({"attainment": _ATTAINMENT, "found": found}, json_file)


if __name__ == "__main__":
    typer.run(main)
