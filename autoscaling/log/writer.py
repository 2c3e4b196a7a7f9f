"""Writes a scaling log: `scaling-MODEL.jsonl` in a folder, rotated, each file with its own header. The shell calls it
around every decision.

A line holds what changed since the line before: 60 bytes a second while nothing happens (5 MB a day), about 200 with
four busy replicas (17 MB a day). A checkpoint every ten minutes adds 1 MB a day. There are at most nine files of 16
MiB.
"""

import json
import math
from pathlib import Path

from autoscaling.log.codec import Tree, controls_tree, decision_tree, difference, signals_tree
from autoscaling.log.header import Begin, header_of
from autoscaling.policies.policy import Concern
from autoscaling.scaler.decision import ScalingDecision
from autoscaling.shadow.pair import Pair
from autoscaling.signals.signals import Signals
from deployments.cell.control import Control
from deployments.ownership.decision_log import DecisionLog, in_file_name
from deployments.telemetry.line_log import LogHealth

PREFIX = "scaling-"
MAX_BYTES = 16 << 20
CHECKPOINT_S = 600.0
"""The longest time between two headers, so that a restart need not replay a day."""


def log_name(model: str) -> str:
    """The name of a model's log without its ending (a model's name may hold slashes)."""
    return PREFIX + in_file_name(model)


class ScalingLog:
    """Call `before` and `after` each decision, with the same times."""

    def __init__(self, folder: Path, model: str, region: str, max_bytes: int = MAX_BYTES) -> None:
        self._file = DecisionLog(folder, log_name(model), LogHealth(log_name(model)), max_bytes, each_line=True)
        self._model, self._region = model, region
        self._begin: Begin | None = Begin.START
        self._tree: Tree | None = None
        self._header_ns = -math.inf
        self._reason: tuple[str, Concern | None] = ("", None)

    def configured(self) -> None:
        """Something outside changed the pair; the following lines replay from a new header."""
        self._begin = self._begin or Begin.CONFIGURED

    def before(self, pair: Pair, ns: int, unix_ns: int) -> None:
        due = self._file.due()
        if due and self._file.broken:
            self._begin = Begin.RESUMED
        if due or self._begin is not None or ns - self._header_ns >= CHECKPOINT_S * 1e9:
            self._file.write(
                header_of(pair, self._begin or Begin.CHECKPOINT, self._model, self._region, ns, unix_ns).line()
            )
            self._begin, self._tree, self._header_ns = None, None, ns

    def after(
        self, ns: int, unix_ns: int, signals: Signals, controls: tuple[Control, ...], decision: ScalingDecision
    ) -> None:
        """A decision was taken. Terms are written if the number, the reason or the concern changes."""
        reason = (decision.reason, decision.concern)
        reported = decision.changes or reason != self._reason
        self._reason = reason
        tree = [signals_tree(signals), controls_tree(controls), decision_tree(decision, reported)]
        change = tree if self._tree is None else difference(self._tree, tree)
        self._tree = tree
        self._file.write(json.dumps([ns, unix_ns, change], separators=(",", ":")))

    def lost(self, error: Exception) -> None:
        """A line could not be made; the following lines replay from a new header."""
        self._file.lost(error)

    @property
    def failing(self) -> bool:
        """Whether it cannot be written now; writing continues as soon as possible."""
        return self._file.broken

    def close(self) -> None:
        self._file.close()
