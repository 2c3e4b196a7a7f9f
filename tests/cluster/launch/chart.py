"""Renders `infra/helm/raylane` with Helm's own engine (helm-python-sdk)."""

from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[3] / "infra" / "helm" / "raylane"


def rendered_chart(values: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    """The objects, as `helm template` prints them. Skips the test where the engine is not installed."""
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(values, name="cell", namespace=namespace)
    return [one for text in texts.values() for one in yaml.safe_load_all(text) if one is not None]
