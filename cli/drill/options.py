"""What `raylane drill` was asked for: regions' figures, round trips, endpoints. Every error names its option."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cli.console import fail
from cli.options import chosen_model, engine_costs
from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CostFileError
from planning.drill.drill import Drill, DrillTraffic, RequestShape, drawn_traffic, drill_on
from planning.drill.simulated import DrillCase
from planning.simulator.faults import FaultKind
from planning.workload.lengths import Lengths, parse_lengths

DEFAULT_RTT_MS = 50.0
"""Between regions whose round trip is not known."""
_DEFAULT_FOR_S = 30.0
_FOR_GOOD = (FaultKind.REGION_LOSS, FaultKind.ZONE_LOSS)
_LINKS = (FaultKind.PARTITION, FaultKind.SLOW_LINK)
_ENDPOINT = re.compile(r"https?://[^/\s]+")


def read_case(spec_file: Path, model: str | None, costs: Path | None, rtt_ms: Sequence[str]) -> DrillCase:
    """The spec's model in all its regions. Ends the command where that cannot be drilled."""
    spec, chosen = chosen_model(spec_file, model)
    if spec.peering is None or len(spec.regions) < 2:
        fail(f"{spec_file}: peering: missing; a drill needs several regions that help each other", code=2)
    elsewhere = [region.name for region in spec.regions if region not in spec.regions_of(chosen)]
    if elsewhere:
        fail(
            f"--model {chosen.name!r}: does not run in {', '.join(elsewhere)}; needed: one that runs in each region",
            code=2,
        )
    if len(chosen.views) > 1:
        fail(f"--model {chosen.name!r}: has several groups; allowed: a model without groups", code=2)
    try:
        _, found = engine_costs(spec, chosen, costs)
    except CostFileError as error:
        fail(str(error), code=2)
    return DrillCase(spec, chosen, found, _round_trips(spec, rtt_ms))


def _round_trips(spec: ClusterSpec, given: Sequence[str]) -> Mapping[frozenset[str], float]:
    """Seconds, by pair: those of `--rtt`, else the known ones of clouds' regions, else the default."""
    names = [region.name for region in spec.regions]
    found: dict[frozenset[str], float] = {}
    for number, one in enumerate(names):
        for other in names[number + 1 :]:
            known = spec.hardware.link(one, other).rtt_ms
            found[frozenset((one, other))] = (DEFAULT_RTT_MS if known is None else known) / 1e3
    for text in given:
        pair, _, value = text.rpartition("=")
        ends = pair.split(":")
        if not pair:
            found = dict.fromkeys(found, _number("--rtt-ms", text, value, 0, 10_000) / 1e3)
        elif len(ends) != 2 or ends[0] == ends[1] or not set(ends) <= set(names):
            fail(f"--rtt-ms {text!r}: allowed: MS, or A:B=MS with two of {', '.join(names)}", code=2)
        else:
            found[frozenset(ends)] = _number("--rtt-ms", text, value, 0, 10_000) / 1e3
    return found


def _number(option: str, text: str, value: str, low: float, high: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not low <= number <= high:
        fail(f"{option} {text!r}: allowed: {low:g} to {high:g}", code=2)
    return number


def by_region(
    option: str, texts: Sequence[str], cells: Sequence[str], allowed: tuple[float, float]
) -> dict[str, float]:
    """A figure for each region: `1.5` for all, `eu=1.5` for one; later ones replace earlier ones. Ends the command for
    an unknown region, and for one that has no figure."""
    found: dict[str, float] = {}
    for text in (part.strip() for given in texts for part in given.split(",")):
        name, _, value = text.rpartition("=")
        if name and name not in cells:
            fail(f"{option} {text!r}: region {name!r} is not in the spec; allowed: {', '.join(cells)}", code=2)
        number = _number(option, text, value, *allowed)
        found |= {name: number} if name else dict.fromkeys(cells, number)
    if missing := [name for name in cells if name not in found]:
        fail(f"{option}: nothing is said of {', '.join(missing)}; allowed: a number for all, or REGION=NUMBER", code=2)
    return {name: found[name] for name in cells}


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """The options that say what befalls whom; None: not given."""

    cell: str | None
    others: Sequence[str]
    at_s: float
    for_s: float | None
    length_s: float
    share: float | None
    speed: float | None
    more_rtt_ms: float | None


def read_drill(kind: FaultKind, options: FaultOptions, cells: Sequence[str]) -> Drill:
    """The drill. Ends the command for what cannot be, and for options that this kind does not have."""
    cell = options.cell or cells[0]
    for option, names in (("--cell", [cell]), ("--other", options.others)):
        for name in names:
            if name not in cells:
                fail(f"{option} {name!r}: not a region of the spec; allowed: {', '.join(cells)}", code=2)
    if cell in options.others:
        fail(f"--other {cell!r}: is --cell as well; allowed: another region", code=2)
    if options.others and kind not in _LINKS:
        fail(f"--other: allowed with {' and '.join(_LINKS)} only", code=2)
    if options.at_s >= options.length_s:
        fail(f"--at {options.at_s:g}: allowed: below --length {options.length_s:g}", code=2)
    owners = {
        "--share": (options.share, FaultKind.ZONE_LOSS),
        "--speed": (options.speed, FaultKind.BROWN_OUT),
        "--more-rtt-ms": (options.more_rtt_ms, FaultKind.SLOW_LINK),
    }
    for option, (value, owner) in owners.items():
        if value is not None and kind is not owner:
            fail(f"{option} {value:g}: allowed with {owner} only", code=2)
    for_s = options.for_s or (float("inf") if kind in _FOR_GOOD else _DEFAULT_FOR_S)
    others = options.others or [name for name in cells if name != cell]
    how = {"share": options.share, "speed": options.speed}
    how |= {"more_rtt_s": None if options.more_rtt_ms is None else options.more_rtt_ms / 1e3}
    given = {name: value for name, value in how.items() if value is not None}
    try:
        return drill_on(kind, cell, others, options.at_s, for_s, options.length_s, **given)
    except ValueError as error:
        fail(str(error), code=2)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options that say what the clients send."""

    load: Sequence[str]
    rate: Sequence[str]
    input_tokens: str
    output_tokens: str
    seed: int


def read_traffic(case: DrillCase, drill: Drill, options: LoadOptions) -> DrillTraffic:
    """The traffic: at `--rate` requests a second, else at shares of a cell's capacity. Ends the command for what cannot
    be."""
    shape = RequestShape(
        _lengths("--input-tokens", options.input_tokens),
        _lengths("--output-tokens", options.output_tokens),
        case.slo.ttft_s,
    )
    _check_context(case.model, shape)
    if options.rate and options.load:
        fail("--rate together with --load: allowed: one of them", code=2)
    if options.rate:
        rates = by_region("--rate", options.rate, case.cells, (0, 100_000))
    else:
        loads = by_region("--load", options.load or ["0.5"], case.cells, (0, 100))
        capacity = case.capacity(shape)
        rates = {name: load * capacity for name, load in loads.items()}
    try:
        return drawn_traffic(rates, drill.length_s, shape, options.seed)
    except ValueError as error:
        fail(f"--length {drill.length_s:g}: {error}", code=2)


def _lengths(option: str, text: str) -> Lengths:
    try:
        return parse_lengths(text)
    except ValueError as error:
        fail(f"{option} {error}", code=2)


def _check_context(model: Model, shape: RequestShape) -> None:
    rng, context = np.random.default_rng(0), model.settings.max_model_len
    longest = int(shape.prompt.sample(1_000, rng).max()) + int(shape.output.sample(1_000, rng).max())
    if longest > context:
        fail(f"--input-tokens and --output-tokens: up to {longest:,}; the model's context has {context:,}", code=2)


def read_endpoints(given: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """`REGION=URL` for each region, or nothing at all. Ends the command for what cannot be."""
    found: dict[str, str] = {}
    for text in given:
        name, _, url = text.partition("=")
        if name not in cells or not _ENDPOINT.fullmatch(url.rstrip("/")):
            fail(f"--endpoint {text!r}: allowed: REGION=http(s)://HOST:PORT with one of {', '.join(cells)}", code=2)
        found[name] = url.rstrip("/").removesuffix("/v1")
    if found and (missing := [name for name in cells if name not in found]):
        fail(f"--endpoint: missing for {', '.join(missing)}; needed: that of each region, or none", code=2)
    return found
