"""A package of somebody else's that has a scaling policy, as pip would have installed it."""

from pathlib import Path

import pytest

_POLICY = """
from dataclasses import dataclass

from autoscaling.policies.policy import DesiredReplicas, PolicyEntry, PolicyReason
from autoscaling.policies.settings import Range


@dataclass(frozen=True)
class Settings:
    replicas: int = 7


class Mine:
    name = "mine"
    period_s = 1.0

    def __init__(self, settings, profile):
        self.settings, self.asked = settings, 0

    def decide(self, signals):
        self.asked += 1
        return DesiredReplicas(self.settings.replicas + self.asked // 30, PolicyReason.STEADY)


ENTRY = PolicyEntry("mine", Settings, Mine, {"replicas": Range(1, 5, integer=True)})
"""


def install_mine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy `mine`, and an entry point `other` that names no policy."""
    (folder / "mine.py").write_text(_POLICY)
    info = folder / "mine-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[raylane.scaling_policies]\nmine = mine:ENTRY\nother = mine:Settings\n")
    monkeypatch.syspath_prepend(folder)
