"""A promotion, as a change of the spec: the active law of one model and its shadow change places. So does its undoing. Pure."""

from typing import Any

from cluster.spec.autoscaling import Autoscaling, Law
from cluster.spec.cluster import ClusterSpec

_LAW = tuple(Law.model_fields)


def exchanged(spec: ClusterSpec, model: str) -> ClusterSpec:
    """The spec with both laws of that model in each other's place. Raises ValueError where it is unknown, or has no shadow.

    A model that follows the cluster's section gets one of its own by this, since the other models were not asked.
    """
    found = spec.model(model)
    section = spec.autoscaling_of(found)
    if section.shadow is None:
        raise ValueError(f"model {model!r} has no shadow; needed: autoscaling.shadow, a second law that runs beside the active one")
    fields: dict[str, Any] = section.model_dump()
    active = {name: fields[name] for name in _LAW}
    changed = Autoscaling.model_validate({**fields, **fields["shadow"], "shadow": active})
    models = tuple(one.model_copy(update={"autoscaling": changed}) if one is found else one for one in spec.models)
    return ClusterSpec.model_validate(spec.model_copy(update={"models": models}).model_dump())
