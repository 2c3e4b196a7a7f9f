"""The page of a calibration: the fit, its residuals on steps that it was not fitted to, the host's part, and what was
not covered; one HTML file that stands alone."""

import numpy as np
import plotly.graph_objects as go

from deployments.engine_model.cost_file import CalibrationRecord, CostFile
from deployments.engine_model.cost_model import Chunk
from planning.costs.calibration import Calibration, kv_per_decode
from planning.costs.residuals import parts
from planning.report.figures import BLUE, GREEN, INK, LANES, ORANGE, RED, SLATE, Tone, empty_figure
from planning.report.layout import in_script, laid_out
from planning.report.words import Card, duration

_POINTS = 400
"""Of each part, and of each kind of step; more are drawn on top of each other."""
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "star", "cross")
_TONES = (*LANES, RED, INK)
_BESIDE = (0, 16, 64)
_TICKS = [digit * 10.0**power for power in range(-2, 6) for digit in (1, 2, 5)]
_LOG_AXIS = {"type": "log", "tickvals": _TICKS, "ticktext": [f"{tick:,g}" for tick in _TICKS]}
"""Plotly's own labels between the powers of ten are single digits: 5 for 50."""
RESIDUAL_COLUMNS = ("part", "steps", "share of the time", "error in all", "of a single step", "nine of ten within")


def render(found: Calibration, requests: int, failed: int) -> str:
    """The whole file; `failed` of the `requests` were not answered. Raises ValueError for a cost file without a
    calibration."""
    record = found.file.calibration
    if record is None:
        raise ValueError("the cost file holds no calibration")
    figures = {
        "residuals": _residuals_figure(found),
        "decodes": _decodes_figure(found.file),
        "prompts": _prompts_figure(found.file),
        "reach": _reach_figure(found),
    }
    low, high = found.file.likely()
    return laid_out(
        "calibration.html",
        requests=requests,
        failed=failed,
        file=found.file,
        record=record,
        headline=headline(record),
        good=not any(abs(one.bias) > high - 1 for one in record.residuals),
        likely=f"{100 * (low - 1):+.0f} to {100 * (high - 1):+.0f} %",
        cards=_cards(found.file, record),
        columns=RESIDUAL_COLUMNS,
        rows=residual_rows(record),
        figures=[(key, in_script(str(figure.to_json()))) for key, figure in figures.items()],
    )


def headline(record: CalibrationRecord) -> str:
    """The one line on top."""
    far = max(record.residuals, key=lambda one: abs(one.bias))
    return (
        f"{record.steps:,} steps measured. Of those that were not fitted, the part furthest off is “{far.part}”, by "
        f"{100 * far.bias:+z.1f} % in all."
    )


def residual_rows(record: CalibrationRecord) -> list[tuple[str, ...]]:
    """A row a part, in the order of `RESIDUAL_COLUMNS`."""
    return [
        (
            one.part,
            f"{one.steps:,}",
            f"{100 * one.share:.1f} %",
            f"{100 * one.bias:+z.1f} %",
            f"{100 * one.error:.1f} %",
            f"{100 * one.p90:.1f} %",
        )
        for one in record.residuals
    ]


def _cards(file: CostFile, record: CalibrationRecord) -> list[Card]:
    host = record.host
    if host.host_step_s is None or host.kernels_s is None:
        of_host = Card("Host's part of a step", "not known", "needs a GPU that is known, and the model's config.json")
    else:
        low, high = host.host_step_s
        of_host = Card(
            "Host's part of a step",
            f"{1e3 * low:.2f} to {1e3 * high:.2f} ms",
            f"beside kernels of {1e3 * host.kernels_s:.2f} ms by the data sheet",
        )
    leases, front_s = file.front.at[max(0, len(file.front.at) - 2)], file.front.seconds[-1]
    return [
        Card("Step of one decode", f"{1e3 * host.step_s:.2f} ms", "with an empty KV cache"),
        of_host,
        Card("More for one that prefills", f"{1e3 * host.prefill_step_s:.2f} ms", "one token instead of decoding it"),
        Card(
            "Request, before and after its steps",
            f"{duration(host.front_s)} and {duration(host.back_s)}",
            f"before them {duration(front_s)} beside {leases:.0f} others" if leases else "no open loop was measured",
        ),
    ]


def _residuals_figure(found: Calibration) -> go.Figure:
    figure = empty_figure("measured time of a step, ms", "predicted less measured, %")
    for number, part in enumerate(parts()):
        rows = found.held.seconds.get(part)
        if rows is None:
            continue
        rows = rows[:: max(1, len(rows) // _POINTS)]
        figure.add_trace(
            _points(part, 1e3 * rows[:, 0], 100 * (rows[:, 1] / rows[:, 0] - 1), _TONES[number], _SYMBOLS[number])
        )
    figure.update_xaxes(**_LOG_AXIS)
    figure.add_hline(y=0, line={"color": INK.line, "width": 1})
    _with_legend(figure)
    return figure


def _decodes_figure(file: CostFile) -> go.Figure:
    cost, engine = file.cost_model(), file.engine
    figure = empty_figure("sequences that decode", "time of a step, ms")
    x = np.unique(np.linspace(1, engine.max_num_seqs, 80).astype(int))
    for each, tone in ((256, BLUE), (2_048, ORANGE), (8_192, GREEN)):
        kept = [int(n) for n in x if n * each <= engine.kv_tokens]
        y = [1e3 * cost.run_s(1, n, n * each) for n in kept]
        figure.add_trace(_curve(f"{each:,} KV tokens each", kept, y, tone))
    _with_legend(figure)
    return figure


def _prompts_figure(file: CostFile) -> go.Figure:
    cost, engine = file.cost_model(), file.engine
    figure = empty_figure("prompt tokens of a step", "time of a step, ms")
    for decodes, tone in zip(_BESIDE, (BLUE, ORANGE, GREEN), strict=True):
        if decodes and decodes >= engine.max_num_seqs:
            continue
        x = np.unique(np.linspace(1, engine.max_num_batched_tokens - decodes, 80).astype(int)).tolist()
        y = [1e3 * cost.step_s([Chunk(tokens, 0)], decodes, 1_000 * decodes, 1) for tokens in x]
        name = f"beside {decodes} decodes with 1,000 KV tokens each" if decodes else "alone"
        figure.add_trace(_curve(name, x, y, tone))
    _with_legend(figure)
    return figure


def _reach_figure(found: Calibration) -> go.Figure:
    figure = empty_figure("sequences that decode", "KV tokens of each")
    seen = np.array(list(kv_per_decode(found.steps)) or [(1, 1.0)])
    seen = seen[:: max(1, len(seen) // (5 * _POINTS))]
    figure.add_trace(_points("measured steps", seen[:, 0], np.maximum(1.0, seen[:, 1]), BLUE, "circle"))
    engine = found.file.engine
    x = np.unique(np.geomspace(1, engine.max_num_seqs, 40).astype(int))
    full = _curve("the KV cache is full", x.tolist(), (engine.kv_tokens / x).tolist(), SLATE)
    figure.add_trace(full)
    figure.update_xaxes(**_LOG_AXIS)
    figure.update_yaxes(type="log", dtick=1)
    _with_legend(figure)
    return figure


def _points(name: str, x: object, y: object, tone: Tone, symbol: str) -> go.Scatter:
    return go.Scatter(
        name=name,
        x=x,
        y=y,
        mode="markers",
        marker={"size": 5, "color": tone.line, "symbol": symbol, "opacity": 0.65},
        hovertemplate=f"{name}<br>%{{x:.3s}}, %{{y:.3s}}<extra></extra>",
    )


def _curve(name: str, x: list[int], y: list[float], tone: Tone) -> go.Scatter:
    return go.Scatter(
        name=name,
        x=x,
        y=y,
        mode="lines",
        line={"color": tone.line, "width": 1.8},
        hovertemplate=f"{name}<br>%{{x:,}}: %{{y:.4s}}<extra></extra>",
    )


def _with_legend(figure: go.Figure) -> None:
    figure.update_layout(
        showlegend=True,
        margin={"l": 62, "r": 12, "t": 64, "b": 46},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
    )
