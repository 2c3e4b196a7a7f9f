"""From settings to the change of the spec's file that sets them: a diff that leaves all else as it is."""

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoscaling.from_spec import BACKLOG, FIXED, settings_in
from autoscaling.policies.settings import Value
from cluster.spec import Autoscaling, ClusterSpec, Model, ReplicasSpec, parse_spec
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
    changed = parsed.view(model.group_key)
    if _in_force(parsed, changed) != _desired(spec, model, candidate) or any(
        _bounded(parsed, one) != _bounded(spec, before)
        for one, before in zip(_others(parsed, model), _others(spec, model), strict=True)
    ):
        raise EditError(f"{model.where}: the edited spec does not hold the proposed values; set them by hand")
    lines = difflib.unified_diff(text.splitlines(), after.splitlines(), str(source), str(source), lineterm="")
    return Suggestion(after, "".join(line + "\n" for line in lines))


def changes(text: str, spec: ClusterSpec, model: Model, candidate: Candidate) -> list[tuple[Place, Any]]:
    """What to set where. In the section of the model (a view, if it has groups) where it has one, or else in the
    cluster's, if nothing else scales by that; if something does, it gets a section of its own that says the same, in
    the `text`'s own words (the parsed ones hold paths of this machine), but for what is changed."""
    place, own_section, own_replicas = _place(spec, model)
    scaling = spec.autoscaling_of(model)
    policy = BACKLOG if scaling.policy == FIXED else scaling.policy
    section_now = spec.autoscaling if model.autoscaling is None else model.autoscaling
    unbounded = section_now.policy == "auto" and candidate.minimum == model.replicas.max  # which would be fixed
    names_it = policy != scaling.policy or unbounded
    group = "backlog" if policy == BACKLOG else "settings"
    before = {**defaults_of(policy), **settings_in(scaling)}
    new = {name: _plain(value) for name, value in candidate.settings.items() if before.get(name) != value}
    found: list[tuple[Place, Any]] = []
    if not own_section and any(one.autoscaling is model.autoscaling for one in _others(spec, model)):
        own: dict[str, Any] = _said(text, place, "autoscaling")
        own["policy"] = policy
        own[group] = {**(own.get(group) or {}), **new}
        if new or names_it:
            found.append(((*place, "autoscaling"), own))
    else:
        section: Place = (*place, "autoscaling") if own_section else _wider(place, model)
        if names_it:
            found.append(((*section, "policy"), policy))
        found += [((*section, group, name), value) for name, value in new.items()]
    counts = {"min": candidate.minimum} if candidate.minimum != model.replicas.min else {}
    counts |= {"count": candidate.minimum} if candidate.minimum > model.replicas.count else {}
    if own_replicas:
        found += [((*place, "replicas", name), value) for name, value in counts.items()]
    elif counts:
        found.append(((*place, "replicas"), {**_said(text, place, "replicas"), **counts}))
    return found


def _place(spec: ClusterSpec, model: Model) -> tuple[Place, bool, bool]:
    """Where the spec speaks of the model or of its group, and whether it has an `autoscaling` and a `replicas` section
    of its own there."""
    number = next(index for index, one in enumerate(spec.models) if one.name == model.name)
    for index, one in enumerate(spec.models[number].groups):
        if one.name == model.group:
            place: Place = ("models", number, "groups", index)
            return place, one.autoscaling is not None, one.replicas is not None
    return ("models", number), spec.models[number].autoscaling is not None, True


def _said(text: str, place: Place, key: str) -> dict[str, Any]:
    """What the section of that name says that is in force at that place: of the model, else of the cluster."""
    whole = said_in(text)
    return whole["models"][place[1]].get(key) or whole.get(key) or {}


def _wider(place: Place, model: Model) -> Place:
    """Of a place without an `autoscaling` section: the section that is in force there."""
    return (*place[:2], "autoscaling") if len(place) > 2 and model.autoscaling is not None else ("autoscaling",)


def _plain(value: Value) -> Value:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e9 else value


def _others(spec: ClusterSpec, model: Model) -> list[Model]:
    return [view for view in spec.views_in() if view.group_key != model.group_key]


def _bounded(spec: ClusterSpec, view: Model) -> tuple[Autoscaling, ReplicasSpec]:
    return spec.autoscaling_of(view), view.replicas


def _in_force(spec: ClusterSpec, model: Model) -> tuple[str, dict[str, Value], int]:
    scaling = spec.autoscaling_of(model)
    return scaling.policy, {**defaults_of(scaling.policy), **settings_in(scaling)}, model.replicas.min


def _desired(spec: ClusterSpec, model: Model, candidate: Candidate) -> tuple[str, dict[str, Value], int]:
    policy = spec.autoscaling_of(model).policy
    policy = BACKLOG if policy == FIXED else policy
    return policy, {**defaults_of(policy), **candidate.settings}, candidate.minimum
