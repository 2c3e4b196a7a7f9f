"""From settings to the change of the spec's file that sets them: a diff that leaves all else as it is."""

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoscaling.from_spec import BACKLOG, FIXED, settings_in
from autoscaling.policies.settings import Value
from cluster.spec import ClusterSpec, Model, parse_spec
from planning.tune.case import defaults_of
from planning.tune.spec_edit import EditError, edited, said_in
from planning.tune.spec_edit import Path as Place
from planning.tune.trial import Candidate


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The spec's text with the settings in it, and the difference (unified, empty where there is none)."""

    text: str
    diff: str


def suggest(text: str, source: Path, spec: ClusterSpec, model: Model, candidate: Candidate) -> Suggestion:
    """Raises EditError where the text can not be edited safely, or SpecError where the outcome is no usable spec."""
    after = edited(text, changes(text, spec, model, candidate))
    parsed = parse_spec(after, str(source), source.resolve().parent)
    changed = next(one for one in parsed.models if one.name == model.name)
    others = [one for one in parsed.models if one.name != model.name]
    if _in_force(parsed, changed) != _desired(spec, model, candidate) or any(
        parsed.autoscaling_of(one) != spec.autoscaling_of(before)
        for one, before in zip(others, _others(spec, model), strict=True)
    ):
        raise EditError(f"models.{model.name}: the edited spec does not hold the proposed values; set them by hand")
    lines = difflib.unified_diff(text.splitlines(), after.splitlines(), str(source), str(source), lineterm="")
    return Suggestion(after, "".join(line + "\n" for line in lines))


def changes(text: str, spec: ClusterSpec, model: Model, candidate: Candidate) -> list[tuple[Place, Any]]:
    """What to set where. In the model's own section where it has one, or else in the cluster's, if no other model
    scales by that; if one does, the model gets a section of its own that says the same, in the `text`'s own words (the
    parsed ones hold paths of this machine), but for what is changed."""
    number = next(index for index, one in enumerate(spec.models) if one.name == model.name)
    scaling = spec.autoscaling_of(model)
    policy = BACKLOG if scaling.policy == FIXED else scaling.policy
    group = "backlog" if policy == BACKLOG else "settings"
    before = {**defaults_of(policy), **settings_in(scaling)}
    new = {name: _plain(value) for name, value in candidate.settings.items() if before.get(name) != value}
    found: list[tuple[Place, Any]] = []
    if model.autoscaling is None and any(one.autoscaling is None for one in _others(spec, model)):
        own: dict[str, Any] = said_in(text).get("autoscaling") or {}
        own["policy"] = policy
        own[group] = {**(own.get(group) or {}), **new}
        if new or policy != scaling.policy:
            found.append((("models", number, "autoscaling"), own))
    else:
        section: Place = ("autoscaling",) if model.autoscaling is None else ("models", number, "autoscaling")
        if policy != scaling.policy:
            found.append(((*section, "policy"), policy))
        found += [((*section, group, name), value) for name, value in new.items()]
    if candidate.minimum != model.replicas.min:
        found.append((("models", number, "replicas", "min"), candidate.minimum))
    if candidate.minimum > model.replicas.count:
        found.append((("models", number, "replicas", "count"), candidate.minimum))
    return found


def _plain(value: Value) -> Value:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e9 else value


def _others(spec: ClusterSpec, model: Model) -> list[Model]:
    return [one for one in spec.models if one.name != model.name]


def _in_force(spec: ClusterSpec, model: Model) -> tuple[str, dict[str, Value], int]:
    scaling = spec.autoscaling_of(model)
    return scaling.policy, {**defaults_of(scaling.policy), **settings_in(scaling)}, model.replicas.min


def _desired(spec: ClusterSpec, model: Model, candidate: Candidate) -> tuple[str, dict[str, Value], int]:
    policy = spec.autoscaling_of(model).policy
    policy = BACKLOG if policy == FIXED else policy
    return policy, {**defaults_of(policy), **candidate.settings}, candidate.minimum
