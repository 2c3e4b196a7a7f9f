"""`raylane cost`: what a cell's replicas cost, and for whom: by tenant, class, model, group, region and hour."""

import csv
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import typer
from rich.console import Group
from rich.text import Text

from cli.console import AsJson, Table, console, errors, fail, print_json, seconds_of, show
from cli.extras import need_planning
from cli.gateway import Url, ask, base_url
from cli.options import check_outputs, write_page
from cli.regions import AllRegions, fetch_regions, unreachable_lines
from cli.run_dir import RunDir, home, known_clusters
from deployments.accounting.bill import (
    AMOUNTS,
    HOUR_NS,
    Bill,
    BillRow,
    Dimension,
    TimeShare,
    hour_named,
    hour_of,
    rounded,
    rows_by,
    total_of,
)
from deployments.accounting.facts import NS, ns
from deployments.accounting.store import read_bill
from deployments.store import FILE_NAME, CellStoreError

_LONGEST_S = 400 * 86_400.0
_ANSWER_S = 60.0
_DEFAULT = "tenant,class,model"
_DEFAULT_OF_ALL = "region,home,tenant,class"
_NUMBERS = ("replica-h", "USD", "share", "requests", "tokens in", "cached", "tokens out", "$/M in", "$/M out")
_ONLY_WIDE, _WIDE = ("share", "requests", "tokens in", "cached", "tokens out"), 120
"""Columns that a terminal of fewer characters has no room for."""


def cost(
    by: Annotated[
        str | None,
        typer.Option(
            help="What lines are summed up by: tenant, class, model, group, region, home, hour; or several. Default: "
            f"{_DEFAULT}; with --all-regions: {_DEFAULT_OF_ALL}."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="From which hour on (UTC): 2026-11-23T00, or a time ago: 24h, 7d. Default: all.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Up to which hour (not included), likewise. Default: now.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a page that stands alone.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Read the run directory of a cell, which may be down. Default: ask the cell.")
    ] = None,
    all_regions: AllRegions = False,
) -> None:
    """Show what the replicas of a cell cost, shared by the work that was done for each tenant and class.

    Idle, starting and unattributed time are lines of their own. All lines add up to replica-seconds times price.
    """
    dimensions = _dimensions(by if by is not None else _DEFAULT_OF_ALL if all_regions else _DEFAULT)
    now_ns = ns(datetime.now(UTC).timestamp())
    first_ns = 0 if since is None else _moment("--since", since, now_ns)
    last_ns = None if until is None else _moment("--until", until, now_ns)
    if first_ns >= (now_ns if last_ns is None else last_ns):
        fail(f"--since {since}, --until {until}: allowed: a beginning before the end, and before now", code=2)
    if as_csv and as_json:
        fail("--csv, --json: allowed: one of them", code=2)
    if out is not None:
        check_outputs(out=out)
        need_planning("cost --out")
    if all_regions and run_dir is not None:
        fail("--run-dir, --all-regions: allowed: one of them", code=2)
    asked = list(Dimension) if out is not None else [*dimensions, Dimension.HOME]
    if all_regions:
        bill, missing = _bill_of_all_regions(base_url(url), first_ns, last_ns, asked)
        for line in missing:
            errors.print(line)
    else:
        bill = _bill_of_one_cell(url, run_dir, first_ns, last_ns, asked)
    rows = rows_by(bill.lines, dimensions)
    if out is not None:
        _write_page(out, bill, rows, dimensions)
    if as_json:
        print_json(record_of(bill, rows, dimensions))
    elif as_csv:
        _print_csv(rows, dimensions)
    elif not rows:
        console.print("nothing is known of any replica in that time")
    else:
        show(_view(bill, rows, dimensions))


def _bill_of_one_cell(
    url: str | None, run_dir: Path | None, first_ns: int, last_ns: int | None, by: Sequence[Dimension]
) -> Bill:
    """The bill of the cell whose run directory is named; else of one that is up; else of the only one on this machine
    that was up."""
    if run_dir is not None:
        if not (run_dir / FILE_NAME).is_file():
            fail(f"--run-dir {run_dir}: has no {FILE_NAME}; allowed: the run directory of a cell", code=2)
        return _left(run_dir / FILE_NAME, first_ns, last_ns)
    if url is not None or known_clusters():
        base = base_url(url)
        return ask(base, f"/raylane/cost?{urlencode(_query(first_ns, last_ns, by))}", Bill, timeout_s=_ANSWER_S)
    found = sorted(home().glob(f"*/{FILE_NAME}")) if home().is_dir() else []
    if not found:
        fail("no cluster is up on this machine, and none has left a bill", hint="raylane up")
    if len(found) > 1:
        names = ", ".join(str(RunDir(path.parent.name).path) for path in found)
        fail(f"no cluster is up, and several have left bills; name one with --run-dir: {names}", code=2)
    return _left(found[0], first_ns, last_ns)


def _bill_of_all_regions(
    base: str, first_ns: int, last_ns: int | None, by: Sequence[Dimension]
) -> tuple[Bill, list[str]]:
    """The bills of all cells as one, and a line for each cell that is not in it. Each cell bills what it did, so that
    nothing is in two of them."""
    cells = fetch_regions(base, "cost", Bill, **_query(first_ns, last_ns, by))
    bill, missing = Bill(), [f"{line}: not in the sums" for line in unreachable_lines(cells)]
    for one in cells.regions:
        if one.reachable and one.content is not None:
            bill = bill.plus(one.content)
    return bill, missing


def _query(first_ns: int, last_ns: int | None, by: Sequence[Dimension]) -> dict[str, object]:
    return {"since_ns": first_ns, "by": ",".join(by), **({} if last_ns is None else {"until_ns": last_ns})}


def _left(path: Path, first_ns: int, last_ns: int | None) -> Bill:
    """What a cell has left here."""
    try:
        return read_bill(path, first_ns, last_ns)
    except (OSError, CellStoreError) as error:
        fail(f"{path}: cannot be read: {error}", code=2)


def _dimensions(given: str) -> list[Dimension]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in list(Dimension):
            fail(f"--by {name!r}: unknown; allowed: {', '.join(Dimension)}", code=2)
        if names.count(name) > 1:
            fail(f"--by {name!r}: appears twice", code=2)
    return [Dimension(name) for name in names]


def _moment(option: str, given: str, now_ns: int) -> int:
    """The beginning of the hour that a text says."""
    for form in ("%Y-%m-%dT%H", "%Y-%m-%d"):
        try:
            at = datetime.strptime(given, form).replace(tzinfo=UTC)
            return hour_named(at.strftime("%Y-%m-%dT%H"))
        except ValueError:
            continue
    try:
        return hour_of(now_ns - round(seconds_of(given, _LONGEST_S) * NS))
    except ValueError:
        fail(
            f"{option} {given!r}: allowed: an hour as 2026-11-23T00, a day as 2026-11-23, or a time ago as 90m, 24h, "
            "7d (at most 400d)",
            code=2,
        )


def record_of(bill: Bill, rows: Sequence[BillRow], by: Sequence[Dimension]) -> dict[str, Any]:
    """What `--json` prints. `usd` is exact, as a fraction."""
    total = total_of(rows)
    return {
        "by": [one.value for one in by],
        "rows": [
            {
                **dict(zip([one.value for one in by], row.labels, strict=True)),
                "share": row.share.value,
                "usd": str(row.usd),
                "usd_shown": str(row.shown),
                **{name: getattr(row.amounts, name) for name in AMOUNTS},
                "usd_per_mtok_in": row.usd_per_mtok_in,
                "usd_per_mtok_out": row.usd_per_mtok_out,
            }
            for row in rows
        ],
        "total": {"usd": str(total.usd), "usd_shown": str(total.shown), "ns": total.amounts.ns, **_all_in(rows)},
        "basis": dict(bill.basis),
        "unread_lines": bill.unread,
    }


def _all_in(rows: Sequence[BillRow]) -> dict[str, float | None]:
    """What a million tokens cost with all that is not work: in proportion to the work."""
    rows = [row for row in rows if row.share is not TimeShare.EXTERNAL]
    work, total = total_of(row for row in rows if row.share is TimeShare.WORK), total_of(rows)
    factor = float(total.usd / work.usd) if work.usd else 0.0
    return {
        f"all_in_usd_per_mtok_{name}": None if alone is None or not factor else alone * factor
        for name, alone in (("in", work.usd_per_mtok_in), ("out", work.usd_per_mtok_out))
    }


def _print_csv(rows: Sequence[BillRow], by: Sequence[Dimension]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*by, "share", "usd", *AMOUNTS])
    for row in rows:
        writer.writerow([*row.labels, row.share.value, row.shown, *row.amounts.values()])


def cells_of(row: BillRow, total_usd: Decimal, name: str | None = None) -> list[str]:
    """A row of the table."""
    amounts = row.amounts
    share = float(row.shown / total_usd) if total_usd else 0.0
    return [
        *(label or "-" for label in row.labels),
        row.share.value if name is None else name,
        f"{amounts.ns / HOUR_NS:,.3f}",
        f"{row.shown:,}",
        f"{100 * share:.1f} %",
        f"{amounts.requests + amounts.estimated + amounts.cut:,}",
        f"{amounts.prompt_tokens:,}",
        f"{amounts.cached_tokens:,}",
        f"{amounts.output_tokens:,}",
        _price(row.usd_per_mtok_in),
        _price(row.usd_per_mtok_out),
    ]


def _price(usd: float | None) -> str:
    return "-" if usd is None else f"{usd:,.4g}" if usd < 1_000 else f"{usd:,.0f}"


def table_of(rows: Sequence[BillRow], by: Sequence[Dimension]) -> tuple[list[str], list[list[str]]]:
    """The columns, and the rows with the total at the end."""
    total = total_of(rows)
    empty = ["all", *([""] * (len(by) - 1))] if by else []
    cells = [cells_of(row, total.shown) for row in rows]
    return [*(one.value for one in by), "time", *_NUMBERS], [*cells, [*empty, *cells_of(total, total.shown, "total")]]


def notes_of(bill: Bill, rows: Sequence[BillRow]) -> list[str]:
    """What there is to know of the figures, a line each."""
    amounts, all_in = total_of(rows).amounts, _all_in(rows)
    notes = [f"work of {name} is shared by {basis}" for name, basis in sorted(bill.basis.items())]
    prices = [_price(all_in[f"all_in_usd_per_mtok_{name}"]) for name in ("in", "out")]
    notes.append("$/M: dollars for a million prompt (in) or output (out) tokens, of the work alone")
    notes.append(f"with all that is not work, in proportion to it: {prices[0]} $/M in, {prices[1]} $/M out")
    if amounts.cut:
        notes.append(f"{amounts.cut:,} requests were cut by the end of a replica or gateway: nobody pays for them")
    if amounts.estimated:
        notes.append(
            f"{amounts.estimated:,} requests have no count by the engine (their clients left): estimated at "
            f"{amounts.estimated_prompt_tokens:,} tokens in, {amounts.estimated_output_tokens:,} out, not in the table"
        )
    guests = [line for line in bill.lines if line.key.home]
    if guests:
        usd = rounded([sum((line.usd for line in guests), Fraction(0))])[0]
        homes = ", ".join(sorted({line.key.home for line in guests}))
        notes.append(f"{usd} USD of it for requests that other cells handed over: home {homes} (--by home)")
    if not total_of(rows).usd:
        notes.append("no pool has a price (price_usd_per_hour)")
    if amounts.late:
        notes.append(f"{amounts.late:,} requests were reported late: they count in the hour of the report")
    if bill.unread:
        notes.append(f"{bill.unread:,} facts could not be read")
    return notes


def _view(bill: Bill, rows: Sequence[BillRow], by: Sequence[Dimension]) -> Group:
    columns, cells = table_of(rows, by)
    kept = [place for place, name in enumerate(columns) if console.width >= _WIDE or name not in _ONLY_WIDE]
    table = Table(show_edge=False)
    for place in kept:
        is_label, longest = place < len(by), max(len(row[place]) for row in cells)
        justify: Literal["left", "right"] = "left" if place <= len(by) else "right"
        table.add_column(columns[place], justify=justify, min_width=1 if is_label else longest)
    for row in cells[:-1]:
        table.add_row(*(row[place] for place in kept))
    table.add_section()
    table.add_row(*(cells[-1][place] for place in kept), style="bold")
    return Group(table, Text(), *(Text(note, "dim") for note in notes_of(bill, rows)))


def _write_page(out: Path, bill: Bill, rows: Sequence[BillRow], by: Sequence[Dimension]) -> None:
    from planning.report.cost import render  # plotly takes a second to import

    if problems := write_page(out, render(bill, *table_of(rows, by), notes_of(bill, rows))):
        fail(problems[0])
