"""Options that several commands share, or that travel together, as one dataclass: its fields are the options."""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer reads it: a parameter whose type is a dataclass stands for that one's fields. Each field has
    a default, and is annotated as an option of its own."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        of_group = get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=of_group[one.name]
            )
            for one in fields(groups[name])
        ]

    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{one.name: given.pop(one.name) for one in fields(group)})
        command(**given)

    run.__doc__, run.__name__, run.__module__ = command.__doc__, command.__name__, command.__module__
    run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run
