"""The log of a re-planner: JSON, a line each. A header holds the basis, the settings and the state before the first
re-plan after it; each other line holds what was observed and the re-plan that was made of it. So each re-plan can be
made again (`replayed`).

Trees are lists of the fields' values, mappings lists of pairs; types are those of the dataclasses.
"""

import dataclasses
import json
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from deployments.telemetry.line_log import WholeLines
from planning.replan.basis import Observed, ReplanBasis, ReplanSettings
from planning.replan.replan import replan
from planning.replan.result import Replan, ReplanState

KIND = "raylane-replan"
VERSION = 1


class ReplanLogError(ValueError):
    """A line that cannot be read; the message names it."""


def to_tree(value: Any) -> Any:
    """A value of plain dataclasses, named tuples, mappings, sets, enums and numbers, for JSON."""
    if dataclasses.is_dataclass(value):
        return [to_tree(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return [[to_tree(key), to_tree(one)] for key, one in value.items()]
    if isinstance(value, frozenset):
        return sorted(to_tree(one) for one in value)
    if isinstance(value, tuple):
        return [to_tree(one) for one in value]
    return value


def from_tree(kind: Any, tree: Any) -> Any:
    """The value of that type. Raises TypeError, ValueError or LookupError for a tree of another type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if tree is None else from_tree(next(one for one in arguments if one is not type(None)), tree)
    if origin is not None and issubclass(origin, Mapping):
        return {from_tree(arguments[0], key): from_tree(arguments[1], one) for key, one in tree}
    if origin is frozenset:
        return frozenset(from_tree(arguments[0], one) for one in tree)
    if origin is tuple and arguments[-1] is ...:
        return tuple(from_tree(arguments[0], one) for one in tree)
    if origin is tuple:
        return tuple(from_tree(one, each) for one, each in zip(arguments, tree, strict=True))
    if dataclasses.is_dataclass(kind):
        hints, names, make = get_type_hints(kind), [field.name for field in dataclasses.fields(kind)], cast(Any, kind)
        return make(*(from_tree(hints[name], one) for name, one in zip(names, tree, strict=True)))
    if isinstance(kind, type) and issubclass(kind, tuple):
        return kind(*(from_tree(one, each) for one, each in zip(get_type_hints(kind).values(), tree, strict=True)))
    return kind(tree)


class ReplanLog:
    """Appends to a file. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, basis: ReplanBasis, settings: ReplanSettings, state: ReplanState) -> None:
        """The header: what all re-plans until the next one are made from."""
        self._add({"log": KIND, "version": VERSION, "from": [to_tree(one) for one in (basis, settings, state)]})

    def add(self, observed: Observed, plan: Replan) -> None:
        """A re-plan."""
        self._add({"observed": to_tree(observed), "plan": to_tree(plan)})

    def _add(self, line: Mapping[str, Any]) -> None:
        file = WholeLines(self._path)
        try:
            file.add(json.dumps(line, separators=(",", ":")).encode() + b"\n", on_disk=True)
        finally:
            file.close()


@dataclass(frozen=True, slots=True)
class ReplayedPlan:
    """The re-plan of a line, and what the same inputs lead to now."""

    line: int
    recorded: Replan
    again: Replan

    @property
    def agrees(self) -> bool:
        """Whether both order the same, for the same reasons."""
        return self.recorded.bounds == self.again.bounds


def replayed(lines: Iterable[str]) -> Iterator[ReplayedPlan]:
    """Makes each re-plan again, from the recorded state before it. Raises ReplanLogError."""
    begun: tuple[ReplanBasis, ReplanSettings] | None = None
    state = ReplanState()
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
            if "log" in content:
                if (version := content.get("version")) != VERSION:
                    raise ValueError(f"version = {version!r}; allowed: {VERSION}")
                basis, settings, first = content["from"]
                begun = from_tree(ReplanBasis, basis), from_tree(ReplanSettings, settings)
                state = from_tree(ReplanState, first)
                continue
            observed, plan = from_tree(Observed, content["observed"]), from_tree(Replan, content["plan"])
        except (ValueError, TypeError, LookupError) as error:
            raise ReplanLogError(f"line {number}: not of a re-planner's log: {error}") from error
        if begun is None:
            raise ReplanLogError(f"line {number}: a re-plan without a header before it")
        yield ReplayedPlan(number, plan, replan(*begun, state, observed))
        state = plan.state
