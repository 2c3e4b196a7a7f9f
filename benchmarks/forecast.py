"""`python -m benchmarks.forecast`: how far forecasts of 10, 30, 60 and 180 minutes ahead are off, on recorded rates by
ten minutes.

Each is made from what came before it alone. The error is the sum of absolute errors over the sum of rates. For ours,
also the share of the true rates of the next half hour that lay within 1.645 standard errors (90 % is expected), as the
autoscaler sees them: learned as they came. Compared are our forecast, naive ones, and two heavier methods of the same
library.
"""

import csv
import gzip
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from statsmodels.tsa.ar_model import AutoReg
from statsmodels.tsa.holtwinters import ExponentialSmoothing
from statsmodels.tsa.seasonal import MSTL

from autoscaling.forecast.autoregression import foretell
from autoscaling.forecast.history import A_DAY, A_WEEK, STEP_S, FloatArray, History, history_of_rates, known
from autoscaling.forecast.seasonal import STEPS, SeasonalForecaster
from autoscaling.signals.signals import unseen
from benchmarks.harness import JsonFile, console, plain_table, run_facts, write_json
from deployments.scheduling.snapshot import FlowStats

Side = Callable[[FloatArray], FloatArray]
"""From the rates so far to those of the next `STEPS` steps; NaN where it cannot tell."""


def _last(rates: FloatArray) -> FloatArray:
    return np.full(STEPS, rates[-1])


def _yesterday(rates: FloatArray) -> FloatArray:
    return rates[len(rates) - A_DAY :][:STEPS]


def _last_week(rates: FloatArray) -> FloatArray:
    return rates[len(rates) - A_WEEK :][:STEPS] if len(rates) >= A_WEEK else np.full(STEPS, np.nan)


def _holt_winters(rates: FloatArray) -> FloatArray:
    model = ExponentialSmoothing(
        np.sqrt(rates), seasonal="add", seasonal_periods=A_DAY, initialization_method="heuristic"
    )
    return np.asarray(model.fit().forecast(STEPS)) ** 2


def _mstl(rates: FloatArray) -> FloatArray:
    if len(rates) <= 2 * A_DAY:
        return np.full(STEPS, np.nan)
    roots = np.sqrt(rates)
    daily = np.asarray(MSTL(roots, periods=(A_DAY,)).fit().seasonal)
    rest = AutoReg(roots - daily, lags=3).fit().predict(len(roots), len(roots) + STEPS - 1)
    return np.asarray(rest + daily[-A_DAY:][:STEPS]) ** 2


SIDES: Mapping[str, Side] = {
    "raylane": lambda rates: foretell(rates, STEPS)[0],
    "same time yesterday": _yesterday,
    "same time last week": _last_week,
    "last value": _last,
    "Holt-Winters": _holt_winters,
    "MSTL + AR": _mstl,
}


_AHEAD = (1, 3, 6, 18)


def read_rates(path: Path, model: str) -> History:
    """A model's rows of a CSV file with the columns model, t (seconds) and rate_rps."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        rows = [(float(row["t"]), float(row["rate_rps"])) for row in csv.DictReader(lines) if row["model"] == model]
    if not rows:
        raise typer.BadParameter(f"no row of model {model!r} in {path}")
    at_s, rates = np.array(rows).T
    return history_of_rates(at_s, rates)


def errors(rates: FloatArray, origins: list[int]) -> dict[str, dict[str, float]]:
    """By side: the error by steps ahead, and the time of a forecast."""
    came = np.array([rates[origin : origin + STEPS] for origin in origins])
    found = {}
    for name, side in SIDES.items():
        began = time.perf_counter()
        reported = np.array([side(rates[:origin]) for origin in origins])
        each_ms = 1e3 * (time.perf_counter() - began) / len(origins)
        able = ~np.isnan(reported[:, 0])
        off = np.abs(reported - came)[able]
        found[name] = {
            f"{10 * ahead} min": float(off[:, ahead - 1].sum() / came[able, ahead - 1].sum()) for ahead in _AHEAD
        } | {"ms": each_ms}
    return found


def coverage(rates: FloatArray, first: int) -> float:
    """Of the next three rates, the share within 1.645 of the forecaster's own standard errors, step after step."""
    forecaster, work, inside = SeasonalForecaster(History(0, tuple(rates[:first].tolist()))), 0.0, []
    for step in range(first, len(rates) - 3):
        flow = FlowStats("all", "", 0, work, 0, 0, 0, 1.0)
        forecaster.look(unseen(step * STEP_S, step * STEP_S, 1).showing(flows=(flow,)))
        work += float(rates[step]) * STEP_S
        reported = forecaster.forecast(step * STEP_S)
        if reported is not None:
            inside.append(
                np.abs(rates[step : step + 3] - reported.work_per_s[:3]) <= 1.645 * np.array(reported.error[:3])
            )
    return float(np.mean(inside))


def main(
    rates_file: Annotated[Path, typer.Argument(metavar="RATES", help="CSV, optionally gzipped: model, t, rate_rps.")],
    model: Annotated[str, typer.Option(help="Whose rows.")] = "m-small",
    from_day: Annotated[int, typer.Option(min=2, help="The first day that is judged; 0 is the first of all.")] = 2,
    every: Annotated[int, typer.Option(min=1, help="Steps between two forecasts.")] = 5,
    json_file: JsonFile = None,
) -> None:
    """Compare forecasts."""
    rates = known(read_rates(rates_file, model))
    origins = list(range(from_day * A_DAY, len(rates) - STEPS, every))
    if not origins:
        raise typer.BadParameter(f"{len(rates) / A_DAY:.1f} days of rates; needed: more than {from_day}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rivals' fits do not always converge
        found = errors(rates, origins)
    covered = coverage(rates, from_day * A_DAY)
    title = f"{model}: {len(rates) / A_DAY:.1f} days, {len(origins)} forecasts from day {from_day} on"
    table = plain_table(title, "forecast", *(f"{10 * ahead} min" for ahead in _AHEAD), "ms each")
    for name, figures in found.items():
        table.add_row(
            name,
            *(
                "-" if np.isnan(figures[f"{10 * ahead} min"]) else f"{figures[f'{10 * ahead} min']:.1%}"
                for ahead in _AHEAD
            ),
            f"{figures['ms']:.1f}",
        )
    console.print(table)
    console.print(f"within 1.645 standard errors, 10 to 30 minutes ahead: {covered:.1%} (90 % is expected)")
    write_json(
        {
            **run_facts(),
            "model": model,
            "days": len(rates) / A_DAY,
            "forecasts": len(origins),
            "errors": found,
            "coverage": covered,
        },
        json_file,
    )


if __name__ == "__main__":
    typer.run(main)
