"""The sections of a traffic file (pydantic, closed): what each key means, its unit and its range; and reading one.
Drawing is in `draw.py`."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from cluster.spec import SpecError, parse_section
from cluster.spec.base import Name, Section, check_unique
from planning.workload.arrivals import Factor, GapKind, Second, Spike
from planning.workload.lengths import parse_lengths
from planning.workload.trace import TraceError

Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAYS: tuple[Weekday, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MAX_REQUESTS = 50_000_000
PerSecond = Annotated[float, Field(ge=0, le=1_000_000)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Label = Annotated[str, Field(min_length=1, max_length=200)]
Zipf = Annotated[float, Field(ge=0, le=10)]


class Start(Section):
    """When second 0 is: weekday and hour of the day, UTC."""

    day: Weekday = "mon"
    hour: Annotated[float, Field(ge=0, lt=24)] = 0.0


class Knot(Section):
    """At this hour of the (local) day, so many requests a second."""

    hour: Annotated[float, Field(ge=0, lt=24)]
    per_s: PerSecond


class Weekdays(Section):
    """Factors on the rate by the (local) weekday."""

    mon: Factor = 1.0
    tue: Factor = 1.0
    wed: Factor = 1.0
    thu: Factor = 1.0
    fri: Factor = 1.0
    sat: Factor = 1.0
    sun: Factor = 1.0

    def factors(self) -> tuple[float, ...]:
        """Monday first."""
        return self.mon, self.tue, self.wed, self.thu, self.fri, self.sat, self.sun


class DayCurve(Section):
    """Requests a second: `per_s` all day, or `curve`, its knots joined by lines, around midnight too."""

    per_s: PerSecond | None = None
    curve: tuple[Knot, ...] = ()
    weekdays: Weekdays = Weekdays()

    @model_validator(mode="after")
    def _one_of_both(self) -> "DayCurve":
        if (self.per_s is None) == (not self.curve):
            raise ValueError("per_s and curve: allowed: exactly one of them")
        hours = [knot.hour for knot in self.curve]
        if any(low >= high for low, high in pairwise(hours)):
            raise ValueError(f"curve.hour = {hours}: allowed: ascending hours")
        return self

    def knots(self) -> list[tuple[float, float]]:
        """Hours and rates."""
        return [(0.0, self.per_s)] if self.per_s is not None else [(knot.hour, knot.per_s) for knot in self.curve]


class Share(Section):
    """A name, and its part: shares are relative to their sum."""

    name: Label
    share: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0


class Tenants(Section):
    """Whose requests they are: the `names` with their shares, or `count` tenants (`tenant-1`, ...) whose shares fall as
    1 / rank^zipf."""

    names: tuple[Share, ...] = ()
    count: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    zipf: Zipf = 1.0

    @model_validator(mode="after")
    def _one_of_both(self) -> "Tenants":
        if (self.count is None) == (not self.names):
            raise ValueError("names and count: allowed: exactly one of them")
        check_unique("names", (share.name for share in self.names))
        return self


class SharedPrefix(Section):
    """System prompts: `share` of the conversations begin with one of `count` texts of `tokens` tokens, chosen with
    weights 1 / rank^zipf.

    They come before what `prompt` draws.
    """

    count: Annotated[int, Field(ge=1, le=65_536)]
    tokens: Tokens
    zipf: Zipf = 1.0
    share: Annotated[float, Field(ge=0, le=1)] = 1.0


class Sessions(Section):
    """Conversations: `turns` requests on average (a geometric number), each with the whole talk so far as its prompt,
    `pause_s` seconds on average (exponential) after the one before. A conversation ends before a turn that would not
    fit `context_tokens`."""

    turns: Annotated[float, Field(ge=1, le=1_000)]
    pause_s: Annotated[float, Field(gt=0, le=86_400)]
    context_tokens: Tokens = 32_768


class TrafficStream(Section):
    """One kind of traffic, drawn by itself.

    `gaps` and `shape`: how requests (with `sessions`: conversations) follow each other; shape 1 is Poisson, below 1
    comes in bursts, above 1 evenly. `prompt`, `output`: lengths in tokens, as in `raylane bench`; with `sessions`, of
    what each turn adds. `rate` counts requests, all turns.
    """

    name: Name
    rate: DayCurve
    gaps: GapKind = "gamma"
    shape: Annotated[float, Field(ge=0.05, le=1_000)] = 1.0
    spikes: tuple[Spike, ...] = ()
    prompt: str
    output: str
    prefix: SharedPrefix | None = None
    sessions: Sessions | None = None
    classes: tuple[Share, ...] = ()
    tenants: Tenants | None = None
    model: Label | None = None

    @field_validator("prompt", "output")
    @classmethod
    def _is_a_length(cls, text: str) -> str:
        parse_lengths(text)
        return text

    @field_validator("prompt", "output", mode="before")
    @classmethod
    def _number_is_a_length(cls, value: object) -> object:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class TrafficRegion(Section):
    """Where requests come from: `share` of each stream, on a clock `hour_offset` hours ahead of UTC."""

    name: Label
    share: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    hour_offset: Annotated[float, Field(ge=-12, le=14)] = 0.0


class ServeGen(Section):
    """Traffic as ServeGen's tables describe it (`planning/workload/servegen/`): those of `model` in `folder`, from
    their second `from_s` on.

    `rate_scale`: so many times the recorded rate. Each of its clients is a tenant.
    """

    folder: Path
    model: Label
    from_s: Second = 0.0
    rate_scale: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    traffic_class: Annotated[str, Field(alias="class", max_length=200)] = ""


class TrafficFile(Section):
    """`duration_s` seconds of traffic: the streams, each in every region, and what ServeGen describes. The same file
    and seed give the same requests.

    `chunk_tokens`: the tokens that one hash of a shared prefix stands for.
    """

    version: Literal[1] = 1
    duration_s: Annotated[float, Field(gt=0, le=31_622_400)]
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    start: Start = Start()
    chunk_tokens: Annotated[int, Field(ge=1, le=65_536)] = 64
    regions: Annotated[tuple[TrafficRegion, ...], Field(max_length=64)] = ()
    streams: Annotated[tuple[TrafficStream, ...], Field(max_length=64)] = ()
    servegen: ServeGen | None = None

    @model_validator(mode="after")
    def _agrees(self) -> "TrafficFile":
        if not self.streams and self.servegen is None:
            raise ValueError("streams: there is none, and no servegen; allowed: at least one stream")
        check_unique("streams", (stream.name for stream in self.streams))
        check_unique("regions", (region.name for region in self.regions))
        return self


SUFFIXES = (".yaml", ".yml")
"""A file of such a name is a traffic file, any other one a trace."""


@dataclass(eq=False)
class TrafficError(TraceError):
    """A traffic file that cannot be used. `problems` holds one line each."""

    source: str
    problems: list[str]

    def __str__(self) -> str:
        return f"{self.source} is not a usable traffic file:\n  " + "\n  ".join(self.problems)


def load_traffic(path: Path) -> TrafficFile:
    """The traffic file at `path`; its own paths are relative to it. Raises TrafficError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrafficError(str(path), [f"cannot be read: {error}"]) from error
    traffic = parse_traffic(text, str(path))
    if traffic.servegen is None:
        return traffic
    described = traffic.servegen.model_copy(update={"folder": path.parent / traffic.servegen.folder})
    return traffic.model_copy(update={"servegen": described})


def parse_traffic(text: str, source: str = "traffic") -> TrafficFile:
    """The traffic file in a YAML text. Raises TrafficError."""
    try:
        return parse_section(TrafficFile, text, source)
    except SpecError as error:
        raise TrafficError(source, error.problems) from error
