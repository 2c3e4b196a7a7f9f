"""A promotion and its undoing, as changes of the spec: the active law and the shadow's change places, for one model. Pure.

A model that follows the cluster's section gets one of its own by this, since the other models were not asked.
"""

from typing import Any

from autoscaling.from_spec import choices_of
from autoscaling.laws.choice import LawChoice
from cluster.spec import Autoscaling, ClusterSpec, Law

_LAW = tuple(Law.model_fields)


def exchanged(spec: ClusterSpec, model: str) -> ClusterSpec:
    """The spec with both laws of that model in each other's place. Raises ValueError where it is unknown or has no shadow."""
    found = next((one for one in spec.models if one.name == model), None)
    if found is None:
        raise ValueError(f"model {model!r}: unknown; allowed: {', '.join(one.name for one in spec.models)}")
    section = spec.autoscaling_of(found)
    if section.shadow is None:
        raise ValueError(f"model {model!r}: autoscaling.shadow is missing; needed: a second law, which runs beside the active one")
    fields: dict[str, Any] = section.model_dump()
    active = {name: fields[name] for name in _LAW}
    changed = Autoscaling.model_validate({**fields, **fields["shadow"], "shadow": active})
    models = tuple(one.model_copy(update={"autoscaling": changed}) if one is found else one for one in spec.models)
    return ClusterSpec.model_validate(spec.model_copy(update={"models": models}).model_dump())


def taken_back(spec: ClusterSpec, model: str, promoted: LawChoice) -> ClusterSpec | None:
    """The spec without that promotion; None where it does not say it (any more)."""
    found = next((one for one in spec.models if one.name == model), None)
    if found is None or choices_of(spec, found)[0] != promoted:
        return None
    return exchanged(spec, model)
