"""How each law is drawn: the same colour and sign in every figure and in the legend; ours stands out, what knows the future is no law."""

from collections.abc import Sequence
from dataclasses import dataclass

from planning.simulator.report.palette import BLUE, GREEN, INK, ORANGE, PURPLE, RED, SLATE, Tone

_TONES = (ORANGE, PURPLE, GREEN, SLATE, RED)
_SIGNS = (("square", "■"), ("diamond", "◆"), ("triangle-up", "▲"), ("triangle-down", "▼"), ("pentagon", "⬟"), ("hexagram", "✶"), ("cross", "✚"))


@dataclass(frozen=True, slots=True)
class Mark:
    """`symbol` is plotly's, `glyph` the same for text."""

    name: str
    tone: Tone
    symbol: str
    glyph: str
    ours: bool = False


ORACLE = Mark("knows the arrivals", INK, "star", "★")
KNOWN_RATE = Mark("knows the rate", INK, "asterisk-open", "✳")


def marks_of(laws: Sequence[str], ours: str) -> dict[str, Mark]:
    """By law, in their order."""
    marks = {ours: Mark(ours, BLUE, "circle", "●", ours=True)} if ours in laws else {}
    for number, law in enumerate(law for law in laws if law != ours):
        symbol, glyph = _SIGNS[number % len(_SIGNS)]
        marks[law] = Mark(law, _TONES[number % len(_TONES)], symbol, glyph)
    return marks
