"""What a cell asks before it takes a request that a peer hands over.

The request has been checked by its sender. Nothing of that is taken on trust here: the hop may come from a cell with
another spec, from one whose digest of this cell is out of date, or from one that is wrong. Only then is it submitted to
this cell's scheduler, which admits or rejects it in its own right.

All durations are relative: the clocks of two cells have nothing in common.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from cluster.spec import ClusterSpec, HandOverSettings
from deployments.peering.digest import Name, Number
from deployments.peering.reasons import HandOverReason, HopRefusal
from deployments.scheduling import Request

_MAX_S = 1e9
Id = Annotated[str, Meta(pattern=r"^[\x21-\x7e]{1,128}$")]
"""It becomes a part of the id in the header of the engine's request."""
_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_Since = Annotated[float, Meta(ge=0, le=_MAX_S)]
_Span = Annotated[float, Meta(ge=-_MAX_S, le=_MAX_S)]


@dataclass(frozen=True, slots=True)
class HopFacts:
    """What crosses the hop beside the request's own body. The types are checked where it is read.

    `home` is the cell where the request arrived, `attempt` numbers its placements; `epoch` and `number` name the
    hand-over among those of its home's owner. `hops` counts the cells that it has left, with this one. `residency`:
    the cells that may serve it, as its home knows them; `marks`: of the rules by which that was decided.
    `prompt_tokens` and `max_tokens` (None: not bounded) are of one sequence, as its home estimates them. It has waited
    `waited_s`; its first token is due in `slack_s` (negative: was due), its wait is given up in `patience_s`. `slo_s`
    is the TTFT of its class. `path` is what its client asked for, at the `gateway` of its home.
    """

    request_id: Id
    home: _Name
    attempt: Annotated[int, Meta(ge=0, lt=1 << 31)]
    epoch: Number
    number: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    hops: Annotated[int, Meta(ge=0, le=255)]
    reason: HandOverReason
    model: _Name
    traffic_class: _Name
    tenant: Name
    residency: Annotated[frozenset[_Name], Meta(max_length=256)]
    marks: Annotated[frozenset[_Name], Meta(max_length=16)]
    prompt_tokens: Number
    max_tokens: Number | None
    sequences: Number
    waited_s: _Since
    slack_s: _Span
    patience_s: _Span
    slo_s: _Since
    path: Name = ""
    gateway: Name = ""

    @property
    def attempt_id(self) -> str:
        """Its id at home, which the peer's account of it names."""
        return f"{self.request_id}-{self.attempt}"

    @property
    def guest_id(self) -> str:
        """The request's id in the cell that takes it, where another request may have the id that it has at home. Each
        attempt has its own: the guest of an earlier one may not have heard yet that it is dropped."""
        return f"{self.attempt_id}@{self.home}"

    def guest(self, request: Request, now: float) -> Request:
        """The request, as the cell that takes it submits it by its own clock."""
        return replace(
            request,
            request_id=self.guest_id,
            guest_of=self.home,
            hops=self.hops,
            arrived_s=now - self.waited_s,
            deadline_s=now + self.slack_s,
            expires_s=now + self.patience_s,
        )

    def expected(self, now: float) -> Request:
        """The request by these facts alone: before its body is here."""
        own = Request(
            self.guest_id,
            self.prompt_tokens,
            self.max_tokens,
            now,
            now,
            now,
            max(1, self.sequences),
            self.traffic_class,
            self.tenant,
        )
        return self.guest(own, now)


@dataclass(frozen=True, slots=True)
class Here:
    """The receiving cell now: its load, and the 95th percentile of the wait in the request's lane (None: not known)."""

    load: float
    wait_p95_s: float | None


class Reception:
    """Of one cell, by its own spec. `marks`: of its rules."""

    def __init__(self, spec: ClusterSpec, cell: str, marks: frozenset[str], policy: HandOverSettings) -> None:
        self._spec = spec
        self._cell = cell
        self._marks = marks
        self._policy = policy
        self._known = {region.name for region in spec.regions}

    def refuse(self, hop: HopFacts, here: Here) -> HopRefusal | None:
        """Why the request is not taken; None: it may be submitted."""
        if hop.home not in self._known:
            return HopRefusal.UNKNOWN_CELL
        if hop.hops != 1 or hop.home == self._cell:
            return HopRefusal.LOOP
        if not hop.marks or not hop.marks <= self._marks:
            return HopRefusal.SPEC
        if self._cell not in hop.residency or not self.may_serve(hop):
            return HopRefusal.RESIDENCY
        return self._late_or_loaded(hop, here)

    def may_serve(self, hop: HopFacts) -> bool:
        """Whether this cell's own spec lets it serve the request: no list that names regions leaves this one out, and
        the model, the class and the tenant are known."""
        spec, here = self._spec, self._cell
        for model in spec.models:
            if model.name == hop.model:
                if model.residency is not None and here not in model.residency:
                    return False
                break
        else:
            return False
        for one in spec.classes:
            if one.name == hop.traffic_class:
                if one.residency is not None and here not in one.residency:
                    return False
                break
        else:
            return False
        for tenant in spec.tenants:
            if tenant.name == hop.tenant:
                return all(names is None or here in names for names in (tenant.residency, tenant.peers))
        return not spec.tenants and not hop.tenant

    def _late_or_loaded(self, hop: HopFacts, here: Here) -> HopRefusal | None:
        """Its own clients come first: what comes for speed or price must find room beyond what they need. What nobody
        else may or can serve may wait.

        The sender stops at `max_load` by a digest of some age; here the bound is half as far from full, so that what
        was right when it was sent is not refused for a little more load.
        """
        if here.wait_p95_s is None:
            return HopRefusal.LATE
        if hop.reason in (HandOverReason.NO_REPLICA, HandOverReason.RESIDENCY):
            return HopRefusal.LATE if here.wait_p95_s > hop.patience_s else None
        if here.wait_p95_s > hop.slo_s:
            return HopRefusal.LATE
        return HopRefusal.LOADED if here.load > (1.0 + self._policy.max_load) / 2 else None
