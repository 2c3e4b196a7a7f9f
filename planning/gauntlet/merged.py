"""Results of several runs as one: short scenarios with many trials, days of traffic with few."""

from collections.abc import Mapping, Sequence
from typing import Any

from planning.gauntlet.results import Results

_CODE = ("world", "limits", "laws")


def merged(parts: Sequence[Results]) -> Results:
    """All their scenarios. Raises ValueError where two hold the same scenario, or were not made by the same code with the same laws."""
    first = parts[0]
    for part in parts[1:]:
        for name in _CODE:
            if part.about.get(name) != first.about.get(name):
                raise ValueError(f"{name}: {part.about.get(name)!r} and {first.about.get(name)!r}: only results of the same code go together")
    contests = tuple(one for part in parts for one in part.contests)
    names = [one.scenario for one in contests]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"in two of them: {', '.join(twice)}")
    left_out = {name: why for part in parts for name, why in part.left_out.items() if name not in names}
    return Results(_about([part.about for part in parts]), contests, left_out)


def _about(all_of: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How they were run; where that differs, each way of it."""
    return {name: _either([about.get(name) for about in all_of]) for name in all_of[0]}


def _either(values: Sequence[Any]) -> Any:
    different = [value for index, value in enumerate(values) if value not in values[:index]]
    return different[0] if len(different) == 1 else " or ".join(str(value) for value in different)
