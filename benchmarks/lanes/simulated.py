"""`python -m benchmarks.lanes.simulated`: the same contest in virtual time, a few seconds a run.

Mixes, sides and judgement are those of `python -m benchmarks.lanes`; the simulator's cell with a cost file takes the
place of the running cluster. The figures of a side are those of all seeds together. `shortest` gets one deadline for
all requests, so that its order is that of the work alone.

`--tenants` adds cases: all requests divided among twenty equal tenants; and these at 0.8 times the capacity, without
and with a flood: another one's short requests, at 0.8 times what a closed loop of such requests gets through.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import yaml
from numpy.typing import NDArray

from benchmarks.harness import JsonFile, Traces, console, listed, plain_table, write_json
from benchmarks.lanes.mix import LANES, MIXES, SIDES, LaneTraffic, lane_index, lane_traffic
from benchmarks.lanes.results import IN_TIME_S
from benchmarks.serving.sides import one_replica_spec
from cluster.spec import ClusterSpec, parse_spec
from deployments.engine_model.cost_file import CostFile, read_cost_file
from deployments.scheduling import SchedulingPolicy
from deployments.scheduling.policy import binding_of, policy_of
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.workload import Workload, plain_workload
from planning.workload.trace import Trace

TTFT_SLO_S = 5.0
_DECODE_WEIGHT = 4.0
TENANTS = 20
"""The tenant that floods has this number."""
_CLIENTS, _BLOCK = 256, 4_000
_QUEUE_WAIT_S = 1_800.0
_LARGEST = 0.95
"""The quantile of the requests' work from which on they are the largest."""


def side_spec(name: str, **sections: Any) -> ClusterSpec:
    """The spec of a side, with further sections."""
    text = yaml.safe_load(one_replica_spec(8_000)) | json.loads(json.dumps(SIDES[name])) | sections
    return parse_spec(yaml.safe_dump(text))


def cell_run(
    costs: CostFile,
    spec: ClusterSpec,
    work: Workload,
    *,
    policy: SchedulingPolicy | None = None,
    sequences: int | None = None,
    clients: int = 0,
) -> SimulationOutcome:
    """One engine, until drained. `policy`, `sequences`: instead of the spec's and of the file's; `clients`: of a closed
    loop."""
    limits = costs.limits()
    settings = CellSettings(
        replicas=1,
        limits=limits if sequences is None else replace(limits, sequences=sequences),
        policy=policy or policy_of(spec),
        binding=binding_of(spec),
        max_model_len=spec.models[0].settings.max_model_len,
        queue_wait_s=_QUEUE_WAIT_S,
        clients=clients,
    )
    return CellSimulator(settings, costs.cost_model(), work).run()


@dataclass(frozen=True, slots=True)
class LaneArrivals:
    """A mix, with the number of each request's tenant (None: all are of one)."""

    mix: Trace
    tenant: NDArray[np.int64] | None = None

    @property
    def lanes(self) -> NDArray[np.int64]:
        """The lane by length of each request, whatever the side."""
        lengths = zip(self.mix.prompt_tokens.tolist(), self.mix.output_tokens.tolist(), strict=True)
        return np.array([lane_index(prompt, output) for prompt, output in lengths])

    def of_others(self) -> NDArray[np.bool_]:
        """The requests that are not of the tenant that floods."""
        return np.ones(len(self.mix), dtype=np.bool_) if self.tenant is None else self.tenant != TENANTS

    def workload(self, side: str) -> Workload:
        """As the simulator takes it."""
        mix = self.mix
        work = plain_workload(mix.arrived_s, mix.prompt_tokens, mix.output_tokens, TTFT_SLO_S)
        if side == "shortest":
            work = replace(work, ttft_slo_s=1e6 - mix.arrived_s)
        return work if self.tenant is None else replace(work, tenant=[f"tenant-{one}" for one in self.tenant.tolist()])


class Rehearsal:
    """One simulated replica, and what it is to serve."""

    def __init__(self, costs: CostFile, traffic: LaneTraffic) -> None:
        self._costs = costs
        self._traffic = traffic

    def capacity(self, seed: int, short: bool = False) -> float:
        """Requests a second that a closed loop gets through, the first and the last tenth left out; of `short` ones."""
        block = self._traffic.block(_BLOCK, seed)
        if short:
            block = block.take(np.flatnonzero(LaneArrivals(block).lanes == 0))
        ended = np.sort(self.run(LaneArrivals(block), "fifo", _CLIENTS).finished_s)
        low, high = np.quantile(ended, (0.1, 0.9))
        return float(((ended >= low) & (ended < high)).sum() / (high - low))

    def run(self, arrivals: LaneArrivals, side: str, clients: int = 0) -> SimulationOutcome:
        """A side, until drained."""
        return cell_run(self._costs, side_spec(side), arrivals.workload(side), clients=clients)

    def cases(self, load: float, duration_s: float, seed: int, tenants: bool) -> dict[str, LaneArrivals]:
        """The arrivals of a seed, by case."""
        capacity, rng = self.capacity(seed), np.random.default_rng(seed)
        mix = self._traffic.draw(load * capacity, duration_s, seed + 1)
        found = {f"{load:g} times": LaneArrivals(mix)}
        if not tenants:
            return found
        found["twenty tenants"] = LaneArrivals(mix, rng.integers(TENANTS, size=len(mix)))
        calm = self._traffic.draw(0.8 * capacity, duration_s, seed + 1_000)
        others = LaneArrivals(calm, rng.integers(TENANTS, size=len(calm)))
        flood = _flooded(others, round(0.8 * self.capacity(seed, short=True) * duration_s), duration_s, rng)
        return {**found, "no flood": others, "flood": flood}


def _flooded(others: LaneArrivals, count: int, duration_s: float, rng: np.random.Generator) -> LaneArrivals:
    """The others' requests, and so many short ones of one more tenant."""
    mix, tenant = others.mix, others.tenant
    picks = rng.choice(np.flatnonzero(others.lanes == 0), size=count)
    arrived_s = np.concatenate([mix.arrived_s, np.sort(rng.uniform(0, duration_s, count))])
    turn = np.argsort(arrived_s, kind="stable")
    prompts, outputs = (np.concatenate([own, own[picks]])[turn] for own in (mix.prompt_tokens, mix.output_tokens))
    whose = np.concatenate([tenant, np.full(count, TENANTS)])[turn]
    return LaneArrivals(Trace(arrived_s[turn], prompts, outputs), whose)


Run = tuple[LaneArrivals, SimulationOutcome]


def pooled(runs: Sequence[Run], lane_names: Sequence[str]) -> dict[str, Any]:
    """The figures of a side over all seeds; `lane_names`: the side's own. Times in seconds; what got no first token
    counts as a miss, and not in means. `served`: output tokens until the last arrival. `queue_steps`: the p99 of the
    engine's own queue in median steps. `within_p95`: the share of the waits that were within the estimated p95, by
    lane. Of a flood, attainment is that of the others."""
    ttft_s = np.concatenate([np.where(np.isnan(out.first_s), np.inf, out.ttft_s) for _, out in runs])
    lane = np.concatenate([one.lanes for one, _ in runs])
    others = np.concatenate([one.of_others() for one, _ in runs])
    work = np.concatenate([one.mix.prompt_tokens + _DECODE_WEIGHT * one.mix.output_tokens for one, _ in runs])
    queued_s, step_s = (
        np.concatenate([getattr(out, name) for _, out in runs]) for name in ("engine_queued_s", "tpot_s")
    )
    in_time = ttft_s <= IN_TIME_S
    return {
        "requests": len(ttft_s),
        "failed": int(np.isinf(ttft_s).sum()),
        "mean": _mean(ttft_s),
        "in_time": float(in_time[others].mean()),
        "worst_lane": min(float(in_time[others & (lane == number)].mean()) for number in range(len(LANES))),
        "largest_mean": _mean(ttft_s[work >= np.quantile(work, _LARGEST)]),
        "served": sum(_served(one.mix, out) for one, out in runs),
        "tokens_per_s": sum(float(out.output_tokens[~np.isnan(out.first_s)].sum()) for _, out in runs)
        / sum(out.ended_s for _, out in runs),
        "short_p99": float(np.quantile(ttft_s[lane == 0], 0.99, method="higher")),
        "longest": [float(ttft_s[lane == number].max()) for number in range(len(LANES))],
        "queue_steps": float(np.nanquantile(queued_s, 0.99) / np.nanmedian(step_s)),
        "within_p95": {name: _within_p95(runs, number) for number, name in enumerate(lane_names)},
    }


def _within_p95(runs: Sequence[Run], lane: int) -> float:
    """Of the waits of a lane that were announced; requests that left before their p95 prove nothing."""
    known = within = 0
    for _, out in runs:
        wait_s = np.where(out.expired, out.expired_s, out.placed_s) - out.arrived_s
        proven = ~np.isnan(out.placed_s) | (wait_s > out.eta_p95_s)
        told = (out.lane == lane) & ~np.isnan(out.eta_p95_s) & ~out.rejected & proven
        known, within = known + int(told.sum()), within + int((wait_s <= out.eta_p95_s)[told].sum())
    return within / known if known else float("nan")


def _served(mix: Trace, out: SimulationOutcome) -> float:
    end_s, first_s = mix.arrived_s[-1], np.nan_to_num(out.first_s, nan=np.inf)
    took_s = np.maximum(np.nan_to_num(out.finished_s, nan=np.inf) - first_s, 1e-9)
    done = np.where(first_s < end_s, np.clip((end_s - first_s) / took_s, 0.0, 1.0), 0.0)
    return float((done * mix.output_tokens).sum())


def _mean(times_s: NDArray[np.float64]) -> float:
    answered = times_s[np.isfinite(times_s)]
    return float(answered.mean()) if len(answered) else float("nan")


def main(
    costs: Annotated[Path, typer.Argument(help="A cost file of the engine (`raylane calibrate`).")],
    traces: Traces,
    mixes: Annotated[str, typer.Option(help=f"Some of: {', '.join(MIXES)}.")] = "azure-mooncake",
    sides: Annotated[str, typer.Option(help=f"Some of: {', '.join(SIDES)}.")] = "fifo,shortest,lanes",
    seeds: Annotated[str, typer.Option(help="Seeds.")] = "0,1,2",
    load: Annotated[float, typer.Option(help="Share of the capacity.")] = 1.2,
    tenants: Annotated[bool, typer.Option("--tenants", help="Also with twenty tenants, and with a flood.")] = False,
    duration_s: Annotated[float, typer.Option(help="Seconds of arrivals.")] = 300.0,
    json_file: JsonFile = None,
) -> None:
    """Compare lanes with other orders in virtual time."""
    file, found = read_cost_file(costs), []
    chosen = listed("--sides", sides, SIDES)
    context = side_spec("fifo").models[0].settings.max_model_len
    for mix_name in listed("--mixes", mixes, MIXES):
        rehearsal = Rehearsal(file, lane_traffic(traces, context, mix_name))
        runs: dict[tuple[str, str], list[Run]] = {}
        for seed in map(int, seeds.split(",")):
            for case, arrivals in rehearsal.cases(load, duration_s, seed, tenants).items():
                for side in chosen:
                    runs.setdefault((case, side), []).append((arrivals, rehearsal.run(arrivals, side)))
        table = plain_table(
            f"{mix_name}: TTFT in s, of {len(next(iter(runs.values())))} seeds; the engine's queue (p99) in steps",
            *("case", "side", "mean", f"in {IN_TIME_S:g} s", "worst", "largest", "short p99", "longest", "served"),
            *("tokens/s", "steps", "within p95"),
            left=2,
        )
        for (case, side), of_side in runs.items():
            figures = pooled(of_side, [lane.name for lane in side_spec(side).lanes])
            found.append({"mix": mix_name, "case": case, "side": side, **figures})
            table.add_row(
                *(case, side, f"{figures['mean']:.2f}", f"{figures['in_time']:.3f}", f"{figures['worst_lane']:.3f}"),
                *(f"{figures['largest_mean']:.1f}", f"{figures['short_p99']:.2f}"),
                " ".join(f"{one:.0f}" for one in figures["longest"]),
                *(f"{figures['served']:.0f}", f"{figures['tokens_per_s']:.0f}", f"{figures['queue_steps']:.1f}"),
                " ".join(f"{one:.3f}" for one in figures["within_p95"].values()),
            )
        console.print(table)
    write_json({"load": load, "duration_s": duration_s, "found": found}, json_file)


if __name__ == "__main__":
    typer.run(main)
