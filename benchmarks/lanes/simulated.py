"""`python -m benchmarks.lanes.simulated`: the same contest in virtual time, a few seconds a pair.

The same mixes, policies and judgement as `python -m benchmarks.lanes`; the simulator's cell (`planning/simulator`) with
a cost file instead of the running cluster. Made for ablations: many seeds are affordable, and no other load of the
machine disturbs them.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import yaml

from benchmarks.harness import JsonFile, Traces, console, listed, write_json
from benchmarks.lanes.mix import MIXES, SIDES, LaneTraffic, lane_traffic
from benchmarks.lanes.results import LaneVerdict, SideResult, by_lane, judge, of_times, overall, verdict_table
from benchmarks.lanes.wait_coverage import WaitRecord, coverage
from benchmarks.serving.sides import one_replica_spec
from cluster.spec import ClusterSpec, parse_spec
from deployments.engine_model.cost_file import CostFile, read_cost_file
from deployments.scheduling.policy import binding_of, policy_of
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.workload import plain_workload
from planning.workload.trace import Trace

CLIENTS = 256
TTFT_SLO_S = 5.0
_QUEUE_WAIT_S = 1_800.0
_BLOCK = 4_000


class Rehearsal:
    """One simulated replica, and what it is to serve."""

    def __init__(self, costs: CostFile, traffic: LaneTraffic) -> None:
        self._costs = costs
        self._traffic = traffic

    def capacity(self, seed: int) -> float:
        """Requests a second that a closed loop gets through, the first and the last tenth left out."""
        outcome = self._run(self._traffic.block(_BLOCK, seed), "fifo", CLIENTS)
        ended = np.sort(outcome.finished_s)
        low, high = np.quantile(ended, (0.1, 0.9))
        return float(((ended >= low) & (ended < high)).sum() / (high - low))

    def run(self, mix: Trace, side: str) -> SideResult:
        """A side, until drained."""
        out = self._run(mix, side, 0)
        answered = ~np.isnan(out.first_s)
        ttft_s = np.where(answered, out.ttft_s, np.inf)
        decoded = answered & (out.output_tokens > 1)
        return SideResult(
            by_lane(mix, ttft_s),
            overall(ttft_s),
            coverage(_wait_estimates(out, [lane.name for lane in side_spec(side).lanes])),
            of_times(out.engine_queued_s[answered], out.tpot_s[decoded]),
            float(out.output_tokens[answered].sum() / out.ended_s),
            out.ended_s,
            0.0,
            {"rejected": int(out.rejected.sum()), "expired": int(out.expired.sum())} if not answered.all() else {},
            float(mix.arrived_s[-1]),
        )

    def _run(self, mix: Trace, side: str, clients: int) -> SimulationOutcome:
        spec = side_spec(side)
        settings = CellSettings(
            replicas=1,
            limits=self._costs.limits(),
            policy=policy_of(spec),
            binding=binding_of(spec),
            max_model_len=spec.models[0].settings.max_model_len,
            queue_wait_s=_QUEUE_WAIT_S,
            clients=clients,
        )
        workload = plain_workload(mix.arrived_s, mix.prompt_tokens, mix.output_tokens, TTFT_SLO_S)
        return CellSimulator(settings, self._costs.cost_model(), workload).run()


def side_spec(name: str) -> ClusterSpec:
    """The spec of a side."""
    return parse_spec(yaml.safe_dump(yaml.safe_load(one_replica_spec(8_000)) | json.loads(json.dumps(SIDES[name]))))


def _wait_estimates(out: SimulationOutcome, lanes: list[str]) -> list[WaitRecord]:
    reported = np.flatnonzero(~np.isnan(out.eta_p95_s) & ~out.rejected)
    left_s = np.where(out.expired, out.expired_s, out.placed_s)
    return [
        WaitRecord(
            lanes[out.lane[one]],
            float(out.arrived_s[one]),
            float(out.eta_p50_s[one]),
            float(out.eta_p95_s[one]),
            float(left_s[one] - out.arrived_s[one]),
            bool(np.isfinite(out.placed_s[one])),
        )
        for one in reported
    ]


def main(
    costs: Annotated[Path, typer.Argument(help="A cost file of the engine (`raylane calibrate`).")],
    traces: Traces,
    mixes: Annotated[str, typer.Option(help=f"Some of: {', '.join(MIXES)}.")] = "azure-mooncake",
    sides: Annotated[str, typer.Option(help=f"Some of: {', '.join(SIDES)}; each against fifo.")] = "lanes",
    seeds: Annotated[str, typer.Option(help="Seeds; each has one pair of runs.")] = "0,1,2",
    load: Annotated[float, typer.Option(help="Share of the capacity.")] = 1.2,
    duration_s: Annotated[float, typer.Option(help="Seconds of arrivals.")] = 300.0,
    json_file: JsonFile = None,
) -> None:
    """Compare lanes with first-in-first-out in virtual time."""
    file = read_cost_file(costs)
    context = parse_spec(one_replica_spec(8_000)).models[0].settings.max_model_len
    found = []
    for mix_name in listed("--mixes", mixes, MIXES):
        traffic = lane_traffic(traces, context, mix_name)
        rehearsal = Rehearsal(file, traffic)
        verdicts: dict[str, list[tuple[str, LaneVerdict]]] = {side: [] for side in listed("--sides", sides, SIDES)}
        for seed in map(int, seeds.split(",")):
            capacity = rehearsal.capacity(seed)
            mix = traffic.draw(load * capacity, duration_s, seed + 1)
            fifo = rehearsal.run(mix, "fifo")
            for side, known in verdicts.items():
                known.append((f"seed {seed}, {capacity:.1f} requests/s", judge(rehearsal.run(mix, side), fifo)))
        for side, known in verdicts.items():
            console.print(verdict_table(f"{side} against fifo, {mix_name}, {load:g} x capacity", known))
            found.append(
                {"mix": mix_name, "side": side, "pairs": [{"of": name} | asdict(verdict) for name, verdict in known]}
            )
    write_json({"load": load, "duration_s": duration_s, "found": found}, json_file)


if __name__ == "__main__":
    typer.run(main)
