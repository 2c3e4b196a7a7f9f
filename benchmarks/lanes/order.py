"""`python -m benchmarks.lanes.order`: who goes first, in virtual time; all sides on the same arrivals and one engine.

- `fifo`: one lane, by arrival.
- `before`, `before, defaults`: an earlier version (`--before`, the folder of a checkout) with the lanes that this
  benchmark had then, and with its spec's defaults.
- `shortest`: plain shortest-work-first, one lane without promotion.
- `ours`: this version, with its spec's default lanes.

Then, of `before` and `ours`: all requests divided among twenty equal tenants, and a flood (one tenant's short requests
at 0.8 times the capacity, beside twenty others at 0.8 in sum). Figures are those of all seeds together.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
import yaml

from benchmarks.harness import JsonFile, Traces, console, listed, plain_table, write_json
from benchmarks.lanes.mix import BEFORE, LANES, MIXES, SIDES, lane_index, lane_traffic
from benchmarks.serving.sides import one_replica_spec
from cluster.spec import parse_spec
from planning.workload.arrivals import FloatArray
from planning.workload.trace import Trace

_HERE = Path(__file__).parents[2]
_SIDE = Path(__file__).with_name("order_side.py")
_SLO_S = 5.0
_ONE = {**SIDES["fifo"], "scheduling": {}}
_SECTIONS: dict[str, dict[str, Any]] = {
    "fifo": SIDES["fifo"],
    "before": BEFORE,
    "before, defaults": {},
    "shortest": _ONE,
    "ours": SIDES["lanes"],
}
TENANTS = 20
_FLOODER = TENANTS


@dataclass(frozen=True, slots=True)
class LaneArrivals:
    """A mix, with the number of each request's tenant."""

    mix: Trace
    tenant: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def lanes(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The lane by length of each request, whatever the side."""
        return np.array(
            [lane_index(int(p), int(o)) for p, o in zip(self.mix.prompt_tokens, self.mix.output_tokens, strict=True)]
        )


@dataclass(slots=True)
class PooledRuns:
    """The same side with all seeds: columns by request. `served`: output tokens until the last arrival."""

    ttft_s: list[FloatArray] = field(default_factory=list)
    lane: list[Any] = field(default_factory=list)
    tenant: list[Any] = field(default_factory=list)
    work: list[FloatArray] = field(default_factory=list)
    wait_s: list[FloatArray] = field(default_factory=list)
    p95_s: list[FloatArray] = field(default_factory=list)
    served: float = 0.0
    rejected: int = 0

    def add(self, arrivals: LaneArrivals, out: Any) -> None:
        mix = arrivals.mix
        first_s = np.where(np.isnan(out["first_s"]), np.inf, out["first_s"])
        self.ttft_s.append(first_s - mix.arrived_s)
        self.lane.append(arrivals.lanes)
        self.tenant.append(arrivals.tenant)
        self.work.append(mix.prompt_tokens + 4.0 * mix.output_tokens)
        self.wait_s.append(out["placed_s"] - mix.arrived_s)
        self.p95_s.append(np.where(out["rejected"], np.nan, out["eta_p95_s"]))
        end_s, finished_s = mix.arrived_s[-1], np.nan_to_num(out["finished_s"], nan=np.inf)
        took_s = np.maximum(finished_s - first_s, 1e-9)
        done = np.where(first_s < np.inf, np.clip((end_s - first_s) / took_s, 0.0, 1.0), 0.0)
        self.served += float((done * mix.output_tokens).sum())
        self.rejected += int(out["rejected"].sum())

    def figures(self) -> dict[str, Any]:
        """What is compared. Times in seconds; rejections count as misses, and not in means."""
        ttft, lane, work = (np.concatenate(one) for one in (self.ttft_s, self.lane, self.work))
        largest = work >= np.quantile(work, 0.95)
        return {
            "requests": len(ttft),
            "rejected": self.rejected,
            "mean": _mean(ttft),
            "within_5_s": float((ttft <= _SLO_S).mean()),
            "largest_mean": _mean(ttft[largest]),
            "served": self.served,
            "lanes": {
                str(one["name"]): {
                    "requests": int((lane == number).sum()),
                    "mean": _mean(ttft[lane == number]),
                    "p99": float(np.quantile(ttft[lane == number], 0.99, method="higher")),
                    "longest": float(ttft[lane == number].max()),
                    "within_5_s": float((ttft[lane == number] <= _SLO_S).mean()),
                    **self._coverage(number),
                }
                for number, one in enumerate(LANES)
            },
        }

    def _coverage(self, number: int) -> dict[str, float]:
        lane, wait, p95 = (np.concatenate(one) for one in (self.lane, self.wait_s, self.p95_s))
        known = (lane == number) & ~np.isnan(p95) & ~np.isnan(wait)
        count = int(known.sum())
        return {"estimates": count, "coverage": float((wait[known] <= p95[known]).mean()) if count else float("nan")}

    def shares(self) -> dict[str, float]:
        """Of a flood: the others' requests that start in time, in all and in the worst lane; the flooder's output."""
        ttft, lane, tenant = (np.concatenate(one) for one in (self.ttft_s, self.lane, self.tenant))
        others = tenant != _FLOODER
        by_lane = [float((ttft[others & (lane == n)] <= _SLO_S).mean()) for n in range(len(LANES))]
        return {
            "others": float((ttft[others] <= _SLO_S).mean()),
            "worst_lane": min(by_lane),
            "flooder": float((ttft[~others] <= _SLO_S).mean()) if (~others).any() else float("nan"),
            "served": self.served,
        }


def _mean(times: FloatArray) -> float:
    answered = times[np.isfinite(times)]
    return float(answered.mean()) if len(answered) else float("nan")


class Contest:
    """The runs of one mix."""

    def __init__(self, costs: Path, traces: Path, mix: str, before: Path, folder: Path) -> None:
        self._costs = costs.resolve()
        self._before = before.resolve()
        self._folder = folder
        self.context = parse_spec(one_replica_spec(8_000)).models[0].settings.max_model_len
        self.traffic = lane_traffic(traces, self.context, mix)

    def run(self, side: str, arrivals: LaneArrivals, clients: int = 0) -> Any:
        """The columns of a run."""
        text = yaml.safe_load(one_replica_spec(8_000)) | json.loads(json.dumps(_SECTIONS[side]))
        names = [f"tenant-{number}" for number in range(TENANTS)] + ["flooder"]
        run = {
            "spec": yaml.safe_dump(text),
            "costs": str(self._costs),
            "context": self.context,
            "clients": clients,
            "tenants": names,
        }
        mix = arrivals.mix
        slo_s = np.full(len(mix), _SLO_S)
        if side == "shortest":  # with one deadline for all, the order is that of the work
            slo_s = 1e6 - mix.arrived_s
        source, target = self._folder / "in.npz", self._folder / "out.npz"
        np.savez(
            source,
            run=json.dumps(run),
            arrived_s=mix.arrived_s,
            prompt_tokens=mix.prompt_tokens,
            output_tokens=mix.output_tokens,
            tenant=arrivals.tenant,
            slo_s=slo_s,
        )
        tree = self._before if side.startswith("before") else _HERE
        environment = os.environ | {"PYTHONPATH": str(tree)}
        subprocess.run([sys.executable, "-P", str(_SIDE), str(source), str(target)], env=environment, check=True)
        return np.load(target)

    def capacity(self, seed: int, short: bool = False) -> float:
        """Requests a second that a closed loop gets through, the first and the last tenth left out; of `short` ones."""
        block = self.traffic.block(4_000, seed)
        if short:
            kept = LaneArrivals(block, np.zeros(len(block), dtype=np.int64)).lanes == 0
            block = Trace(block.arrived_s[kept], block.prompt_tokens[kept], block.output_tokens[kept])
        ended = np.sort(self.run("fifo", LaneArrivals(block, np.zeros(len(block), dtype=np.int64)), 256)["finished_s"])
        low, high = np.quantile(ended, (0.1, 0.9))
        return float(((ended >= low) & (ended < high)).sum() / (high - low))

    def flood(self, capacity: float, of_short: float, duration_s: float, seed: int, flooded: bool) -> LaneArrivals:
        """Twenty tenants at 0.8 times the capacity; and, `flooded`, another one's short requests at 0.8 times
        what a closed loop of short ones alone gets through (`of_short`)."""
        rng = np.random.default_rng(seed)
        mix = self.traffic.draw(0.8 * capacity, duration_s, seed)
        tenant = rng.integers(TENANTS, size=len(mix))
        if not flooded:
            return LaneArrivals(mix, tenant)
        short = np.flatnonzero(LaneArrivals(mix, tenant).lanes == 0)
        count = round(0.8 * of_short * duration_s)
        picks = rng.choice(short, size=count)
        arrivals = np.concatenate([mix.arrived_s, np.sort(rng.uniform(0, duration_s, count))])
        turn = np.argsort(arrivals, kind="stable")
        prompts = np.concatenate([mix.prompt_tokens, mix.prompt_tokens[picks]])[turn]
        outputs = np.concatenate([mix.output_tokens, mix.output_tokens[picks]])[turn]
        whose = np.concatenate([tenant, np.full(count, _FLOODER)])[turn]
        return LaneArrivals(Trace(arrivals[turn], prompts, outputs), whose)


def contests(
    contest: Contest, seeds: list[int], loads: list[float], duration_s: float, sides: list[str]
) -> Iterator[tuple[str, str, PooledRuns]]:
    """(case, side, what came of it) of one mix."""
    pools: dict[tuple[str, str], PooledRuns] = {}

    def run(case: str, side: str, arrivals: LaneArrivals) -> None:
        pools.setdefault((case, side), PooledRuns()).add(arrivals, contest.run(side, arrivals))

    for seed in seeds:
        capacity = contest.capacity(seed)
        for number, load in enumerate(loads):
            mix = contest.traffic.draw(load * capacity, duration_s, seed + 1 + 100 * number)
            alone = LaneArrivals(mix, np.zeros(len(mix), dtype=np.int64))
            for side in sides:
                if side in ("before", "ours") or load > 1.0:
                    run(f"{load:g} times", side, alone)
            if load > 1.0:
                twenty = LaneArrivals(mix, np.random.default_rng(seed).integers(TENANTS, size=len(mix)))
                for side in ("before", "ours"):
                    if side in sides:
                        run(f"{load:g} times, twenty tenants", side, twenty)
        of_short = contest.capacity(seed, short=True)
        for flooded in (False, True):
            arrivals = contest.flood(capacity, of_short, duration_s, seed + 1_000, flooded)
            for side in ("before", "ours"):
                if side in sides:
                    run("flood" if flooded else "no flood", side, arrivals)
    for (case, side), pool in pools.items():
        yield case, side, pool


def main(
    costs: Annotated[Path, typer.Argument(help="A cost file of the engine (`raylane calibrate`).")],
    traces: Traces,
    before: Annotated[Path, typer.Option(help="The folder of an earlier version's checkout.")],
    mixes: Annotated[str, typer.Option(help=f"Some of: {', '.join(MIXES)}.")] = "azure-mooncake",
    sides: Annotated[str, typer.Option(help=f"Some of: {'; '.join(_SECTIONS)}.")] = ";".join(_SECTIONS),
    seeds: Annotated[str, typer.Option(help="Seeds.")] = "0,1,2",
    loads: Annotated[str, typer.Option(help="Shares of the capacity.")] = "0.7,1.0,1.2",
    duration_s: Annotated[float, typer.Option(help="Seconds of arrivals.")] = 300.0,
    json_file: JsonFile = None,
) -> None:
    """Compare orders in virtual time."""
    found: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        for mix in listed("--mixes", mixes, MIXES):
            contest = Contest(costs, traces, mix, before, Path(folder))
            table = plain_table(
                mix, "case", "side", "mean", "in 5 s", "largest", "served", "short p99", "longest", "coverage", left=2
            )
            for case, side, pool in contests(
                contest,
                [int(one) for one in seeds.split(",")],
                [float(one) for one in loads.split(",")],
                duration_s,
                sides.split(";"),
            ):
                figures = pool.figures() | ({"flood": pool.shares()} if "flood" in case else {})
                found.append({"mix": mix, "case": case, "side": side, **figures})
                lanes = figures["lanes"].values()
                table.add_row(
                    case,
                    side,
                    f"{figures['mean']:.2f}",
                    f"{figures['within_5_s']:.3f}",
                    f"{figures['largest_mean']:.1f}",
                    f"{figures['served']:.0f}",
                    f"{figures['lanes']['short']['p99']:.2f}",
                    " ".join(f"{one['longest']:.0f}" for one in lanes),
                    " ".join(f"{one['coverage']:.3f}({one['estimates']})" for one in lanes),
                )
                if "flood" in figures:
                    table.add_row("", "", *(f"{name} {value:.3f}" for name, value in figures["flood"].items()))
            console.print(table, width=170)
    write_json({"duration_s": duration_s, "found": found}, json_file)


if __name__ == "__main__":
    typer.run(main)
