"""The first line of a scaling log, and of each of its files: the policies, a hash of the code, and the whole state from
which the following lines replay.

The state is pickled and compressed. The unpickler creates only classes of the packages below, and of those whose
policies are installed (`deployments/restricted_pickle.py`).
"""

import base64
import dataclasses
import hashlib
import json
import pickle
import zlib
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from autoscaling.log.codec import SCHEMA
from autoscaling.policies.registry import outside_packages
from autoscaling.shadow.pair import Pair
from deployments.restricted_pickle import load_state

_ROOT = Path(__file__).parents[1]
_HASHED = ("policies", "scaler", "shadow", "signals")
_FILES = (
    "../deployments/cell/control.py",
    "../deployments/engine_model/cost_model.py",
    "../deployments/engine_model/limits.py",
    "../deployments/engine_model/replica_rate.py",
    "../deployments/scheduling/snapshot.py",
    "../deployments/starts/phases.py",
)
"""What these compute with, and store in the state of a log."""


@cache
def code_hash() -> str:
    """A hash of the policies, the scaler, the shadow, the signals, and what they compute with."""
    digest = hashlib.sha256()
    rooms = (file for room in _HASHED for file in (_ROOT / room).rglob("*.py"))
    for file in sorted([*rooms, *(_ROOT / name for name in _FILES)]):
        digest.update(str(file.relative_to(_ROOT)).encode() if file.is_relative_to(_ROOT) else file.name.encode())
        digest.update(b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


KIND = "scaling"
_ROOMS = (
    "autoscaling.policies",
    "autoscaling.scaler",
    "autoscaling.signals",
    "autoscaling.shadow",
    "deployments.cell.control",
    "deployments.engine_model",
)
_MAX_STATE_BYTES = 64 << 20


class Begin(StrEnum):
    """Why there is a header. After a `CHECKPOINT` the state is the one that the lines before it lead to; after the
    others it is not."""

    START = "start"
    CONFIGURED = "configured"
    RESUMED = "resumed"
    """Lines were lost because the log could not be written."""
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Header:
    """`code`: a hash of the deciding code. `state`: still pickled (`pair`). Times in nanoseconds: the log's own, and
    the time of day."""

    begin: Begin
    model: str
    region: str
    code: str
    ns: int
    unix_ns: int
    state: bytes
    policy: dict[str, Any]
    shadow: dict[str, Any] | None
    bounds: dict[str, Any]

    def line(self) -> str:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        packed = base64.b64encode(zlib.compress(self.state)).decode()
        return json.dumps(
            {"log": KIND, "schema": SCHEMA, **fields, "begin": self.begin.value, "state": packed}, separators=(",", ":")
        )

    def pair(self) -> Pair:
        """The pair as it was at that moment; new at each call. Raises ValueError."""
        return load_pair(self.state)


def load_pair(state: bytes) -> Pair:
    """The pair from its pickled state. Raises ValueError."""
    pair = load_state(state, (*_ROOMS, *outside_packages().values()))
    if not isinstance(pair, Pair):
        raise ValueError("its state is not an autoscaler's")
    return pair


def header_of(pair: Pair, begin: Begin, model: str, region: str, ns: int, unix_ns: int) -> Header:
    shadow = pair.shadow_choice
    return Header(
        begin,
        model,
        region,
        code_hash(),
        ns,
        unix_ns,
        pickle.dumps(pair, protocol=5),
        {"name": pair.choice.name, "settings": dict(pair.choice.settings)},
        None if shadow is None else {"name": shadow.name, "settings": dict(shadow.settings)},
        dataclasses.asdict(pair.scaler.bounds),
    )


def read_header(fields: dict[str, Any]) -> Header:
    """Raises ValueError for anything else than a header of this schema."""
    if fields.get("log") != KIND:
        raise ValueError("is not the header of a scaling log")
    if fields.get("schema") != SCHEMA:
        raise ValueError(f"schema = {fields.get('schema')!r}; allowed: {SCHEMA}")
    try:
        given = {name: value for name, value in fields.items() if name not in ("log", "schema")}
        unpacked = zlib.decompressobj().decompress(base64.b64decode(given["state"]), _MAX_STATE_BYTES)
        return Header(**{**given, "begin": Begin(given["begin"]), "state": unpacked})
    except (KeyError, TypeError, zlib.error) as error:
        raise ValueError(f"is not a complete header: {error}") from error
