"""The base of every spec section: unknown keys are refused, values are frozen, and names have one form.

What does not live here: the sections themselves (one file each) and the reading of files (`load.py`).
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")]
"""A lower-case name of at most 63 letters, digits, dots and dashes (so that it can be a DNS label, a metric label and a Ray label)."""

Seconds = Annotated[float, Field(gt=0, le=86_400)]
"""A duration in seconds, above 0 and at most a day."""


class Section(BaseModel):
    """One section of the spec: closed (`extra="forbid"`), frozen, and validated with its defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, str_strip_whitespace=True)
