"""What a deployment would change, in words: regions, models, tenants and classes that it touches, then the files.

Pure.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from cli.deploy.record import Applied
from cli.deploy.rendering import Rendering
from cluster.launch import MANIFESTS, ROLLOUT_ANNOTATION

_KINDS = {"models": "model", "tenants": "tenant", "classes": "class", "lanes": "lane"}
_CONTEXT_LINES = 2
_REPLACED = "it is replaced, and running requests break"
_BESIDE = "another one starts beside it, with as many GPUs, and takes over"


@dataclass(frozen=True, slots=True)
class DeployPlan:
    """What is to do in one region. `touched` are sentences; `diffs` the lines of the files' differences; `is_new`:
    nothing of the cell has been applied, so that they are the files themselves."""

    rendering: Rendering
    keys: str
    cluster: bool
    applications: bool
    secrets: bool
    touched: Sequence[str]
    diffs: Sequence[str]
    is_new: bool

    @property
    def is_nothing(self) -> bool:
        return not (self.cluster or self.applications or self.secrets)


def plan_of(rendering: Rendering, keys: str, applied: Applied) -> DeployPlan:
    """`keys`: the digest of the tenants' keys, and of the secrets that all cells share."""
    cluster = applied.cluster != rendering.cluster_digest
    applications = applied.applications != rendering.applications_digest
    touched = list(_touched(rendering, applied, cluster, applied.keys not in (None, keys)))
    diffs = list(_diffs(applied.files, rendering.files))
    return DeployPlan(rendering, keys, cluster, applications, applied.keys != keys, touched, diffs, not applied.files)


def _touched(rendering: Rendering, applied: Applied, cluster: bool, keys: bool) -> Iterator[str]:
    where = f"region {rendering.region}"
    if applied.content is None:
        yield f"{where}: {'the deployment goes on' if applied.files else 'a new cell'} ({rendering.provider})"
    elif cluster and rendering.provider != "kubernetes":
        yield f"{where}: the Ray cluster changes; its nodes restart"
    elif _rollout(applied.files) != _rollout(rendering.files):
        how = _BESIDE if "type: NewCluster" in rendering.files[MANIFESTS] else _REPLACED
        yield f"{where}: the pods of the Ray cluster change: {how}"
    for name in removed_objects(applied.files, rendering.files):
        yield f"{where}: {name} is removed"
    for section, word in _KINDS.items():
        old, new = _named(applied.content or {}, section), _named(rendering.content, section)
        for name in new:
            if name not in old:
                yield f"{where}: {word} {name!r} is added"
            elif new[name] != old[name]:
                yield f"{where}: {word} {name!r} changes: {', '.join(_differing(old[name], new[name]))}"
        yield from (f"{where}: {word} {name!r} is removed" for name in old if name not in new)
    if applied.content is not None:
        for key in _differing(_of_the_cell(applied.content), _of_the_cell(rendering.content)):
            if key not in _KINDS:
                yield f"{where}: {key} changes"
        if keys:
            yield f"{where}: the tenants' keys change, or a secret that cells share, which gateways read at their start"


def removed_objects(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The objects of Kubernetes that the old files alone have. A volume's claim stays, and so does the RayService: only
    `--down` ends it."""
    before, after = (
        [f"{one['kind'].lower()}/{one['metadata']['name']}" for one in yaml.safe_load_all(files.get(MANIFESTS, ""))]
        for files in (old, new)
    )
    return [one for one in before if one not in after and not one.startswith(("persistentvolumeclaim/", "rayservice/"))]


def _rollout(files: Mapping[str, str]) -> str | None:
    """What says that the pods of a Ray cluster on Kubernetes must change."""
    found = re.search(rf"{ROLLOUT_ANNOTATION}: (.*)", files.get(MANIFESTS, ""))
    return found and found[1]


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]


def _of_the_cell(content: Mapping[str, Any]) -> dict[str, Any]:
    """Without where its regions run: that is the Ray cluster."""
    regions = [{key: value for key, value in one.items() if key != "deploy"} for one in content["regions"]]
    return {**content, "regions": regions}


def _named(content: Mapping[str, Any], section: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in content.get(section, [])}


def _diffs(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        before, after = old.get(name, "").splitlines(), new.get(name, "").splitlines()
        yield from difflib.unified_diff(before, after, f"applied/{name}", f"new/{name}", lineterm="", n=_CONTEXT_LINES)
