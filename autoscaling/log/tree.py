"""What differs between two trees of lists and plain values, as JSON has them: a line of the log holds only what changed since the line before. Pure.

A difference is a mapping from index to difference where two lists are equally long, else the new value itself. Trees hold no mappings, so the two are
never confused.
"""

from typing import Any

NOTHING: dict[str, Any] = {}
"""The difference of equal trees."""


def difference(old: Any, new: Any) -> Any:
    """What makes `new` of `old`."""
    if old == new:
        return NOTHING
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return {str(index): difference(a, b) for index, (a, b) in enumerate(zip(old, new, strict=True)) if a != b}
    return new


def patched(old: Any, change: Any) -> Any:
    """The tree that `difference` was taken of. Raises ValueError where the change does not fit."""
    if not isinstance(change, dict):
        return change
    if not change:
        return old
    if not isinstance(old, list):
        raise ValueError(f"a change of {sorted(change)} of what is no list: {str(old)[:40]!r}")
    new = list(old)
    for key, part in change.items():
        index = int(key)
        if not 0 <= index < len(new):
            raise ValueError(f"a change of place {index} of {len(new)}")
        new[index] = patched(new[index], part)
    return new
