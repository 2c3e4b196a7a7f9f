"""A pytest plugin: the tests that are quick and in one process come first, so that most mutants die early. The order is
the same every time."""

import inspect

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts what mutmut hands over as a set: examples of the pure core, its properties, what needs a loop, whole
    gateways."""
    items.sort(key=lambda item: (_cost(item), item.nodeid))


def _cost(item: pytest.Item) -> int:
    function = getattr(item, "function", None)
    if "make_cell" in getattr(item, "fixturenames", ()):
        return 3
    if inspect.iscoroutinefunction(function):
        return 2
    return int(hasattr(function, "hypothesis") or getattr(item, "cls", None) is not None)
