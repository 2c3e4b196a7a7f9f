"""The spec and the model that a command is about, or an error that says what is allowed."""

from pathlib import Path

from cli.console import fail
from cluster.spec import ClusterSpec, Model, SpecError, load_spec


def chosen_model(spec_file: Path, model: str | None) -> tuple[ClusterSpec, Model]:
    """The spec in the file and its model of that name (None: the first). Ends the command where there is none."""
    try:
        spec = load_spec(spec_file)
    except SpecError as error:
        fail(f"{error.source} is not a usable spec:\n  " + "\n  ".join(error.problems), code=2)
    chosen = next((one for one in spec.models if model in (None, one.name)), None)
    if chosen is None:
        fail(f"--model {model!r}: not in the spec; allowed: {', '.join(one.name for one in spec.models)}", code=2)
    return spec, chosen


def replica_count(model: Model, replicas: int | None) -> int:
    """How many replicas of it, the spec's count unless `replicas` says otherwise; at least 1."""
    count = replicas or model.replicas.count
    if count < 1:
        fail(f"model {model.name!r} has {count} replicas; needed: at least 1", mend="--replicas N", code=2)
    return count
