"""How far the ladder of a model goes (`scheduling/ladder.py`), as operators order it and see it: all of the ladder that
others than the scheduler need."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class LadderMode(StrEnum):
    """`AUTO`: the ladder decides. `AT`: an operator says how far it goes, `AT_MOST`: how far it may go."""

    AUTO = "auto"
    AT = "at"
    AT_MOST = "at_most"


@dataclass(frozen=True, slots=True)
class LadderOrder:
    """`step`: the name of the last step that is, or may be, in force; empty: none. One that the model's ladder does not
    have is passed over."""

    mode: LadderMode = LadderMode.AUTO
    step: str = ""


@dataclass(frozen=True, slots=True)
class LadderStats:
    """`at` of these `steps` are in force. `touched`: requests since the start, by step."""

    steps: tuple[str, ...]
    at: int
    order: LadderOrder
    touched: Mapping[str, int]
