"""The log of one model's scaling decisions (`deployments/decisions.py`): every decision with its facts, and the state
from which it replays. The controller writes it, and goes on from it after a restart.

5 MB a day at one decision a second while nothing happens, 17 MB with four busy replicas. There are at most nine files
of 16 MiB.
"""

import logging
import math
import pickle
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from autoscaling.policies.registry import outside_packages
from autoscaling.scaler.decision import ScalingDecision
from autoscaling.shadow.pair import Pair
from autoscaling.signals.signals import Signals
from deployments.cell.control import Control
from deployments.decision_log import MAX_BYTES, DecisionLog, in_file_name, log_files, read_log
from deployments.decisions import Decider, Header, Input, Replayed, hash_of, steps
from deployments.telemetry.line_log import LogHealth
from deployments.wire import decoder, encode

log = logging.getLogger("raylane.scaling")

PREFIX = "scaling-"
CHECKPOINT_S = 600.0
"""The longest time between two headers, so that a restart need not replay a day."""
YOUNG_S = 600.0
"""Older decisions say nothing about now."""
_ROOT = Path(__file__).parents[1]
_HASHED = (
    *("autoscaling/policies", "autoscaling/scaler", "autoscaling/shadow", "autoscaling/signals"),
    *("deployments/cell/control.py", "deployments/scheduling/snapshot.py", "deployments/starts/phases.py"),
    "deployments/engine_model/cost_model.py",
    "deployments/engine_model/limits.py",
    "deployments/engine_model/replica_rate.py",
)


@cache
def code_hash() -> str:
    """A hash of the policies, the scaler, the shadow, the signals, and what they compute with."""
    places = [_ROOT / name for name in _HASHED]
    return hash_of(_ROOT, (file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place])))


class ScalingInputs(NamedTuple):
    """What a decision is taken from."""

    signals: Signals
    controls: tuple[Control, ...] = ()


_inputs = decoder(ScalingInputs)


def inputs_of(entry: Input) -> ScalingInputs:
    """Raises WireError."""
    return _inputs(entry.given)


SCALING = Decider(
    kind="scaling",
    state=Pair,
    call=lambda pair, entry: pair.decide(*inputs_of(entry)),
    counted=lambda decision: int(decision.changes),
    counts="changed the number of replicas",
    code=code_hash,
    rooms=lambda: (
        *("autoscaling.policies", "autoscaling.scaler", "autoscaling.signals", "autoscaling.shadow"),
        *("deployments.cell.control", "deployments.engine_model"),
        *outside_packages().values(),
    ),
)


def log_name(model: str) -> str:
    """The name of a model's log (a model's name may hold slashes)."""
    return PREFIX + in_file_name(model)


class ScalingLog:
    """Call `before` and `after` each decision."""

    def __init__(self, folder: Path, model: str, region: str, max_bytes: int = MAX_BYTES) -> None:
        self._file = DecisionLog(folder, log_name(model), LogHealth(log_name(model)), max_bytes, at_once=True)
        self._model, self._region = model, region
        self._continues = False
        self._inputs = 0
        self._header_s = -math.inf

    def configured(self) -> None:
        """Something outside changed the pair; the following entries replay from a new header."""
        self._continues = False

    def before(self, pair: Pair, at_s: float, unix_s: float) -> None:
        if self._file.due() or not self._continues or at_s - self._header_s >= CHECKPOINT_S:
            state = pickle.dumps(pair, protocol=5)
            about = (self._inputs, self._continues, unix_s, self._model, self._region)
            self._file.write(Header(SCALING.kind, code_hash(), at_s, state, *about))
            self._continues, self._header_s = True, at_s

    def after(self, signals: Signals, controls: tuple[Control, ...], decision: ScalingDecision) -> None:
        self._inputs += 1
        self._file.write(Input(signals.at_s, "decide", encode(ScalingInputs(signals, controls)), encode(decision)))

    def lost(self, error: Exception) -> None:
        """An entry could not be made; the following ones replay from a new header."""
        self._file.lost(error)

    @property
    def failing(self) -> bool:
        """Whether it cannot be written now; writing continues as soon as possible."""
        return self._file.broken

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class Remembered:
    """The pair in its state after its last decision, and the time of that (the log's own, and the time of day).
    `idle_s`: that was so long ago that only what it has learned of its replicas is still true; 0: it goes on."""

    pair: Pair
    at_s: float
    unix_s: float
    idle_s: float = 0.0


def remembered(folder: Path, model: str, unix_s: float) -> Remembered | None:
    """The state that the log of `model` leads to, if the log is complete; else None. What is older than ten minutes, or
    written by other code, is not continued (`Remembered.idle_s`). Damage is logged."""
    try:
        entries = list(read_log(log_files(folder, log_name(model))[-1:], last_header=True))
        last: Replayed[Pair] | None = None
        for step in steps(entries, SCALING, any_code=True):
            last = step
        header = entries[0] if entries else None
        return _remembered(header, last, unix_s) if isinstance(header, Header) and header.model == model else None
    except Exception as error:  # damage of any kind, or the state of other code's classes: scaling begins anew
        log.warning(
            "model %s: scaling starts with nothing learned, because the log cannot be continued: %s: %s",
            model,
            type(error).__name__,
            error,
        )
        return None


def _remembered(header: Header, last: Replayed[Pair] | None, unix_s: float) -> Remembered:
    if last is None:  # its writer was killed, or its disk full, just after the header
        pair, at_s, then_unix_s = SCALING.load(header.state), header.at_s, header.unix_s
    else:
        signals = inputs_of(last.input).signals
        pair, at_s, then_unix_s = last.state, signals.at_s, signals.unix_s
    idle_s = max(1.0, unix_s - then_unix_s)
    goes_on = header.code == code_hash() and idle_s <= YOUNG_S
    return Remembered(pair, at_s, then_unix_s, 0.0 if goes_on else idle_s)
