"""A zone that is lost: on a real Ray of labelled nodes, with Serve's own controller and our replicas."""

from pathlib import Path

import pytest

from tests.deployments.engine.test_placement_live import answers_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
COSTS = Path(__file__).parents[3] / "infra/specs/simulated-h100.costs.json"


def test_a_lost_zone_takes_its_share_and_its_replicas_come_back_in_the_others() -> None:
    said = dict(answers_of("zones_host.py", COSTS))
    assert said["started"] == {"a": 2, "b": 1}
    assert said["lost"] == {"b": 3}
