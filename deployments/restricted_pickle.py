"""Reads pickled state that stands in a log: an unpickler that makes nothing but objects of the classes of named rooms,
and plain containers.

Called by whoever replays a log (`scheduling/replay.py`, the scaling log's). It refuses a state that names anything else
before it is made.
"""

import io
import pickle
from collections.abc import Iterable
from typing import Any

_PLAIN = frozenset(
    {
        ("collections", "OrderedDict"),
        ("collections", "Counter"),
        ("collections", "deque"),
        ("builtins", "set"),
        ("builtins", "frozenset"),
    }
)


def load_state(data: bytes, rooms: Iterable[str], makers: Iterable[tuple[str, str]] = ()) -> Any:
    """The object. `rooms`: packages or modules whose own classes it may hold; `makers`: functions that it may call, as
    (module, name).

    Raises ValueError that says what is wrong with it.
    """
    try:
        return _Unpickler(io.BytesIO(data), tuple(room + "." for room in rooms), frozenset(makers)).load()
    except (
        ValueError,
        pickle.UnpicklingError,
        AttributeError,
        EOFError,
        ImportError,
        IndexError,
        TypeError,
        KeyError,
    ) as error:
        raise ValueError(str(error) or type(error).__name__) from error


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, rooms: tuple[str, ...], makers: frozenset[tuple[str, str]]) -> None:
        super().__init__(file)
        self._rooms = rooms
        self._makers = makers

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN or (module, name) in self._makers:
            return super().find_class(module, name)
        if f"{module}.".startswith(self._rooms) and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:  # made there, not imported there
                return found
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a log")
