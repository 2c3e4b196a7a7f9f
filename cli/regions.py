"""All cells of a cluster in one view, from any of them: what `--all-regions` of `status`, `top`, `why` and `cost` reads
and shows.

The cell that is asked asks its peers (`deployments/gateway/peers/view.py`), and waits for none of them longer than some
seconds. A cell that does not answer is a line that says so, with what it said last and how old that is.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.console import Group, RenderableType
from rich.markup import escape

from cli.console import Table, plain_table, shown_span
from cli.gateway import ask

AllRegions = Annotated[
    bool, typer.Option("--all-regions", help="All cells of the cluster, as the one that is asked sees them.")
]
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class RegionView:
    """What a cell said; see `RegionAnswer`."""

    region: str
    endpoint: str
    reachable: bool
    age_s: float | None
    error: str
    content: Any


@dataclass(frozen=True, slots=True)
class AllCells:
    """`home`: the cell that was asked."""

    home: str
    regions: tuple[RegionView, ...]


def fetch_regions(base: str, view: str, **query: object) -> AllCells:
    """What all cells say, or the one named as `region`. Ends the command where the cell that is asked does not
    answer."""
    found = ask(base, f"/raylane/regions?{urlencode({'view': view, **query})}", timeout_s=_ANSWER_S)
    return AllCells(found["home"], tuple(RegionView(**one) for one in found["regions"]))


def raw(cells: AllCells) -> dict[str, Any]:
    """For `--json`."""
    return asdict(cells)


def status_view(cells: AllCells) -> RenderableType:
    """A line for each cell of each model, and what cells know of each other."""
    columns = ("region", "ready", "waiting", "oldest", "running", "TTFT p50", "p95", "p99")
    tables = _by_model(cells, lambda: plain_table(*columns, left=1), lambda one, model: [_status_cells(one, model)])
    return Group(_head(cells), *unreachable_lines(cells), *tables, *_digests(cells))


def _by_model(
    cells: AllCells, table: Callable[[], Table], rows: Callable[[RegionView, dict[str, Any]], list[list[str]]]
) -> Iterator[RenderableType]:
    """A heading and a table for each model: on a narrow terminal no row has room for a model's name."""
    for name in dict.fromkeys(model["name"] for one in cells.regions for model in _models(one)):
        filled = table()
        for one in cells.regions:
            for row in (row for model in _models(one) if model["name"] == name for row in rows(one, model)):
                filled.add_row(*_dimmed(one, row))
        yield f"\n[bold]model {escape(name)}[/]"
        yield filled


def _status_cells(one: RegionView, model: dict[str, Any]) -> list[str]:
    oldest_s = max((lane["oldest_wait_s"] for lane in model["lanes"]), default=0.0)
    ttft = model["ttft_ms"]
    return [
        escape(one.region),
        f"{sum(replica['state'] == 'ready' for replica in model['replicas'])}/{model['desired_replicas']}",
        str(sum(lane["waiting"] for lane in model["lanes"])),
        f"{oldest_s:.1f} s",
        str(model["leases"]),
        *((f"{ttft[key]:.0f} ms" for key in ("p50", "p95", "p99")) if ttft else ("-", "-", "-")),
    ]


def top_view(cells: AllCells) -> RenderableType:
    """A line for each lane of each model in each cell."""
    columns = ("region", "lane", "waiting", "work", "oldest", "wait p50", "p95", "rejected")
    tables = _by_model(
        cells,
        lambda: plain_table(*columns, left=2),
        lambda one, model: [_lane_cells(one, model, lane) for lane in model["lanes"]],
    )
    return Group(_head(cells), *unreachable_lines(cells), *tables)


def _lane_cells(one: RegionView, model: dict[str, Any], lane: dict[str, Any]) -> list[str]:
    rejected = sum(count for key, count in model["rejections"].items() if key.split("/")[0] == lane["name"])
    eta_s = lane["eta_s"] or (None, None)
    return [
        escape(one.region),
        escape(lane["name"]),
        str(lane["waiting"]),
        _seconds(lane["work_s"]),
        _seconds(lane["oldest_wait_s"]),
        _seconds(eta_s[0]),
        _seconds(eta_s[1]),
        str(rejected),
    ]


def _head(cells: AllCells) -> str:
    models = len({model["name"] for one in cells.regions for model in _models(one)})
    counted = f"{models} model{'' if models == 1 else 's'}"
    return f"[bold]{len(cells.regions)} regions[/], {counted}, as {escape(cells.home)} sees them"


def unreachable_lines(cells: AllCells) -> Iterator[str]:
    """A line for each cell that does not answer."""
    for one in cells.regions:
        if not one.reachable:
            yield f"[red]{escape(one.region)} is unreachable[/] ({escape(one.error)}); {_known(one)}"


def _known(one: RegionView) -> str:
    """What is known of a cell that does not answer."""
    if one.age_s is None or one.content is None:
        return "nothing is known of it"
    return f"what is shown of it is {shown_span(one.age_s)} old"


def _digests(cells: AllCells) -> Iterator[Table | str]:
    """How old each cell's last digest of each peer is, by its own clock, and what that says."""
    table = plain_table("cell", "peer", "model", "digest age", "RTT", "trust", "no hand-over", left=3)
    for one in cells.regions:
        for model in _models(one) if one.reachable else ():
            for peer in model.get("peers", ()):
                table.add_row(escape(one.region), escape(peer["cell"]), escape(model["name"]), *peer_cells(peer))
    if table.row_count:
        yield ""
        yield table


def peer_cells(peer: dict[str, Any]) -> list[str]:
    """The last columns of a line on a peer."""
    age_s, rtt_s = peer["age_s"], peer["rtt_s"]
    return [
        "none" if age_s is None else f"{age_s:.1f} s",
        "-" if rtt_s is None else f"{1e3 * rtt_s:.0f} ms",
        f"{peer['trust']:.0%}",
        peer["barred"] or "-",
    ]


def _models(one: RegionView) -> list[dict[str, Any]]:
    return [] if one.content is None else list(one.content["models"])


def _dimmed(one: RegionView, cells: list[str]) -> list[str]:
    return cells if one.reachable else [f"[dim]{cell}[/]" for cell in cells]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
