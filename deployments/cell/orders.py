"""What operators have ordered and is in force, from their acts in order. Pure: the directory keeps
it, gateways and policies get `Orders`."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from cluster.spec import ClusterSpec, PolicySpec
from deployments.cell.act import Act, ActKind
from deployments.cell.control import Control, ControlKind, Cordon, in_force
from deployments.ladder_stats import LadderMode, LadderOrder


@dataclass(frozen=True, slots=True)
class Promotion:
    """`policy` is the active one, `over` its shadow: each as JSON."""

    policy: str
    over: str

    @property
    def undone(self) -> "Promotion":
        return Promotion(self.over, self.policy)


def standing(spec: ClusterSpec, group_key: str) -> Promotion | None:
    """As the spec has it; None for a model or group without a shadow. Raises ValueError where it is unknown."""
    section = spec.autoscaling_of(spec.view(group_key))
    return None if section.shadow is None else Promotion(_words(section), _words(section.shadow))


def _words(policy: PolicySpec) -> str:
    fields = policy.model_dump(mode="json", include=set(PolicySpec.model_fields), exclude_defaults=True)
    return json.dumps({**fields, "policy": policy.policy}, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Orders:
    """`cordons` and `controls` (with their model) in force; `acts` counts all there were, by model and kind.
    `promoted`: what the last promotion of a model made of its policies, where it was not undone; in force only while
    the spec still says so (an apply may have changed it). `ladders`: the last order for each ladder that is not left to
    itself."""

    cordons: tuple[Cordon, ...] = ()
    controls: tuple[tuple[str, Control], ...] = ()
    acts: tuple[tuple[str, ActKind, int], ...] = ()
    promoted: tuple[tuple[str, Promotion], ...] = ()
    ladders: tuple[Act, ...] = ()

    def ladder_of(self, model: str) -> LadderOrder:
        return next((one.ladder for one in self.ladders if one.model == model and one.ladder), LadderOrder())

    def of(self, model: str, unix_s: float) -> tuple[Control, ...]:
        """The controls of a model that have not ended: at most one of each kind."""
        return in_force(tuple(control for name, control in self.controls if name == model), unix_s)

    def promotion_of(self, model: str) -> Promotion | None:
        """What the last promotion of a model made, if it was not undone."""
        return next((made for name, made in self.promoted if name == model), None)

    def cordoned(self, model: str) -> frozenset[str]:
        return frozenset(cordon.replica_id for cordon in self.cordons if cordon.model == model)

    def cordon_of(self, replica_id: str) -> Cordon | None:
        return next((cordon for cordon in self.cordons if cordon.replica_id == replica_id), None)


class OperatorOrders:
    """Takes the acts one after another. A later hold of a model replaces an earlier one, a later pin an earlier pin; a
    release ends both."""

    def __init__(self, acts: Iterable[Act] = ()) -> None:
        self.cordons: dict[str, Cordon] = {}
        self._controls: dict[tuple[str, ControlKind], Control] = {}
        self._acts: Counter[tuple[str, ActKind]] = Counter()
        self._promoted: dict[str, Promotion] = {}
        self._ladders: dict[str, Act] = {}
        for act in acts:
            self.take(act)

    def take(self, act: Act) -> None:
        self._acts[act.model, act.kind] += 1
        match act.kind:
            case ActKind.HOLD | ActKind.PIN:
                kind = ControlKind(act.kind.value)
                self._controls[act.model, kind] = Control(kind, act.replicas, act.until_unix_s, act.by, act.why)
            case ActKind.RELEASE:
                for kind in (ControlKind.HOLD, ControlKind.PIN):
                    self._controls.pop((act.model, kind), None)
            case ActKind.CORDON:
                self.cordons[act.replica_id] = Cordon(act.replica_id, act.model, act.by, act.why, act.at_unix_s)
            case ActKind.UNCORDON:
                self.cordons.pop(act.replica_id, None)
            case ActKind.DRAIN:
                pass  # the replica itself gets the order; nothing is left in force
            case ActKind.PROMOTE:
                made, before = Promotion(act.policy, act.over), self._promoted.pop(act.model, None)
                if before is None or made != before.undone:  # else it is the way back
                    self._promoted[act.model] = made
            case ActKind.ROLLBACK:
                self._promoted.pop(act.model, None)
            case ActKind.LADDER:
                self._ladders.pop(act.model, None)
                if act.ladder is not None and act.ladder.mode is not LadderMode.AUTO:
                    self._ladders[act.model] = act

    def forget(self, replica_id: str) -> bool:
        """A replica is gone for good. Whether that changed anything."""
        return self.cordons.pop(replica_id, None) is not None

    def orders(self, unix_s: float) -> Orders:
        """What is in force. What has ended stays known: the clock may be ahead."""
        known = self._controls.items()
        controls = tuple((model, control) for (model, _), control in known if unix_s < control.until_unix_s)
        acts = tuple((model, kind, count) for (model, kind), count in self._acts.items())
        promoted, ladders = tuple(self._promoted.items()), tuple(self._ladders.values())
        return Orders(tuple(self.cordons.values()), controls, acts, promoted, ladders)
