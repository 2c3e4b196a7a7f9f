"""From a trace to a workload: which of its requests are the model's, of which class and tenant of the spec, with which promise. Pure."""

from collections.abc import Sequence

import numpy as np

from cluster.spec import ClusterSpec, Model
from planning.simulator.workload import Column, Workload
from planning.workload.fitting import fitted
from planning.workload.labels import Labels, no_labels
from planning.workload.trace import Trace


class WorkloadError(ValueError):
    """A trace that the spec cannot serve; the message names the column, the value and what is allowed."""


def workload_of(trace: Trace, spec: ClusterSpec, model: Model) -> Workload:
    """The model's requests of the trace. Raises WorkloadError.

    A class must be the spec's; a request without one is of the first class that its tenant may claim, as at the gateway. A tenant that the spec does
    not name is the nameless one. Where the trace names models of the spec, only those of this one are taken; names that the spec knows none of are
    somebody else's, and all requests are. Lengths shrink to fit the context.
    """
    mine = fitted(_of_model(trace, spec, model), model.settings.max_model_len)
    tenant = _tenants(mine, spec)
    traffic_class = _classes(mine, spec, tenant)
    slo_s = np.array([one.ttft_ms / 1e3 for one in spec.classes])
    count = len(mine)
    prefix: Column[tuple[int, ...]] = ((),) * count if mine.prefixes is None else mine.prefixes
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
    )


def _of_model(trace: Trace, spec: ClusterSpec, model: Model) -> Trace:
    named = trace.model
    if named is None or not any(name in one.served_names for one in spec.models for name in named.used()):
        return trace
    wanted = np.array([name in model.served_names for name in named.names])
    mine = trace.take(np.flatnonzero(wanted[named.codes]))
    if not len(mine):
        raise WorkloadError(
            f"no request of the trace is for model {model.name!r}; it has those of {', '.join(name or '(none)' for name in named.used())}"
        )
    return mine


def _tenants(trace: Trace, spec: ClusterSpec) -> Labels:
    known = ("", *(tenant.name for tenant in spec.tenants))
    return _coded(trace.tenant or no_labels(len(trace)), known, [known.index(name) if name in known else 0 for name in _names(trace.tenant)])


def _classes(trace: Trace, spec: ClusterSpec, tenant: Labels) -> Labels:
    known = tuple(one.name for one in spec.classes)
    given = trace.traffic_class or no_labels(len(trace))
    unknown = sorted(name for name in given.used() if name and name not in known)
    if unknown:
        raise WorkloadError(f"class = {', '.join(map(repr, unknown))} in the trace: the spec has no such class; allowed: {', '.join(known)}")
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
