"""A plan's tables on the terminal, in the form that there is room for. No word is broken, so that names and figures can
be read and searched."""

from rich import box
from rich.markup import escape
from rich.padding import Padding

from cli.console import Table, console
from planning.plans.tables import TextTable

_MANY = 20
"""A table of more columns is printed as lines."""
_FIGURE = set("0123456789-")
"""What a cell with a figure begins with; columns of figures are set to the right."""
_BETWEEN = 2
"""Characters between two columns."""


def show_table(of: TextTable) -> None:
    """Prints it as a table; as lines where it has many columns; as paragraphs where a table would break words."""
    if len(of.columns) > _MANY:
        _show_lines(of)
    elif (widths := _widths(of)) is not None:
        console.print(_table(of, widths))
    else:
        _show_records(of)


def _widths(of: TextTable) -> list[int] | None:
    """Of its columns: each as wide as its longest word at least, and then, those first that lack the least, as wide as
    its longest cell. None: the words alone are too wide."""
    cells = list(zip(of.columns, *of.rows, strict=True))
    widths = [max((len(word) for cell in column for word in cell.split()), default=0) for column in cells]
    lacks = [max(map(len, column)) - width for column, width in zip(cells, widths, strict=True)]
    left = console.width - sum(widths) - _BETWEEN * len(widths)
    if left < 0:
        return None
    for number in sorted(range(len(widths)), key=lacks.__getitem__):
        more = min(left, lacks[number])
        widths[number] += more
        left -= more
    return widths


def _table(of: TextTable, widths: list[int]) -> Table:
    table = Table(
        title=of.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    table.padding = (0, _BETWEEN - 1, 0, 0)
    for number, (column, width) in enumerate(zip(of.columns, widths, strict=True)):
        figures = number and all(row[number][:1] in _FIGURE for row in of.rows)
        table.add_column(column, justify="right" if figures else "left", width=width)
    for row in of.rows:
        table.add_row(*map(escape, row))
    return table


def _show_records(of: TextTable) -> None:
    """A paragraph a row, in which each figure has its column's name."""
    console.print(f"[bold]{escape(of.title)}[/]")
    for row in of.rows:
        first, *others = zip(of.columns, row, strict=True)
        text = "; ".join(f"{column}: {cell}" for column, cell in others if cell)
        console.print(Padding(f"[bold]{escape(first[1])}[/]  {escape(text)}", (0, 0, 0, 2)), soft_wrap=False)


def _show_lines(of: TextTable) -> None:
    """A table of many narrow columns, a line a row: figures keep their places, and are searched and cut easily."""
    names = max(len(row[0]) for row in (of.columns, *of.rows))
    width = max(len(cell) for row in (of.columns, *of.rows) for cell in row[1:])
    console.print(f"[bold]{escape(of.title)}[/]")
    for row in (of.columns, *of.rows):
        console.print(escape(f"{row[0]:<{names}} {' '.join(f'{cell:>{width}}' for cell in row[1:])}"))
