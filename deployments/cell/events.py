"""What is written down of the lives in a cell: a line of JSON for each that began to serve, and for each that ended. All else follows from these
lines alone (`book.py`)."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from deployments.cell.departure import Cause, Kind, Lost


@dataclass(frozen=True, slots=True)
class Ready:
    """It serves from `at_unix_s` on (time of day)."""

    kind: Kind
    who: str
    at_unix_s: float
    model: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """It ended, as `told_by` says: a gateway's id, or nothing where the directory saw it itself. Each tells of its own requests in `lost`.

    `detail`: what it said of its end in its own words.
    """

    kind: Kind
    who: str
    at_unix_s: float
    cause: Cause
    model: str = ""
    pid: int = 0
    told_by: str = ""
    lost: Lost = field(default_factory=Lost)
    detail: str = ""


Event = Ready | Ended
_TEXTS = ("who", "model", "told_by", "detail")
_NUMBERS = ("at_unix_s", "pid")
_COUNTS = ("broken", "placed_again", "tokens")


def line_of(event: Event) -> str:
    """As JSON, without what says nothing."""
    told = {"event": type(event).__name__.lower(), **_said(event)}
    if isinstance(event, Ended):
        told["planned"] = event.cause.planned
        if event.lost != Lost():
            told["lost"] = _said(event.lost)
    return json.dumps(told, separators=(",", ":"))


def read_event(line: str) -> Event:
    """The event in a line. Raises ValueError when it is none."""
    try:
        fields: dict[str, Any] = json.loads(line)
        name = fields.pop("event")
        event: Event
        if name == "ready":
            event = Ready(**{**fields, "kind": Kind(fields["kind"])})
        elif name == "ended":
            fields.pop("planned", None)
            told = {**fields, "kind": Kind(fields["kind"]), "cause": Cause(fields["cause"]), "lost": _lost(fields.get("lost", {}))}
            event = Ended(**told)
        else:
            raise ValueError(f"event = {name!r}; allowed: ready, ended")
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not an event: {line[:200]!r}") from error
    texts = [getattr(event, key, "") for key in _TEXTS]
    numbers = [getattr(event, key) for key in _NUMBERS]
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(number, int | float) for number in numbers):
        raise ValueError(f"not an event: {line[:200]!r}")
    return event


def _said(one: Ready | Ended | Lost) -> dict[str, Any]:
    return {key.name: value for key in dataclasses.fields(one) if not isinstance(value := getattr(one, key.name), Lost) and value not in ("", 0, ())}


def _lost(fields: dict[str, Any]) -> Lost:
    lost = Lost(**{**fields, "digests": tuple(fields.get("digests", ()))})
    if not all(type(getattr(lost, key)) is int and getattr(lost, key) >= 0 for key in _COUNTS) or not all(
        isinstance(one, str) for one in lost.digests
    ):
        raise TypeError("counts are whole numbers of at least 0, digests are texts")
    return lost
