"""`python -m benchmarks.truth`: the highest rate that the simulator states for replicas on this machine, against the
one that a search by measurement finds.

The spec's engine is calibrated first (`raylane calibrate`), unless a cost file is given. From it `highest_rate` states
the rate at which a share of the requests gets the first token within the SLO. Then a private cell of the same spec gets
the same mix as Poisson arrivals, at rates around the stated one, in turns, so that a slow drift of the machine meets
all of them; where the SLO is not broken within these rates, or always, further ones are tried. The true rate is where
the TTFT of that share crosses the SLO; its 95 % interval comes from drawing the runs of each rate again (bootstrap).
"""

import math
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import yaml
from numpy.typing import NDArray

from benchmarks.harness import JsonFile, at_speed, console, in_turns, plain_table, run_facts, run_program, write_json
from cli.bench.client import BenchClient
from cli.bench.prompts import measure_vocabulary
from cli.private_cell import PrivateCell
from cli.rehearse_live import LiveRunner
from cluster.spec import ClusterSpec, Model, load_spec
from deployments.engine_model.cost_file import CostFile, read_cost_file
from planning.capacity.judging import RateSlo
from planning.capacity.rates import HeldRate, cell_of, highest_rate
from planning.capacity.sampling import judged_part, poisson
from planning.rehearsal import rehearsed
from planning.simulator.workload import Workload
from planning.uncertainty import cost_range
from planning.workload.traces import read_trace

ALLOWED = 0.10
"""The stated rate may be so far from the measured interval."""
_FACTORS = (0.8, 0.9, 1.0, 1.1, 1.2)
"""Of the stated rate: where it is measured first."""
_STEP, _FURTHER = 1.15, 4
"""Between further rates, and how many are tried on a side."""
_FIRST_SEED = 1_000
"""The stated rate's runs have other seeds."""
_WORST = 10.0
"""A TTFT counts as at most so many times the SLO: what was not answered has none."""
_DRAWS = 4_000
_SHARE = 0.9
"""Of the requests: so many are to be within the SLO."""


@dataclass(frozen=True, slots=True)
class TruthPlan:
    """What is compared: a model of a spec, on so many replicas, and how it is measured."""

    spec: ClusterSpec
    model: Model
    replicas: int
    pin: bool
    runs: int
    seconds: float
    slo: RateSlo


@dataclass(frozen=True, slots=True)
class RatePoint:
    """What the runs of one rate gave: the TTFT (s) that the SLO's share of requests stayed within."""

    rate: float
    ttft_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TrueRate:
    """Requests/s, and its 95 % interval."""

    per_s: float
    low: float
    high: float

    def allows(self, stated: float) -> bool:
        """Whether a stated rate is within the interval, or at most ALLOWED beyond."""
        return (1 - ALLOWED) * self.low <= stated <= (1 + ALLOWED) * self.high


def crossing(rates: NDArray[np.float64], ttft_s: NDArray[np.float64], slo_s: float) -> float:
    """The rate at which the TTFT, which does not fall with the rate, crosses the SLO: between two rates on a straight
    line in logarithms. The first or the last rate where it does not."""
    level = np.maximum.accumulate(np.log(ttft_s / slo_s))
    above = np.flatnonzero(level > 0)
    if not len(above) or above[0] == 0:
        return float(rates[0] if len(above) else rates[-1])
    last = int(above[0])
    share = -level[last - 1] / (level[last] - level[last - 1])
    return float(rates[last - 1] * (rates[last] / rates[last - 1]) ** share)


def true_rate(points: list[RatePoint], slo_s: float, seed: int = 0) -> TrueRate:
    """From the geometric mean of each rate's runs; the interval from runs drawn again."""
    points = sorted(points, key=lambda point: point.rate)
    rates = np.array([point.rate for point in points])
    runs = [np.minimum(np.array(point.ttft_s), _WORST * slo_s) for point in points]
    rng = np.random.default_rng(seed)
    drawn = [
        crossing(rates, np.array([np.exp(np.log(rng.choice(one, len(one))).mean()) for one in runs]), slo_s)
        for _ in range(_DRAWS)
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    mean = np.array([np.exp(np.log(one).mean()) for one in runs])
    return TrueRate(crossing(rates, mean, slo_s), float(low), float(high))


class _Search:
    """Measures one cell."""

    def __init__(self, plan: TruthPlan, sample: Workload, runner: LiveRunner) -> None:
        self._plan = plan
        self._sample = sample
        self._runner = runner
        self._seed = _FIRST_SEED

    async def points(self, stated: float) -> list[RatePoint]:
        """The runs at the rates around the stated one, and beyond where all of them are on one side of the SLO."""
        found = await self._measured([factor * stated for factor in _FACTORS])
        for _ in range(_FURTHER):
            means = [math.exp(np.log(point.ttft_s).mean()) / self._plan.slo.ttft_s for point in found]
            if means[0] > 1:
                found = [*await self._measured([found[0].rate / _STEP]), *found]
            elif max(means) < 1:
                found = [*found, *await self._measured([found[-1].rate * _STEP])]
            else:
                break
        return found

    async def _measured(self, rates: list[float]) -> list[RatePoint]:
        ttft_s: dict[float, list[float]] = {rate: [] for rate in rates}
        for number in range(self._plan.runs):
            for rate in in_turns(rates, number):
                self._seed += 1
                ttft_s[rate].append(await self._run(rate))
                console.print(
                    f"{rate:.2f}/s, run {number + 1}: {1e3 * ttft_s[rate][-1]:.0f} ms", style="dim", highlight=False
                )
        return [RatePoint(rate, tuple(own)) for rate, own in ttft_s.items()]

    async def _run(self, rate: float) -> float:
        plan = self._plan
        work = poisson(self._sample, rate, max(40, round(rate * plan.seconds)), self._seed)
        lived = await self._runner.run(work)
        ttft_s = np.nan_to_num(lived.run.ttft_s, nan=_WORST * plan.slo.ttft_s)[judged_part(len(work))]
        return float(np.quantile(ttft_s, plan.slo.share, method="higher"))


def stated_rate(plan: TruthPlan, sample: Workload, costs: CostFile) -> HeldRate:
    """What the simulator says, from costs that were measured on this machine."""
    spec, model = plan.spec, plan.model
    pool = spec.pool_of(model, spec.regions_of(model)[0])
    slos = {sample.traffic_class[0]: plan.slo}
    cell = cell_of(spec, model, costs, plan.replicas)
    return highest_rate(cell, costs.cost_model(), sample, slos, costs=cost_range(costs, model, pool))


def calibrated(plan: TruthPlan, trace: Path, length_scale: float, minutes: float, folder: Path) -> CostFile:
    """By `raylane calibrate`, on one replica."""
    spec_file, out = folder / "calibrated.yaml", folder / "costs.json"
    content = plan.spec.model_dump(mode="json", exclude_unset=True)
    spec_file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    options = ["--model", plan.model.name, "--replicas", "1", "--minutes", str(minutes), "--out", str(out)]
    options += ["--trace", str(trace), "--length-scale", str(length_scale), *(["--pin"] if plan.pin else [])]
    done = subprocess.run([sys.executable, "-m", "cli.main", "calibrate", str(spec_file), *options], check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)
    return read_cost_file(out)


def measured(plan: TruthPlan, sample: Workload, stated: float) -> list[RatePoint]:
    """The measured search around the stated rate."""

    async def work(folder: Path) -> dict[str, Any]:
        async with (
            PrivateCell(plan.spec, plan.model.name, plan.replicas, folder / "cell") as cell,
            BenchClient(cell.url, "completions") as client,
        ):
            if plan.pin:
                await cell.pin()
            vocabulary = await measure_vocabulary(client, plan.model.name)
            lanes = tuple(lane.name for lane in plan.spec.lanes)
            runner = LiveRunner(cell, client, vocabulary, plan.model.name, lanes)
            await runner.capacity(sample.head(200), 8, 0)  # warm
            return {"points": await _Search(plan, sample, runner).points(stated)}

    points: list[RatePoint] = run_program(work)["points"]
    return points


def _show(plan: TruthPlan, held: HeldRate, points: list[RatePoint], true: TrueRate, within: bool) -> None:
    table = plain_table(
        f"{plan.replicas} x {plan.model.name}: {plan.slo.share:.0%} within {1e3 * plan.slo.ttft_s:.0f} ms",
        *("requests/s", "TTFT of the runs, ms"),
        left=0,
    )
    for point in points:
        table.add_row(f"{point.rate:.2f}", " ".join(f"{1e3 * ttft_s:.0f}" for ttft_s in sorted(point.ttft_s)))
    console.print(table)
    console.print(
        f"stated {held.per_s:.2f}/s ({held.low:.2f} to {held.high:.2f}, bound by {held.bound}); measured "
        f"{true.per_s:.2f}/s ({true.low:.2f} to {true.high:.2f}); difference {held.per_s / true.per_s - 1:+.1%}: "
        f"{'within' if within else 'beyond'} {ALLOWED:.0%} and the interval",
        highlight=False,
    )


def main(
    spec_file: Annotated[Path, typer.Argument(help="The spec whose model runs.")],
    trace: Annotated[Path, typer.Option(help="Lengths of prompts and answers: its second half is sent.")],
    length_scale: Annotated[float, typer.Option(min=0.001, max=10)] = 1.0,
    replicas: Annotated[int, typer.Option(min=1)] = 1,
    pin: Annotated[bool, typer.Option("--pin", help="Give each replica a core of its own.")] = False,
    costs: Annotated[Path | None, typer.Option(help="Instead of a calibration.")] = None,
    minutes: Annotated[float, typer.Option(help="How long to calibrate.")] = 3.0,
    speed: Annotated[float | None, typer.Option(min=0.001, help="Of simulated engines, instead of the spec's.")] = None,
    ttft_ms: Annotated[float | None, typer.Option(min=1, help="Instead of the first class's.")] = None,
    runs: Annotated[int, typer.Option(min=1)] = 5,
    seconds: Annotated[float, typer.Option(min=5)] = 60.0,
    json_file: JsonFile = None,
) -> None:
    """Compare the highest rate that is stated with the one that is measured."""
    spec = load_spec(spec_file)
    spec = spec if speed is None else at_speed(spec, speed)
    model = spec.models[0]
    slo = RateSlo((ttft_ms or spec.classes[0].ttft_ms) / 1e3, _SHARE)
    plan = TruthPlan(spec, model, replicas, pin, runs, seconds, slo)
    recorded = rehearsed(read_trace(trace), model.settings.max_model_len, length_scale, slo.ttft_s)
    sample = recorded.tail(len(recorded) - len(recorded) // 2)
    with tempfile.TemporaryDirectory(prefix="truth-") as folder:
        file = calibrated(plan, trace, length_scale, minutes, Path(folder)) if costs is None else read_cost_file(costs)
    held = stated_rate(plan, sample, file)
    console.print(f"stated: {held.per_s:.2f} requests/s", highlight=False)
    points = measured(plan, sample, held.per_s)
    true = true_rate(points, slo.ttft_s)
    within = true.allows(held.per_s)
    _show(plan, held, points, true, within)
    found = {"points": [asdict(point) for point in points], **asdict(true)}
    write_json({**run_facts(), "stated": asdict(held), "measured": found, "within": within}, json_file)
    raise typer.Exit(0 if within else 1)


if __name__ == "__main__":
    typer.run(main)
