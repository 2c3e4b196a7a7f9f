"""Reads pickled state that stands in a log: an unpickler that makes nothing but the classes of named rooms, and plain containers.

Called by whoever replays a log (`scheduling/replay.py`, the scaling log's). It refuses a state that names anything else before it is made.
"""

import io
import pickle
from collections.abc import Iterable
from typing import Any

_PLAIN = frozenset(
    {("collections", "OrderedDict"), ("collections", "Counter"), ("collections", "deque"), ("builtins", "set"), ("builtins", "frozenset")}
)


def load_state(data: bytes, rooms: Iterable[str]) -> Any:
    """The object. `rooms`: packages whose own classes it may hold, with those below them. Raises ValueError that says what is wrong with it."""
    try:
        return _Unpickler(io.BytesIO(data), tuple(room + "." for room in rooms)).load()
    except (ValueError, pickle.UnpicklingError, AttributeError, EOFError, ImportError, IndexError, TypeError, KeyError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, rooms: tuple[str, ...]) -> None:
        super().__init__(file)
        self._rooms = rooms

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
        if module.startswith(self._rooms) and "." not in name:
            found = super().find_class(module, name)
            if getattr(found, "__module__", None) == module:  # made there, not imported there
                return found
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a log")
