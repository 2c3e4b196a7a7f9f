"""What of a spec changes while the cell runs: compared by the parts of a path, since names may hold dots."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.spec import ClusterSpec
from deployments.gateway.operators.live_spec import changes_between, joined, split_live

NAME = "llama-3.1.replicas"


def spec(model: dict[str, Any] | None = None, **sections: Any) -> ClusterSpec:
    base = {"name": NAME, "source": "s", "settings": {"max_model_len": 100}, "replicas": {"count": 1, "max": 4}}
    pools = [{"name": "p"}]
    return ClusterSpec.model_validate(
        {"name": "x", "regions": [{"name": "r", "pools": pools}], "models": [{**base, **(model or {})}], **sections}
    )


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        (spec({"replicas": {"count": 2, "max": 4}}), f"models.{NAME}.replicas.count"),
        (spec({"autoscaling": {"policy": "backlog"}}), f"models.{NAME}.autoscaling"),
        (spec(autoscaling={"policy": "backlog"}), "autoscaling.policy"),
        (spec(autoscaling={"shadow": {"policy": "backlog"}}), "autoscaling.shadow"),
        (spec(scheduling={"decode_weight": 2.0}), "scheduling.decode_weight"),
    ],
)
def test_scaling_changes_live(changed: ClusterSpec, key: str) -> None:
    (change,) = changes_between(spec(), changed)
    assert (change.key, change.is_live) == (key, True)


@pytest.mark.parametrize(
    "changed",
    [
        spec({"source": "t"}),
        spec({"settings": {"max_model_len": 200}}),
        spec({"settings": {"max_model_len": 100, "extra": {"replicas": 1, "autoscaling": 2}}}),
        spec({"name": "other"}),
        spec(gateway={"port": 9_000}),
    ],
)
def test_all_else_needs_a_restart(changed: ClusterSpec) -> None:
    assert not all(change.is_live for change in changes_between(spec(), changed))


CONTENTS = st.builds(
    lambda live, count, gateway: {
        **{name: value for name, value in live.items() if name in ("lanes", "tenants", "autoscaling")},
        "name": "x",
        "models": [{"name": f"m.{number}", "source": "s", **live} for number in range(count)],
        "gateway": {"port": 1, **gateway},
    },
    st.dictionaries(st.sampled_from(["replicas", "autoscaling", "lanes", "tenants", "settings"]), st.integers()),
    st.integers(0, 3),
    st.dictionaries(st.sampled_from(["timeouts", "limits", "drain_s", "heartbeat_s", "cors"]), st.integers()),
)


@given(CONTENTS)
def test_the_two_parts_of_a_spec_are_the_whole_spec(content: dict[str, Any]) -> None:
    frozen, live = split_live(content)
    assert joined(frozen, live) == content
    assert split_live(frozen) == (frozen, {})
    assert set(frozen.get("gateway", {})) <= {"port", "drain_s"}
    assert all({"replicas", "autoscaling"}.isdisjoint(model) for model in frozen["models"])
