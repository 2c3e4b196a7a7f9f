"""The comparison's result as tables."""

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text


def render(result: dict[str, Any]) -> Group:
    """One table of throughput and one of spaced TTFT, over the facts of the machine."""
    machine = result["machine"]
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items())
    facts = f"{machine['cores']} cores of {machine['processor']}, load {machine['load_average'][0]} at the start; {versions}; model {result['model']}"
    failed = sum(turn["failed"] for turn in _turns(result))
    tables = [_throughput(result), *([_singles(result)] if result["shape"]["singles"] else [])]
    return Group(*tables, Text(_shape(result["shape"])), Text(facts), Text(f"{failed} failed requests", style="red" if failed else "green"))


def _throughput(result: dict[str, Any]) -> Table:
    table = Table("rival", title="output tokens/s: ours / rival (the median of the rounds' ratios, and its interval)", title_justify="left")
    for column in ("clients", "ratio", "interval", "ours", "rival", "TTFT p50 ours", "rival"):
        table.add_column(column, justify="right")
    for found in result["comparisons"]:
        for point in found["points"]:
            ratio = point["ratio"]
            ours, rival = (_middle_turn(point, found[role]) for role in ("ours", "rival"))
            table.add_row(
                found["rival"],
                str(point["concurrency"]),
                f"{ratio['median']:.3f}",
                f"{ratio['low']:.3f}-{ratio['high']:.3f} ({ratio['coverage']:.0%})",
                f"{ours['tokens_per_s']:.0f}",
                f"{rival['tokens_per_s']:.0f}",
                _ms(ours["ttft_p50_ms"]),
                _ms(rival["ttft_p50_ms"]),
            )
    return table


def _shape(shape: dict[str, Any]) -> str:
    how = {"yes": "streamed", "no": "not streamed", "mixed": "every other one streamed"}[shape["stream"]]
    return f"{shape['prompt_tokens']} tokens of prompt, {shape['output_tokens']} of output, {how}; {shape['rounds']} rounds"


def _singles(result: dict[str, Any]) -> Table:
    table = Table("rival", title="TTFT of spaced single requests in ms, and the median of the pairs' differences", title_justify="left")
    for column in ("p50 ours", "rival", "p99 ours", "rival", "difference", "interval"):
        table.add_column(column, justify="right")
    for found in result["comparisons"]:
        singles = found["singles"]
        ours, rival = (singles["ttft_ms"][found[role]] for role in ("ours", "rival"))
        difference = singles["ttft_difference_ms"]
        spread = ("-", "-") if difference is None else (f"{difference['median']:+.2f}", f"{difference['low']:+.2f} to {difference['high']:+.2f}")
        table.add_row(found["rival"], *(_ms(side[percentile]) for percentile in ("p50", "p99") for side in (ours, rival)), *spread)
    return table


def _middle_turn(point: dict[str, Any], side: str) -> dict[str, Any]:
    """The turn with the side's median throughput."""
    turns = sorted((each[side] for each in point["rounds"]), key=lambda turn: float(turn["tokens_per_s"]))
    middle: dict[str, Any] = turns[len(turns) // 2]
    return middle


def _turns(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        each[found[role]] for found in result["comparisons"] for point in found["points"] for each in point["rounds"] for role in ("ours", "rival")
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
