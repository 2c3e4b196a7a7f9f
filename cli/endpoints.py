"""`raylane endpoints`: the regions' endpoints for clients, in the order of preference from one region, and whether each
is ready as this command sees it.

A client with the list asks the first endpoint, and the next one if that does not answer (`docs/clients.md`). The order
does not depend on what is ready at this moment: the list is for a client's configuration.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated
from urllib.parse import quote

import requests
import typer
from rich.markup import escape

from cli.console import AsJson, Table, console, fail, plain_table, print_json, show
from cli.gateway import get
from cli.options import SpecFile
from cluster.spec import AwsDeploy, ClusterSpec, Region, load_spec

_LONGEST_S = 30.0


class EndpointHealth(StrEnum):
    """What `/ready` of an endpoint says."""

    READY = "ready"
    NOT_READY = "not_ready"
    """It answers, and is starting or draining, or no model (the one asked for) has a replica."""
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class ListedEndpoint:
    """`url` is a client's `base_url`. `rtt_ms`: from the region that is asked for, as it is known (None: not known).
    `answer_ms`: how long `/ready` took from here; `detail`: why it is not ready."""

    region: str
    url: str
    rtt_ms: float | None
    health: EndpointHealth | None = None
    answer_ms: float | None = None
    detail: str = ""


def endpoints(
    spec_file: SpecFile,
    region: Annotated[
        str | None, typer.Option("--from", help="The region where the clients are. Default: the spec's first.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only regions that may serve this model.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only regions that may serve this tenant.")] = None,
    traffic_class: Annotated[
        str | None, typer.Option("--class", help="Only regions that may serve this traffic class.")
    ] = None,
    within_s: Annotated[
        float, typer.Option("--within", min=0.1, max=_LONGEST_S, help="Seconds that each endpoint may take to answer.")
    ] = 2.0,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Ask each endpoint whether it is ready.")] = True,
    as_json: AsJson = False,
) -> None:
    """List the regions' endpoints for clients, in the order of preference from a region, with their health.

    Exit status 1 if none of them is ready.
    """
    try:
        spec = load_spec(spec_file)
        home = spec.regions[0] if region is None else spec.region(region)
        listed = preferred(spec, home, allowed_regions(spec, model, tenant, traffic_class))
    except ValueError as error:
        fail(str(error), code=2)
    if check:
        listed = checked(listed, within_s, model or "*")
    if as_json:
        print_json({"from": home.name, "endpoints": [asdict(one) for one in listed]})
    else:
        show(_table(listed, home.name))
    if check and not any(one.health is EndpointHealth.READY for one in listed):
        raise typer.Exit(1)


def allowed_regions(
    spec: ClusterSpec, model: str | None = None, tenant: str | None = None, traffic_class: str | None = None
) -> frozenset[str]:
    """The regions that may serve what is named, and run the model. Raises ValueError for a name that the spec does not
    know."""
    allowed = {region.name for region in spec.regions}
    if model is not None:
        allowed &= {region.name for region in spec.regions_of(spec.model(model))}
    named = (
        ("--model", model, spec.models),
        ("--tenant", tenant, spec.tenants),
        ("--class", traffic_class, spec.classes),
    )
    for option, name, known in named:
        if name is None:
            continue
        found = next((one for one in known if one.name == name), None)
        if found is None:
            raise ValueError(f"{option} {name!r}: unknown; allowed: {', '.join(one.name for one in known) or 'none'}")
        allowed &= allowed if found.residency is None else set(found.residency)
    return frozenset(allowed)


def preferred(spec: ClusterSpec, home: Region, allowed: frozenset[str]) -> list[ListedEndpoint]:
    """The endpoints of the allowed regions: `home` first, then by the round trip from there, those of unknown round
    trip last, in the spec's order. Raises ValueError where a region has no endpoint, or none is allowed."""
    regions = [region for region in spec.regions if region.name in allowed]
    if missing := [f"regions.{region.name}.endpoint" for region in regions if region.endpoint is None]:
        raise ValueError(f"{', '.join(missing)}: missing; needed: the URL of that region's gateways")
    found = []
    for region in regions:
        rtt_ms = 0.0 if region is home else spec.hardware.link(_place(home), _place(region)).rtt_ms
        found.append(ListedEndpoint(region.name, f"{region.endpoint}{spec.gateway.root_path}/v1", rtt_ms))
    if not found:
        raise ValueError("no region may serve all that is named; residency leaves none")
    return sorted(found, key=lambda one: (one.region != home.name, one.rtt_ms is None, one.rtt_ms or 0.0))


def _place(region: Region) -> str:
    """By what name links between regions are known."""
    return region.deploy.region or region.name if isinstance(region.deploy, AwsDeploy) else region.name


def checked(listed: Sequence[ListedEndpoint], within_s: float, model: str) -> list[ListedEndpoint]:
    """The endpoints with their health for the model (`*`: for any). All are asked at once, so that one that
    hangs holds up no other."""
    with ThreadPoolExecutor(len(listed)) as pool:
        return list(pool.map(partial(_checked, within_s=within_s, model=model), listed))


def _checked(one: ListedEndpoint, within_s: float, model: str) -> ListedEndpoint:
    begun_s = time.monotonic()
    health, detail = EndpointHealth.UNREACHABLE, ""
    try:
        response = get(f"{one.url.removesuffix('/v1')}/ready?model={quote(model, safe='*')}", within_s)
        health = EndpointHealth.READY if response.ok else EndpointHealth.NOT_READY
        detail = "" if response.ok else _why(response)
    except requests.Timeout:
        detail = f"no answer within {within_s:g} s"
    except requests.RequestException as error:
        detail = _root_of(error)
    answer_ms = None if health is EndpointHealth.UNREACHABLE else round(1e3 * (time.monotonic() - begun_s), 1)
    return ListedEndpoint(one.region, one.url, one.rtt_ms, health, answer_ms, detail)


def _root_of(error: requests.RequestException) -> str:
    """The operating system's words at the root of an error, such as "connection refused"."""
    words, cause = type(error).__name__, error.__context__
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            words = cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return words


def _why(response: requests.Response) -> str:
    try:
        said = response.json()
        missing = ", ".join(said.get("models_without_replica", ()))
        return f"{said['status']}" + (f": no replica of {missing}" if missing else "")
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"


_COLOURS = {EndpointHealth.READY: "green", EndpointHealth.NOT_READY: "yellow", EndpointHealth.UNREACHABLE: "red"}
_REST = 16
"""Columns that the others need at least, spaces among them."""


def _table(listed: Sequence[ListedEndpoint], home: str) -> Table:
    """Names and addresses are not broken, so that they can be copied from a narrow terminal; where the terminal is
    narrower still, they are: nothing is cut off."""
    table = plain_table("region", "base_url", "RTT", left=2, title=f"endpoints for clients in {escape(home)}")
    width = max(len(one.region) for one in listed) + max(len(one.url) for one in listed) + _REST
    for column in table.columns[:2]:
        column.no_wrap = width <= console.width
    if any(one.health is not None for one in listed):
        table.add_column("health")
    for one in listed:
        rtt = "-" if one.rtt_ms is None else f"{one.rtt_ms:.0f} ms"
        health = () if one.health is None else (_health(one, one.health),)
        table.add_row(escape(one.region), escape(one.url), rtt, *health)
    return table


def _health(one: ListedEndpoint, health: EndpointHealth) -> str:
    detail = f": {one.detail}" if one.detail else f" after {one.answer_ms:.0f} ms"
    return f"[{_COLOURS[health]}]{health}[/]{escape(detail)}"
