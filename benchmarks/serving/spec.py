"""The spec that all sides are started from: the shipped local one with one replica, a free port, and no promises about where."""

from pathlib import Path
from typing import Any

import yaml

from cluster.files import shipped
from cluster.spec import ClusterSpec, parse_spec


def one_replica_spec(port: int, source: str | None = None, settings: dict[str, Any] | None = None) -> str:
    """The YAML of the local spec with one replica, the gateway on `port`, and optionally another model or other engine settings."""
    spec = yaml.safe_load(shipped("specs/local.yaml").read_text(encoding="utf-8"))
    spec["name"] = f"bench-{port}"
    spec["gateway"]["port"] = port
    model = spec["models"][0]
    model["replicas"] = {"count": 1}
    model["source"] = source or model["source"]
    model["settings"] |= settings or {}
    return str(yaml.safe_dump(spec, sort_keys=False))


def write_spec(folder: Path, text: str) -> ClusterSpec:
    """Writes `spec.yaml` into the folder and returns what it says."""
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    return parse_spec(text)
