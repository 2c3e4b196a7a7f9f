"""The acts of operators and their audit: a line of JSON each, in a file that is only ever appended to. The directory
writes it, and reads it at its start.

What is in force follows from these lines alone (`orders.py`).
"""

import dataclasses
import json
import logging
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from deployments.telemetry.line_log import WholeLines


class ActKind(StrEnum):
    """What was done: to the number of a model's replicas, to one replica, or to the policy that scales a model."""

    HOLD = "hold"
    PIN = "pin"
    RELEASE = "release"
    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    PROMOTE = "promote"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Act:
    """Who (`by`: the operator's name on the machine of the command) did what, when (time of day), and why.

    `replica_id` for acts on one replica; `replicas` and `until_unix_s` for a hold or a pin; `reason` for a drain
    (`protocol.DrainReason`); `policy` and `over` for a promotion and its undoing: what is active from then on, and what
    its shadow is (`orders.py`).
    """

    at_unix_s: float
    kind: ActKind
    model: str
    by: str
    why: str = ""
    replica_id: str = ""
    replicas: int = 0
    until_unix_s: float = 0.0
    reason: str = ""
    policy: str = ""
    over: str = ""

    def line(self) -> str:
        reported = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }
        return json.dumps(reported, separators=(",", ":"))


def read_act(line: str) -> Act:
    """The act in a line. Raises ValueError when it is none."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError(f"not an act: {line[:200]!r}")
    try:
        act = Act(**{**fields, "kind": ActKind(fields["kind"])})
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an act: {line[:200]!r}") from error
    numbers = (act.at_unix_s, act.until_unix_s, act.replicas)
    texts = (act.model, act.by, act.why, act.replica_id, act.reason, act.policy, act.over)
    if (
        not all(isinstance(number, int | float) for number in numbers)
        or not all(isinstance(text, str) for text in texts)
        or act.replicas < 0
    ):
        raise ValueError(f"not an act: {line[:200]!r}")
    return act


log = logging.getLogger("raylane.controls")

FILE_NAME = "controls.jsonl"


class Audit:
    """`path`: the file; None: nothing is kept (a test's directory). What is written is on the disk when `write`
    returns."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def read(self) -> list[Act]:
        """All acts, in order. A line that is none (a write that was cut short) is left out, and logged; so are all
        where the file cannot be read."""
        if self._path is None:
            return []
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        except OSError as error:  # without a directory nothing is served
            log.error("what operators had ordered is not in force, since it cannot be read: %s", error)
            return []
        acts = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                acts.append(read_act(line))
            except ValueError as error:
                log.warning("%s, line %d: %s", self._path, number, error)
        return acts

    def write(self, act: Act) -> None:
        """Appends an act. Raises OSError; the act is not in the file then, unless the disk refuses to take it out
        again."""
        if self._path is None:
            return
        file = WholeLines(self._path)
        try:
            file.add(act.line().encode() + b"\n", on_disk=True)
        finally:
            file.close()
