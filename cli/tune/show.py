"""What `raylane tune` prints: the front, the proposal with its expected effect, and the change of the spec."""

from rich.markup import escape
from rich.table import Table

from cli.console import console
from cli.tune.inputs import Inputs
from planning.report.tuning_text import cards, columns, headline, mark, notes, rows
from planning.tune.advice import Advice

_BASES = {"measured": "measured", "profile": "from a profile of the model's layers", "roofline": "[yellow]NOT measured: a roofline[/]"}


def show(advice: Advice, inputs: Inputs, diff: str | None) -> None:
    """Everything; `diff` is None where the spec could not be edited."""
    told = headline(advice)
    hours = advice.span_s / 3600
    console.print(
        f"model {advice.model}, law {advice.policy}: {len(inputs.case.work):,} requests in {hours:.1f} h; "
        f"{advice.looked_at} settings looked at, {len(advice.finished)} played through in {advice.seconds / 60:.1f} minutes"
    )
    console.print(_table(advice))
    console.print(f"[bold {'green' if told.good else 'red'}]{escape(told.line)}[/]")
    console.print(escape(told.story))
    for card in cards(advice):
        console.print(f"  {card.name}: [bold]{card.value}[/]{f'  ({card.note})' if card.note else ''}")
    for note in notes(advice):
        console.print(f"[yellow]note:[/] {escape(note)}")
    console.print(f"the simulator's error here: {escape(advice.trust.error)}; costs: {_BASES[inputs.cost.basis]} ({inputs.cost.hardware})")
    for doubt in advice.trust.doubts:
        console.print(f"[bold yellow]do not set this unseen:[/] {escape(doubt)}")
    if diff:
        console.print()
        for line in diff.splitlines():
            console.print(escape(line), style={"+": "green", "-": "red"}.get(line[0]))


def _table(advice: Advice) -> Table:
    table = Table(
        title="settings that no others beat, the cheapest first (what they are: --report, --json)", title_justify="left", title_style="bold"
    )
    for number, name in enumerate(columns(advice, settings=False)):
        table.add_column(name, justify="right" if number else "left")
    for trial, row in rows(advice, settings=False):
        chosen = trial is advice.chosen.trial
        table.add_row(f"{row[0]}{f' <- {mark(advice)}' if chosen else ''}", *row[1:], style="bold" if chosen else None)
    return table
