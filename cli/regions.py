"""All cells of a cluster in one view, from any of them: what `--all-regions` of `status`, `top`, `why` and `cost` reads
and shows.

The cell that is asked asks its peers (`deployments/gateway/peers/view.py`), and waits for none of them longer than some
seconds. A cell that does not answer is a line that says so, with what it said last and how old that is.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

import typer
from rich.console import Group, RenderableType
from rich.markup import escape

from cli.console import Table, plain_table, shown_span
from cli.gateway import ask
from deployments.gateway.operators.report import CellReport, ModelReport, RegionAnswer, RegionsReport
from deployments.lane_stats import LaneStats
from deployments.wire import WireError, from_plain

AllRegions = Annotated[
    bool, typer.Option("--all-regions", help="All cells of the cluster, as the one that is asked sees them.")
]
_ANSWER_S = 10.0
ContentT = TypeVar("ContentT")
Cells = RegionsReport[CellReport]


def fetch_regions(base: str, view: str, kind: type[ContentT], **query: object) -> RegionsReport[ContentT]:
    """What all cells say, or the one named as `region`. Ends the command where the cell that is asked does not
    answer."""
    path = f"/raylane/regions?{urlencode({'view': view, **query})}"
    found = ask(base, path, RegionsReport[Any], timeout_s=_ANSWER_S)
    return RegionsReport(found.home, tuple(_read(one, kind) for one in found.regions))


def _read(one: RegionAnswer[Any], kind: type[ContentT]) -> RegionAnswer[ContentT]:
    """What makes no sense is as good as no answer, and spoils no other cell's."""
    if one.content is None:
        return one
    try:
        return replace(one, content=from_plain(one.content, kind))
    except WireError as error:
        return RegionAnswer(one.region, one.endpoint, False, None, str(error), None)


def status_view(cells: Cells) -> RenderableType:
    """A line for each cell of each model, and what cells know of each other."""
    columns = ("region", "ready", "waiting", "oldest", "running", "TTFT p50", "p95", "p99")
    return _by_model(
        cells, lambda: plain_table(*columns, left=1), lambda model: [_status_cells(model)], _digests(cells)
    )


def top_view(cells: Cells) -> RenderableType:
    """A line for each lane of each model in each cell."""
    columns = ("region", "lane", "waiting", "work", "oldest", "wait p50", "p95", "rejected")
    return _by_model(
        cells,
        lambda: plain_table(*columns, left=2),
        lambda model: [_lane_cells(lane, sum(model.rejections.get(lane.name, {}).values())) for lane in model.lanes],
    )


def _by_model(
    cells: Cells,
    table: Callable[[], Table],
    rows: Callable[[ModelReport], list[list[str]]],
    more: Iterable[RenderableType] = (),
) -> RenderableType:
    """A heading and a table for each model: on a narrow terminal no row has room for a model's name."""
    tables: dict[str, Table] = {}
    for one in cells.regions:
        for model in _models(one):
            for row in rows(model):
                shown = [escape(one.region), *row]
                filled = tables.setdefault(model.name, table())
                filled.add_row(*(shown if one.reachable else [f"[dim]{cell}[/]" for cell in shown]))
    counted = f"{len(tables)} model{'' if len(tables) == 1 else 's'}"
    head = f"[bold]{len(cells.regions)} regions[/], {counted}, as {escape(cells.home)} sees them"
    parts = [part for name, filled in tables.items() for part in (f"\n[bold]model {escape(name)}[/]", filled)]
    return Group(head, *unreachable_lines(cells), *parts, *more)


def _status_cells(model: ModelReport) -> list[str]:
    oldest_s = max((lane.oldest_wait_s for lane in model.lanes), default=0.0)
    counts = (f"{model.ready}/{model.desired_replicas}", str(model.waiting), f"{oldest_s:.1f} s", str(model.leases))
    return [*counts, *ttft_cells(model)]


def ttft_cells(model: ModelReport) -> list[str]:
    """The last minute's p50, p95 and p99."""
    ttft = model.ttft_ms
    return ["-"] * 3 if ttft is None else [f"{value:.0f} ms" for value in (ttft.p50, ttft.p95, ttft.p99)]


def _lane_cells(lane: LaneStats, rejected: int) -> list[str]:
    times = (lane.work_s, lane.oldest_wait_s, *(lane.eta_s or (None, None)))
    return [escape(lane.name), str(lane.waiting), *map(seconds, times), str(rejected)]


def unreachable_lines(cells: RegionsReport[Any]) -> Iterator[str]:
    """A line for each cell that does not answer, and what is known of it."""
    for one in cells.regions:
        if not one.reachable:
            old = one.age_s is not None and one.content is not None
            known = f"what is shown of it is {shown_span(one.age_s or 0.0)} old" if old else "nothing is known of it"
            yield f"[red]{escape(one.region)} is unreachable[/] ({escape(one.error)}); {known}"


def _digests(cells: Cells) -> Iterator[RenderableType]:
    """How old each cell's last digest of each peer is, by its own clock, and what that says."""
    table = plain_table("cell", "peer", "model", "digest age", "RTT", "trust", "no hand-over", left=3)
    for one in cells.regions:
        for model in _models(one) if one.reachable else ():
            for peer in model.peers:
                table.add_row(
                    escape(one.region),
                    escape(peer.cell),
                    escape(model.name),
                    "none" if peer.age_s is None else f"{peer.age_s:.1f} s",
                    "-" if peer.rtt_s is None else f"{1e3 * peer.rtt_s:.0f} ms",
                    f"{peer.trust:.0%}",
                    peer.barred or "-",
                )
    if table.row_count:
        yield from ("", table)


def _models(one: RegionAnswer[CellReport]) -> tuple[ModelReport, ...]:
    return () if one.content is None else one.content.models


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
