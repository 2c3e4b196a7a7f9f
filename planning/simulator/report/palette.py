"""The colours of a report, each for a light and for a dark page: told apart by the colour-blind, with a contrast of 3 to 1 and more for lines.

Figures are made in the light ones; the page's script swaps them by the table that `swaps` gives.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tone:
    """One colour, on a light and on a dark page, as #rrggbb."""

    light: str
    dark: str

    @property
    def line(self) -> str:
        """For lines and markers."""
        return self.light

    @property
    def faint(self) -> str:
        """For areas."""
        return _faint(self.light)


BLUE = Tone("#0067a5", "#58b4f0")
ORANGE = Tone("#b26a00", "#f2ae3d")
GREEN = Tone("#00795a", "#38c79b")
PURPLE = Tone("#9a3f78", "#dd8fbd")
SLATE = Tone("#55606e", "#a3b0bf")
RED = Tone("#c23b12", "#ff8a5c")
INK = Tone("#1c2126", "#e8ebee")
GRID = Tone("#dfe3e7", "#343b43")

LANES = (BLUE, ORANGE, GREEN, PURPLE, SLATE)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_ALL = (*LANES, RED, INK, GRID)


def lane_tone(number: int) -> Tone:
    """The colour of the lane of that number, the same in every figure."""
    return LANES[number % len(LANES)]


def swaps() -> dict[str, str]:
    """From each colour of a light page to that of a dark one."""
    return {tone.light: tone.dark for tone in _ALL} | {tone.faint: _faint(tone.dark) for tone in _ALL}


def _faint(color: str) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.25)"
