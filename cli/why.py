"""`raylane why REQUEST_ID`: where one request's time went, and every decision taken on it, with its reason."""

from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from cli.console import AsJson, Table, console, errors, fail, plain_table, print_json
from cli.departed import clock, end_of, ids_in, short_names
from cli.gateway import Url, ask, base_url
from cli.regions import AllRegions, fetch_regions, unreachable_lines
from deployments.cell.departure import Departure
from deployments.wire import WireError, from_plain

_BAR_WIDTH = 40
_COLOURS = {"lane": "yellow", "engine_queue": "yellow", "prefill": "cyan", "decode": "green", "client_stall": "magenta"}
_SHOWN = ("verdict", "reason", "at_s")


def why(
    request_id: Annotated[str, typer.Argument(help="The response's X-Request-Id header.")],
    url: Url = None,
    as_json: AsJson = False,
    all_regions: AllRegions = False,
) -> None:
    """Explain one recent request: where its time went, and each decision with its reason."""
    if all_regions:
        _in_all_regions(base_url(url), request_id, as_json)
        return
    answer = ask(base_url(url), f"/raylane/requests/{quote(request_id, safe='')}", dict, timeout_s=5)
    if as_json:
        print_json(answer)
    else:
        console.print(_view(answer))


def _in_all_regions(base: str, request_id: str, as_json: bool) -> None:
    """A request that was handed over has a record in two cells."""
    cells = fetch_regions(base, "request", dict, request_id=request_id)
    if as_json:
        print_json(cells)
        return
    for line in unreachable_lines(cells):
        errors.print(line)
    known = {one.region: one.content["record"] for one in cells.regions if one.content and one.content["record"]}
    if not known:
        fail(f"request {request_id!r} is not among the last that ended in any cell that answered")
    for region, record in known.items():
        console.print(Text(f"in {region}", "bold underline"))
        console.print(_view(record))


def _view(record: dict[str, Any]) -> RenderableType:
    """Ends the command where a gateway of another version wrote the record."""
    try:
        ended = from_plain(record.get("departures", []), list[Departure])
        names = short_names(ids_in(ended))
        ends = [Text(f"\n{clock(one.at_unix_s)}  {end_of(one, names)}", "red") for one in ended]
        return Group(_head(record), Text(), _stages(record), Text(), _decisions(record), *ends)
    except (WireError, KeyError) as error:
        fail(f"a gateway of another version wrote this record: {error}", hint="--json shows it as it is")


def _head(record: dict[str, Any]) -> Text:
    colour = {"ok": "green", "cancelled": "yellow"}.get(record["outcome"], "red")
    text = Text.assemble(
        (record["request_id"], "bold"), f"  {record['path']}  {record['model'] or '-'}  HTTP {record['status']}  "
    )
    text.append(record["outcome"], colour)
    if record["error"]:
        text.append(f" ({record['error']})", colour)
    sizes = (
        f"\ntokens: {_or(record['prompt_tokens'])} in ({_or(record['cached_tokens'])} cached), "
        f"{_or(record['output_tokens'])} out"
    )
    expected = f"; expected {record['expected_prompt_tokens']} in" if record["expected_prompt_tokens"] else ""
    who = f"; tenant {record['tenant']}" if record["tenant"] else ""
    rtt = f"; client {record['client_rtt_s'] * 1e3:.1f} ms away" if record.get("client_rtt_s") else ""
    text.append(f"{sizes}{expected}; class {record['class'] or '-'}{who}{rtt}")
    return text


def _stages(record: dict[str, Any]) -> Table:
    wall_s = record["wall_s"] or 0.0
    table = plain_table("stage", "ms", "share", left=1, title=f"where its {wall_s * 1e3:.1f} ms went")
    table.add_column("", justify="left")
    done_s = 0.0
    for stage, seconds in record["stages_s"].items():
        share = seconds / wall_s if wall_s else 0.0
        before = round(_BAR_WIDTH * min(1.0, done_s / wall_s)) if wall_s else 0
        bar = Text(
            " " * before + "█" * max(1 if seconds > 0 else 0, round(_BAR_WIDTH * share)), _COLOURS.get(stage, "blue")
        )
        table.add_row(stage, f"{seconds * 1e3:.2f}", f"{share:.0%}", bar)
        done_s += seconds
    return table


def _decisions(record: dict[str, Any]) -> Table:
    table = plain_table("at ms", title="what was decided")
    for column in ("decision", "reason", "because"):
        table.add_column(column)
    for decision in record["decisions"]:
        facts = ", ".join(
            f"{key} {value}" for key, value in decision.items() if key not in _SHOWN and value is not None
        )
        table.add_row(f"{decision['at_s'] * 1e3:.1f}", decision["verdict"], decision["reason"], facts)
    return table


def _or(value: object) -> str:
    return "?" if value is None else str(value)
