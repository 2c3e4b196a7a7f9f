"""What arrives: requests with their true lengths, which the scheduler must guess, in the order of time.

From a trace come those that are the model's, with the class and the tenant of the spec, and its SLO. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cluster.errors import InputError
from cluster.spec import ClusterSpec, Model
from deployments.scheduling.policy import policy_of
from planning.workload.changes import ChangeKind, TraceChange, rejections
from planning.workload.scaling import LengthLimits, blockwise, within
from planning.workload.trace import Labels, Trace, no_labels

T_co = TypeVar("T_co", covariant=True)


class WorkloadColumn(Protocol[T_co]):
    """A value for each request: a tuple, or something leaner that a million requests need."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


@dataclass(frozen=True, slots=True)
class Workload:
    """Columns of equal length, ascending by `arrived_s` (seconds from the start).

    `max_tokens` is the client's bound on the output, 0: none. `prefix` holds the hashes of a prompt's leading chunks of
    `chunk_tokens` tokens; an empty tuple: nothing is shared. `changes`: what was changed between the trace and here,
    the rejected requests among it, which are not in the columns. `session`: the number of each one's conversation, -1
    where it is in none. `region`: where its client is; None: not known.
    """

    arrived_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    max_tokens: NDArray[np.int64]
    ttft_slo_s: NDArray[np.float64]
    tenant: WorkloadColumn[str]
    traffic_class: WorkloadColumn[str]
    prefix: WorkloadColumn[tuple[int, ...]]
    chunk_tokens: int = 0
    changes: tuple[TraceChange, ...] = ()
    session: NDArray[np.int64] | None = None
    region: Labels | None = None

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in _COLUMNS}
        if len(lengths) != 1:
            raise ValueError(f"the columns of a workload are of one length; got {sorted(lengths)}")
        if len(self.arrived_s) and bool(np.any(np.diff(self.arrived_s) < 0)):
            raise ValueError("the arrivals of a workload ascend")
        if len(self) and min(self.prompt_tokens.min(), self.output_tokens.min()) < 1:
            raise ValueError("a request has at least one token of prompt and of output")

    def __len__(self) -> int:
        return len(self.arrived_s)

    @property
    def rejected(self) -> int:
        """Requests that arrived and were rejected before the scheduler saw them."""
        return sum(rejections(self.changes).values())

    def head(self, count: int) -> "Workload":
        """The first `count` requests."""
        return self._cut(slice(count))

    def tail(self, count: int) -> "Workload":
        """The last `count` requests."""
        return self._cut(slice(len(self) - count, None))

    def between(self, from_s: float, to_s: float) -> "Workload":
        """The requests that arrive from `from_s`, which becomes second 0, until before `to_s`."""
        first, until = np.searchsorted(self.arrived_s, (from_s, to_s))
        kept = self._cut(slice(int(first), max(int(first), int(until))))
        return kept.at(kept.arrived_s - from_s)

    def take(self, numbers: NDArray[np.int64], arrived_s: NDArray[np.float64]) -> "Workload":
        """The requests of these numbers, at these times, without what was changed before."""
        return replace(self._cut(numbers, arrived_s=arrived_s), changes=())

    def _cut(self, part: "slice | NDArray[np.int64]", **instead: Any) -> "Workload":
        columns = {name: _part(getattr(self, name), part) for name in _COLUMNS if name not in instead}
        session = None if self.session is None else self.session[part]
        region = None if self.region is None else Labels(self.region.names, self.region.codes[part])
        return replace(self, session=session, region=region, **columns, **instead)

    def next_turns(self) -> NDArray[np.int64] | None:
        """For each request the next one of its conversation, -1 where there is none; None without conversations."""
        session = self.session
        if session is None or not self.chunk_tokens:
            return None
        order = np.argsort(session, kind="stable")
        follows = (session[order[:-1]] == session[order[1:]]) & (session[order[:-1]] >= 0)
        turns = np.full(len(session), -1, dtype=np.int64)
        turns[order[:-1][follows]] = order[1:][follows]
        return turns

    def with_answer(self, index: int, following: int) -> tuple[int, ...]:
        """The hashes of a request's prompt and of its answer, as far as the prompt that follows it shows them."""
        prefix, tokens = self.prefix[index], int(self.prompt_tokens[index] + self.output_tokens[index])
        later = self.prefix[following]
        if self.prompt_tokens[following] < tokens or later[: len(prefix)] != prefix:
            return prefix
        return later[: max(len(prefix), tokens // self.chunk_tokens)]

    def at(self, arrived_s: NDArray[np.float64]) -> "Workload":
        """The same requests at other times."""
        return replace(self, arrived_s=arrived_s)


_OTHERS = ("chunk_tokens", "changes", "session", "region")
_COLUMNS = tuple(one.name for one in fields(Workload) if one.name not in _OTHERS)


def _part(column: Any, part: "slice | NDArray[np.int64]") -> Any:
    if isinstance(column, np.ndarray):
        return column[part]
    numbers = range(*part.indices(len(column))) if isinstance(part, slice) else part.tolist()
    return tuple(column[index] for index in numbers)


def plain_workload(
    arrived_s: NDArray[np.float64],
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    ttft_slo_s: float = 5.0,
    bounded: bool = True,
) -> Workload:
    """A workload of one tenant and one class, without shared prefixes. `bounded`: clients ask for as many tokens as
    they get."""
    count = len(arrived_s)
    return Workload(
        arrived_s,
        prompt_tokens,
        output_tokens,
        output_tokens if bounded else np.zeros(count, dtype=np.int64),
        np.full(count, ttft_slo_s),
        ("",) * count,
        ("interactive",) * count,
        ((),) * count,
    )


class WorkloadError(InputError):
    """A trace that the spec cannot serve; the message names the column, the value and what is allowed."""


def workload_of(trace: Trace, spec: ClusterSpec, model: Model, limits: LengthLimits | None = None) -> Workload:
    """The model's requests of the trace; of a view, those that its group is tried first for. Raises WorkloadError.

    A class must be the spec's; a request without one is of the first class that its tenant may claim, as at the
    gateway. A tenant that the spec does not name is the nameless one. Where the trace names models of the spec, only
    those of this one are taken; names that the spec knows none of are somebody else's, and all requests are. A request
    whose prompt and answer do not fit the context is rejected, as the gateway and the engine do. All of it is noted in
    `changes`. `limits` default to the model's context alone.
    """
    limits = limits or LengthLimits(model.settings.max_model_len)
    own = _of_group(_of_model(trace, spec, model), spec, model)
    mine = within(own, limits)
    if not len(mine):
        bound = f"models.{model.name}.settings.max_model_len = {limits.context}; allowed: a longer context"
        if limits.holds < limits.context:
            bound = f"the engine's KV cache of {limits.holds} tokens; allowed: a larger one"
        raise WorkloadError(
            f"no request is left: all {len(own):,} are longer than {bound}, or --fit-lengths, which shrinks them"
        )
    mine = _prefixed(mine, model, limits.block_tokens).changed(_regions(mine, spec, model))
    tenant = _tenants(mine, spec)
    traffic_class = _classes(mine, spec, tenant)
    slo_s = np.array([one.ttft_ms / 1e3 for one in spec.classes])
    count = len(mine)
    prefix: WorkloadColumn[tuple[int, ...]] = ((),) * count if mine.prefixes is None else mine.prefixes
    return Workload(
        mine.arrived_s,
        mine.prompt_tokens,
        mine.output_tokens,
        np.zeros(count, dtype=np.int64) if mine.max_tokens is None else mine.max_tokens,
        slo_s[traffic_class.codes],
        tenant,
        traffic_class,
        prefix,
        0 if mine.prefixes is None else mine.prefixes.chunk_tokens,
        mine.changed(_strangers(mine, spec), _classless(mine, traffic_class)).changes,
        mine.session,
        mine.region,
    )


def _of_model(trace: Trace, spec: ClusterSpec, model: Model) -> Trace:
    named = trace.model
    if named is None:
        return trace
    if not any(name in one.served_names for one in spec.models for name in named.used()):
        foreign = int(np.array([bool(name) for name in named.names])[named.codes].sum())
        names = _some(name for name in named.used() if name)
        what = f"names of models that the spec does not have ({names}): all requests go to {model.name!r}"
        return trace.changed(TraceChange(ChangeKind.MODEL_NAMES_IGNORED, foreign, len(trace), what))
    desired = np.array([name in model.served_names for name in named.names])
    mine = trace.take(np.flatnonzero(desired[named.codes]))
    if not len(mine):
        raise WorkloadError(
            f"no request of the trace is for model {model.name!r}; it has those of "
            f"{', '.join(name or '(none)' for name in named.used())}"
        )
    names = _some(name or "(none)" for name in named.used() if name not in model.served_names)
    what = f"left out: for other models ({names})"
    return mine.changed(TraceChange(ChangeKind.OTHER_MODEL, len(trace) - len(mine), len(trace), what))


def _of_group(trace: Trace, spec: ClusterSpec, view: Model) -> Trace:
    """By lane and context, as the scheduler does it with what it expects of the outputs; here they are known."""
    if view.groups:  # the whole model
        return trace
    policy = policy_of(spec, spec.model(view.name), spec.regions_of(view)[0])
    if not policy.contexts:
        return trace
    maximum = np.zeros(len(trace), dtype=np.int64) if trace.max_tokens is None else trace.max_tokens
    tokens = trace.prompt_tokens + trace.output_tokens
    contexts = trace.prompt_tokens + np.where(maximum > 0, maximum, trace.output_tokens)
    groups = (policy.served(policy.lane_of(one), context)[1] for one, context in zip(tokens, contexts, strict=True))
    mine = trace.take(np.flatnonzero([one[:1] == (view.group,) for one in groups]))
    if not len(mine):
        raise WorkloadError(f"no request of the trace is for group {view.group!r} first; needed: some that are")
    what = f"left out: other groups are tried first for them; {view.group!r} is not"
    return mine.changed(TraceChange(ChangeKind.OTHER_GROUP, len(trace) - len(mine), len(trace), what))


def _prefixed(trace: Trace, model: Model, block_tokens: int) -> Trace:
    """The trace with prefixes that the engine's cache can hold. Without such a cache only the scheduler sees them."""
    if trace.prefixes is None or model.settings.prefix_caching:
        return blockwise(trace, block_tokens)
    touched = int((trace.prefixes.counts > 0).sum())
    what = f"their prefixes are not cached: models.{model.name}.settings.prefix_caching is false"
    unused = TraceChange(ChangeKind.PREFIXES_UNUSED, touched, len(trace), what)
    return trace.changed(unused)


def _regions(trace: Trace, spec: ClusterSpec, model: Model) -> TraceChange:
    used = () if trace.region is None or spec.peering is not None else trace.region.used()
    names, cell = _some(name or "(none)" for name in used), spec.regions_of(model)[0].name
    what = f"of several regions ({names}): all go to the cell of {cell}"
    return TraceChange(ChangeKind.REGIONS_MERGED, len(trace) if len(used) > 1 else 0, len(trace), what)


def _strangers(trace: Trace, spec: ClusterSpec) -> TraceChange:
    known = {tenant.name for tenant in spec.tenants}
    labels = trace.tenant or no_labels(len(trace))
    strange = np.array([bool(name) and name not in known for name in labels.names])[labels.codes]
    names = _some(name for name in labels.used() if name and name not in known)
    what = f"of tenants that the spec does not name ({names}): they count as the anonymous one's"
    return TraceChange(ChangeKind.TENANT_UNKNOWN, int(strange.sum()), len(trace), what)


def _classless(trace: Trace, classes: Labels) -> TraceChange:
    given = trace.traffic_class or no_labels(len(trace))
    nameless = np.array([not name for name in given.names])[given.codes]
    names = _some(dict.fromkeys(classes.names[code] for code in np.unique(classes.codes[nameless])))
    return TraceChange(
        ChangeKind.CLASS_ASSUMED, int(nameless.sum()), len(trace), f"name no traffic class: taken as {names}"
    )


_NAMED = 5


def _some(names: Iterable[str]) -> str:
    """The first few of the names."""
    listed = list(names)
    return ", ".join(listed[:_NAMED]) + (f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else "")


def _tenants(trace: Trace, spec: ClusterSpec) -> Labels:
    known = ("", *(tenant.name for tenant in spec.tenants))
    return _coded(
        trace.tenant or no_labels(len(trace)),
        known,
        [known.index(name) if name in known else 0 for name in _names(trace.tenant)],
    )


def _classes(trace: Trace, spec: ClusterSpec, tenant: Labels) -> Labels:
    known = tuple(one.name for one in spec.classes)
    given = trace.traffic_class or no_labels(len(trace))
    unknown = sorted(name for name in given.used() if name and name not in known)
    if unknown:
        raise WorkloadError(
            f"class = {', '.join(map(repr, unknown))} in the trace: the spec has no such class; allowed: "
            f"{', '.join(known)}"
        )
    coded = _coded(given, known, [known.index(name) if name in known else 0 for name in given.names])
    nameless = np.array([not name for name in given.names])[given.codes]
    if not nameless.any():
        return coded
    first = {one.name: known.index(one.classes[0]) for one in spec.tenants if one.classes}
    of_tenant = np.array([first.get(name, 0) for name in tenant.names], dtype=np.int32)[tenant.codes]
    return Labels(known, np.where(nameless, of_tenant, coded.codes))


def _names(labels: Labels | None) -> Sequence[str]:
    return ("",) if labels is None else labels.names


def _coded(labels: Labels, known: tuple[str, ...], codes: Sequence[int]) -> Labels:
    """The same requests under `known` names: `codes` says for each old name which."""
    return Labels(known, np.array(codes, dtype=np.int32)[labels.codes])
