"""The base of every spec section: unknown keys are refused, values are frozen, names have one form, and paths start
from the spec's folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")]
"""A lower-case name of at most 63 letters, digits, dots and dashes (so that it can be a DNS label, a metric label and a
Ray label)."""

Seconds = Annotated[float, Field(gt=0, le=86_400)]
"""A duration in seconds, above 0 and at most a day."""


def refuse_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("truth_value", "true and false (also yes, no, on, off) are not allowed here")
    return value


no_truth_values = field_validator("*", mode="before")(refuse_truth_value)
"""In a frozen dataclass that is a section of a file, too: none of its keys takes a truth value. Pydantic checks its
annotations where the file is read, and nobody else does."""


class Section(BaseModel):
    """One section of the spec: closed (`extra="forbid"`), frozen, and validated with its defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, str_strip_whitespace=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses `port: true`, which pydantic would read as 1 (and YAML reads `yes` and `on` as true)."""
        assert info.field_name is not None
        takes_it = cls.model_fields[info.field_name].annotation in (bool, bool | None)
        return value if takes_it else refuse_truth_value(value)


def check_unique(where: str, names: Iterable[str]) -> None:
    """Raises ValueError for a name that appears twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{where}: {name!r} appears twice; names must be unique")
        seen.add(name)


def check_known(where: str, names: Iterable[str] | None, known: Iterable[str]) -> None:
    """Raises ValueError for a name that is none of the known ones, which it lists."""
    known = list(known)
    for name in names or ():
        if name not in known:
            raise ValueError(f"{where} = {name!r}: unknown; allowed: {', '.join(known) or 'none'}")


FOLDER = "folder"
"""The key of pydantic's validation context under which `load_spec` says where the spec's file lies."""


def beside_the_spec(path: str, info: ValidationInfo) -> str:
    """The path, absolute where the spec's folder is known."""
    folder = (info.context or {}).get(FOLDER)
    try:
        return path if folder is None else str(Path(folder, Path(path).expanduser()))
    except RuntimeError:
        raise ValueError("no such home; allowed: a path from /, ~/ or the spec's folder") from None


RelativePath = Annotated[str, Field(min_length=1), AfterValidator(beside_the_spec)]
"""A path that starts from the folder of the file that names it."""
OptionalPath = Annotated[RelativePath | None, BeforeValidator(lambda path: None if path == "" else path)]
"""...or none, also where it is empty."""
