"""The acts of operators and their audit: rows of the cell's store that are only ever added. What is in force follows
from them alone (`orders.py`).
"""

import logging
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from deployments.ladder_stats import LadderOrder
from deployments.store import CellStore, reader
from deployments.wire import Natural, WireError, decoder, encode


class ActKind(StrEnum):
    """What was done: to the number of a model's replicas, to one replica, to the policy that scales a model, or to its
    ladder."""

    HOLD = "hold"
    PIN = "pin"
    RELEASE = "release"
    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    PROMOTE = "promote"
    ROLLBACK = "rollback"
    LADDER = "ladder"


@dataclass(frozen=True, slots=True)
class Act:
    """Who (`by`: the operator's name on the machine of the command) did what, when (time of day), and why.

    `replica_id` for acts on one replica; `replicas` and `until_unix_s` for a hold or a pin; `reason` for a drain
    (`protocol.DrainReason`); `policy` and `over` for a promotion and its undoing: what is active from then on, and what
    its shadow is (`orders.py`); `ladder`: for an act on one.
    """

    at_unix_s: float
    kind: ActKind
    model: str
    by: str
    why: str = ""
    replica_id: str = ""
    replicas: Natural = 0
    until_unix_s: float = 0.0
    reason: str = ""
    policy: str = ""
    over: str = ""
    ladder: LadderOrder | None = None


log = logging.getLogger("raylane.controls")
_read = decoder(Act)


class Audit:
    """The acts in the cell's store. What is written is on the disk when `write` returns."""

    def __init__(self, store: CellStore) -> None:
        self._store = store

    def read(self) -> list[Act]:
        """All acts, in order. One that is none is left out, and logged; so are all where the store cannot be read:
        without a directory nothing is served."""
        acts = []
        for number, body in self._store.rows("select number, body from acts order by number"):
            try:
                acts.append(_read(body))
            except WireError as error:
                log.warning("act %d is left out: %s", number, error)
        return acts

    def write(self, act: Act) -> None:
        """Adds an act. Raises OSError; then it is not there."""
        self._store.write(lambda file: file.execute("insert into acts (body) values (?)", (encode(act),)))


def read_acts(path: Path) -> list[Act]:
    """The acts in a cell's store, oldest first. Raises OSError, and CellStoreError where the file is none."""
    with reader(path) as file:
        return [_read(body) for (body,) in file.execute("select body from acts order by number")]
