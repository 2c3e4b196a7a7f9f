"""The page with the snapshot that a model's owner gives an autoscaler: its content and its form. The gateway writes it,
the policy reads it.

Tables are JSON with the fields' names once and a row for each entry, since a cell of a thousand replicas is read twice
a second. A reader leaves out fields that it does not know, so that gateways and controllers may be of different
versions for a while.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from deployments.scheduling import LaneStats, ReplicaStats, Snapshot, WaitReason
from deployments.scheduling.snapshot import DemandStats, FlowStats, GroupStats

SCALING_PATH = "/raylane/scaling"
"""GET `SCALING_PATH/MODEL` on a gateway's port for the cell, with the cluster's secret. 404: no such
model; 409: another gateway owns it, or none does."""

Row = TypeVar("Row", LaneStats, ReplicaStats, FlowStats, DemandStats, GroupStats)


@dataclass(frozen=True, slots=True)
class ScalingFacts:
    """The scheduler of `model` under the owner of `epoch`, `age_s` seconds before the page was sent.

    `attainment`: for each class, the share of requests that its SLO wants in time. `peers_spare`: what other cells
    would take of its requests now, in replicas' worth (`CellPeering.spare`).
    """

    model: str
    epoch: int
    age_s: float
    snapshot: Snapshot
    attainment: Mapping[str, float]
    peers_spare: float = 0.0

    def encode(self) -> bytes:
        snapshot = self.snapshot
        plain = {name: getattr(snapshot, name) for name in _PLAIN}
        tables = {"lanes": _table(LaneStats, snapshot.lanes), "replicas": _table(ReplicaStats, snapshot.replicas)}
        tables["flows"] = _table(FlowStats, snapshot.flows)
        if snapshot.demands or snapshot.groups:
            tables["demands"] = _table(DemandStats, snapshot.demands)
            tables["groups"] = _table(GroupStats, snapshot.groups)
        rejections = [[lane, cause, count] for (lane, cause), count in snapshot.rejections.items()]
        content = {
            "model": self.model,
            "epoch": self.epoch,
            "age_s": self.age_s,
            "snapshot": {**plain, **tables, "endings": snapshot.endings, "rejections": rejections},
            "attainment": dict(self.attainment),
            "peers_spare": self.peers_spare,
        }
        return json.dumps(content, separators=(",", ":")).encode()


def read_scaling_facts(payload: bytes) -> ScalingFacts:
    """The facts on a page. Raises ValueError when there are none."""
    try:
        content: dict[str, Any] = json.loads(payload)
        return ScalingFacts(
            str(content["model"]),
            int(content["epoch"]),
            float(content["age_s"]),
            _snapshot(content["snapshot"]),
            {str(name): float(share) for name, share in content["attainment"].items()},
            float(content.get("peers_spare", 0.0)),
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not the snapshot of a model: {payload[:200]!r}") from error


def _snapshot(content: dict[str, Any]) -> Snapshot:
    lanes = (
        dataclasses.replace(
            lane,
            head_waits_for=None if lane.head_waits_for is None else WaitReason(lane.head_waits_for),
            eta_s=_pair(lane.eta_s),
        )
        for lane in _rows(LaneStats, content["lanes"])
    )
    no_table: dict[str, Any] = {"fields": [], "rows": []}
    demands = _rows(DemandStats, content.get("demands", no_table))
    return Snapshot(
        demands=tuple(
            dataclasses.replace(one, groups=tuple(one.groups), running=tuple((group, n) for group, n in one.running))
            for one in demands
        ),
        groups=tuple(_rows(GroupStats, content.get("groups", no_table))),
        lanes=tuple(lanes),
        replicas=tuple(_rows(ReplicaStats, content["replicas"])),
        flows=tuple(_rows(FlowStats, content["flows"])),
        endings={str(ending): int(count) for ending, count in content["endings"].items()},
        rejections={(str(lane), str(cause)): int(count) for lane, cause, count in content["rejections"]},
        **{name: content[name] for name in _PLAIN},
    )


def _table(kind: type[Row], entries: Iterable[Row]) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(kind)]
    return {"fields": names, "rows": [[getattr(entry, name) for name in names] for entry in entries]}


def _rows(kind: type[Row], table: dict[str, Any]) -> Iterable[Row]:
    names = table["fields"]
    return (kind(**_known(kind, dict(zip(names, row, strict=True)))) for row in table["rows"])


def _known(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def _pair(values: Any) -> tuple[float, float] | None:
    return None if values is None else (values[0], values[1])


_TABLES = ("lanes", "replicas", "flows", "demands", "groups", "endings", "rejections")
_NOT_SHOWN = ("suspects", "bans", "aside")
"""They concern no autoscaler."""
_PLAIN = tuple(field.name for field in dataclasses.fields(Snapshot) if field.name not in (*_TABLES, *_NOT_SHOWN))
