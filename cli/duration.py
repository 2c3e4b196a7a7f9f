"""How long, as people write it: `90s`, `30m`, `2h`, `1d`."""

import re

from deployments.cell.control import LONGEST_S, SHORTEST_S

_FORM = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def seconds_of(text: str, longest_s: float = LONGEST_S) -> float:
    """The seconds that a text says. Raises ValueError, which says what is allowed."""
    found = _FORM.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not SHORTEST_S <= seconds <= longest_s:
        allowed = f"at least {SHORTEST_S:g}s, at most {longest_s / 86_400:g}d"
        raise ValueError(f"{text!r}: allowed: a number and its unit, as in 90s, 30m, 2h or 1d; {allowed}")
    return seconds


def shown_span(seconds: float) -> str:
    """A span in its largest whole unit but one: `1h 5m`, `42s`."""
    left = max(0, round(seconds))
    words: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, int(_UNITS[unit]))
        if count or (unit == "s" and not words):
            words.append(f"{count}{unit}")
    return " ".join(words[:2])
