"""Decisions as a log holds them, a scheduler's and an autoscaler's alike: every input in its order with what was
decided, so that a run can be fed to the code again and compared. No I/O: `decision_log.py` has the files.

A header holds the whole state of what decides, pickled, so that a log replays from any of its headers. It is read by an
unpickler that makes nothing but objects of named rooms, and plain containers.
"""

import hashlib
import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from cluster.errors import InputError
from deployments.wire import WireError, encode


class LogError(InputError):
    """A log cannot be read, or not be replayed; the message says where, and why."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the inputs after it begin from. `kind`: whose decisions these are (`Decider`); `code`: a hash of the code
    that decided. `at_s` is the time of the log's own monotonic clock, `unix_s` the time of day.

    `inputs`: how many its writer had before it; a log that has fewer lacks some. `continues`: `state` is the one that
    the inputs before it lead to; nothing else has changed it.
    """

    kind: str
    code: str
    at_s: float
    state: bytes
    inputs: int = 0
    continues: bool = True
    unix_s: float = 0.0
    model: str = ""
    region: str = ""


@dataclass(frozen=True, slots=True)
class Input:
    """A call that changed the state, with its arguments and what was decided, each as MessagePack."""

    at_s: float
    method: str
    given: bytes
    decision: bytes


Entry = Header | Input
StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True)
class Decider(Generic[StateT]):
    """One kind of decisions. `call` gives an input to a state again, and returns the decision. `counted`: how many of
    the decisions that a reader looks for (`counts` names them) a decision holds.

    `code`: the files with the code that decides, from which its hash is made; decisions are comparable only between
    equal ones. `rooms`: packages or modules whose own classes a state may hold; `makers`: functions that reading it may
    call, as (module, name).
    """

    kind: str
    state: type[StateT]
    call: Callable[[StateT, Input], object]
    counted: Callable[[Any], int]
    counts: str
    code: Callable[[], str]
    rooms: Callable[[], tuple[str, ...]]
    makers: tuple[tuple[str, str], ...] = ()

    def load(self, state: bytes) -> StateT:
        """A header's state, new at each call. Raises ValueError."""
        found = _load(state, self.rooms(), self.makers)
        if not isinstance(found, self.state):
            raise ValueError(f"its state is no {self.state.__name__}")
        return found


def hash_of(root: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Replayed(Generic[StateT]):
    """One input of a log, decided again. `number` counts the log's entries from 1; `header`: the last one before it;
    `state`: the one after it. `gap`: inputs are missing just before it."""

    number: int
    header: Header
    input: Input
    state: StateT
    decision: Any
    gap: bool

    @property
    def recorded(self) -> Any:
        """The recorded decision, as plain values."""
        return plain(self.input.decision)

    @property
    def replayed(self) -> Any:
        """This decision, as plain values."""
        return plain(encode(self.decision))

    @property
    def agrees(self) -> bool:
        """Whether it is the recorded one."""
        return encode(self.decision) == self.input.decision or self.replayed == self.recorded

    def __str__(self) -> str:
        recorded, replayed = self.recorded, self.replayed
        if isinstance(recorded, dict) and isinstance(replayed, dict):  # what is the same is left out
            different = {key for key in {*recorded, *replayed} if recorded.get(key) != replayed.get(key)}
            recorded = {key: recorded.get(key) for key in sorted(different)}
            replayed = {key: replayed.get(key) for key in sorted(different)}
        return f"entry {self.number}, {self.input.method}: recorded {recorded}, decided now {replayed}"


def plain(data: bytes) -> Any:
    """MessagePack as plain values."""
    return msgspec.msgpack.decode(data, strict=False)


def steps(entries: Iterable[Entry], decider: Decider[StateT], any_code: bool = False) -> Iterator[Replayed[StateT]]:
    """Decides every input of a log again (whole files, in order). The state goes on over a header in the middle, which
    is not compared with it, unless that does not continue it, or inputs are missing before it. Raises LogError.

    `any_code`: also where other code recorded it, to see what a change decides differently.
    """
    state: StateT | None = None
    header: Header | None = None
    inputs, gap = 0, False
    for number, entry in enumerate(entries, 1):
        if isinstance(entry, Header):
            lacks = header is not None and entry.inputs not in (0, inputs)
            if state is None or lacks or not entry.continues:
                state = _restored(entry, decider, any_code, number)
            header, inputs, gap = entry, entry.inputs, gap or lacks
            continue
        if state is None or header is None:
            raise LogError(f"entry {number}: a log begins with a header")
        try:
            decision = decider.call(state, entry)
        except WireError as error:
            raise LogError(f"entry {number}, {entry.method}: {error}") from error
        inputs += 1
        yield Replayed(number, header, entry, state, decision, gap)
        gap = False


@dataclass(frozen=True, slots=True)
class Replay:
    """`inputs` decided again, with so many of the decisions that count. `difference`: the first that is not the
    recorded one. `gaps`: so often inputs are missing, since the log could not be written."""

    inputs: int
    counted: int
    counts: str
    difference: Replayed[Any] | None
    gaps: int


def replay(entries: Iterable[Entry], deciders: Sequence[Decider[Any]], any_code: bool = False) -> Replay:
    """Replays a log of one of these kinds up to the first difference. Raises LogError."""
    all_entries = iter(entries)
    first = next(all_entries, None)
    if not isinstance(first, Header):
        raise LogError("a log begins with a header" if first is not None else "it is empty")
    decider = next((one for one in deciders if one.kind == first.kind), None)
    if decider is None:
        raise LogError(f"decisions of kind {first.kind!r}; allowed: {', '.join(one.kind for one in deciders)}")
    inputs = counted = gaps = 0
    for step in steps(_chained(first, all_entries), decider, any_code):
        inputs, counted, gaps = inputs + 1, counted + decider.counted(step.decision), gaps + step.gap
        if not step.agrees:
            return Replay(inputs, counted, decider.counts, step, gaps)
    return Replay(inputs, counted, decider.counts, None, gaps)


def _chained(first: Entry, rest: Iterator[Entry]) -> Iterator[Entry]:
    yield first
    yield from rest


def _restored(header: Header, decider: Decider[StateT], any_code: bool, number: int) -> StateT:
    if header.kind != decider.kind:
        raise LogError(f"entry {number}: decisions of kind {header.kind!r}; allowed: {decider.kind!r}")
    if header.code != decider.code() and not any_code:
        raise LogError(
            f"entry {number}: recorded by code {header.code}, this is {decider.code()}: decisions may differ for that "
            "reason alone"
        )
    try:
        return decider.load(header.state)
    except ValueError as error:
        raise LogError(f"entry {number}: its state cannot be read: {error}") from error


_PLAIN = frozenset(
    {
        ("collections", "OrderedDict"),
        ("collections", "Counter"),
        ("collections", "deque"),
        ("builtins", "set"),
        ("builtins", "frozenset"),
    }
)


def _load(data: bytes, rooms: tuple[str, ...], makers: tuple[tuple[str, str], ...]) -> object:
    """Raises ValueError that says what is wrong with it; what it may not name is refused before it is made."""
    try:
        found: object = _Unpickler(io.BytesIO(data), rooms, makers).load()
    except (
        *(ValueError, TypeError, KeyError, IndexError, AttributeError),
        *(pickle.UnpicklingError, EOFError, ImportError),
    ) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    return found


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, rooms: tuple[str, ...], makers: tuple[tuple[str, str], ...]) -> None:
        super().__init__(file)
        self._rooms = tuple(room + "." for room in rooms)
        self._makers = makers

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN or (module, name) in self._makers:
            return super().find_class(module, name)
        if f"{module}.".startswith(self._rooms) and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:  # made there, not imported there
                return found
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a log")
