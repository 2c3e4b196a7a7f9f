"""What the spec says on peering: which cells may serve a request (the sender's check), and the marks by which two cells
find out whether they have the same rules.

The receiver's check of residency is in `reception.py`. It is written on its own and shares nothing with this one, so
that a fault in one of them crosses no residency line.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.spec import ClusterSpec, Model, Tenant, TrafficClass

_MARK_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Allowed:
    """The cells that may serve a request: by `residency`, and those whose capacity its tenant may use (`peers`)."""

    residency: frozenset[str]
    peers: frozenset[str]


class Rules:
    """Of one spec: which cells may serve what, and the marks of its parts."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.cells = frozenset(region.name for region in spec.regions)
        self._models = {model.name: self._cells_in(model.residency) for model in spec.models}
        self._classes = {one.name: self._cells_in(one.residency) for one in spec.classes}
        self._tenants = {tenant.name: self._cells_in(tenant.residency) for tenant in spec.tenants}
        self._peers = {tenant.name: self._cells_in(tenant.peers) for tenant in spec.tenants}
        if not spec.tenants:
            self._tenants[""] = self._peers[""] = self.cells
        self._marks: dict[tuple[str, str], str] = {
            **{("model", one.name): _mark("model", _of_model(one)) for one in spec.models},
            **{("class", one.name): _mark("class", _of_class(one)) for one in spec.classes},
            **{("tenant", one.name): _mark("tenant", _of_tenant(one)) for one in spec.tenants},
        }
        if not spec.tenants:
            self._marks["tenant", ""] = _mark("tenant", {"name": ""})
        self.marks = frozenset(self._marks.values())

    def _cells_in(self, names: tuple[str, ...] | None) -> frozenset[str]:
        return self.cells if names is None else frozenset(names)

    def allowed(self, model: str, traffic_class: str, tenant: str) -> Allowed:
        """The cells that may serve such a request. Of what the spec does not know: none."""
        none: frozenset[str] = frozenset()
        residency = (
            self._models.get(model, none) & self._classes.get(traffic_class, none) & self._tenants.get(tenant, none)
        )
        return Allowed(residency, self._peers.get(tenant, none))

    def always_allowed(self, model: str) -> frozenset[str]:
        """The cells that may serve any request of that model, whatever its class and tenant."""
        found = self._models.get(model, frozenset())
        for allowed in (*self._classes.values(), *self._tenants.values(), *self._peers.values()):
            found &= allowed
        return found

    def marks_of(self, model: str, traffic_class: str, tenant: str) -> frozenset[str]:
        """The marks that a peer must have, too, before it gets such a request."""
        keys = (("model", model), ("class", traffic_class), ("tenant", tenant))
        return frozenset(self._marks.get(key, f"unknown {key[0]}") for key in keys)


def _of_model(model: Model) -> Mapping[str, Any]:
    """What an answer depends on, and who may give it. What its engines run on may differ."""
    settings = model.settings
    return {
        "name": model.name,
        "source": model.source,
        "task": model.task,
        "adapters": [[adapter.name, adapter.source] for adapter in model.adapters],
        "context": settings.max_model_len,
        "quality": [settings.dtype, settings.quantization, settings.kv_cache_dtype],
        "answers": [settings.tool_call_parser, settings.reasoning_parser, settings.chat_template],
        "residency": _sorted(model.residency),
    }


def _of_class(traffic_class: TrafficClass) -> Mapping[str, Any]:
    return {
        "name": traffic_class.name,
        "ttft_ms": traffic_class.ttft_ms,
        "residency": _sorted(traffic_class.residency),
    }


def _of_tenant(tenant: Tenant) -> Mapping[str, Any]:
    """Not its keys: they may be on their way to the other cell, and the hop carries the tenant's name alone."""
    return {
        "name": tenant.name,
        "classes": _sorted(tenant.classes),
        "residency": _sorted(tenant.residency),
        "peers": _sorted(tenant.peers),
    }


def _sorted(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _mark(kind: str, content: object) -> str:
    text = json.dumps([kind, content], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_MARK_DIGITS]
