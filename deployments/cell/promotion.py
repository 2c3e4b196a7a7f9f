"""Which law of a model is active and which is its shadow, in words that can be compared: a promotion can be taken back while what it made stands.

Pure. The audit holds it with the act, `gateway/operators/shadow_page.py` compares it with the spec in force.
"""

import json
from dataclasses import dataclass

from cluster.spec import ClusterSpec, Law


@dataclass(frozen=True, slots=True)
class Promotion:
    """`law` is the active one, `over` its shadow: each as JSON."""

    law: str
    over: str

    @property
    def undone(self) -> "Promotion":
        """The other way round."""
        return Promotion(self.over, self.law)


def standing(spec: ClusterSpec, model: str) -> Promotion | None:
    """As the spec has it; None for a model without a shadow. Raises ValueError where the model is unknown."""
    section = spec.autoscaling_of(spec.model(model))
    return None if section.shadow is None else Promotion(_words(section), _words(section.shadow))


def _words(law: Law) -> str:
    fields = law.model_dump(mode="json", include=set(Law.model_fields), exclude_defaults=True)
    return json.dumps({**fields, "policy": law.policy}, sort_keys=True, separators=(",", ":"))
