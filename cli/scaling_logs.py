"""Finds the scaling logs that a command is about: the files that were named, else those of the cluster on this machine."""

from collections.abc import Sequence
from pathlib import Path

from autoscaling.log.reader import log_files
from autoscaling.log.writer import PREFIX
from cli.console import fail
from cli.run_dir import RunDir, known_clusters
from deployments.ownership.decision_log import model_in


def chosen_logs(model: str | None, files: Sequence[Path]) -> list[Path]:
    """Oldest first. Ends the command where there is none, or more than one to choose from."""
    if files:
        return list(files)
    folder = log_folder(files)
    there = sorted(model_in(path.name.removeprefix(PREFIX).removesuffix(".jsonl")) for path in folder.glob(f"{PREFIX}*.jsonl"))
    if model is None and len(there) != 1:
        fail(f"{len(there)} models have a scaling log in {folder}; allowed: {', '.join(there) or 'none'}", code=2)
    found = log_files(folder, model or there[0])
    if not found:
        fail(f"model {model!r} has no scaling log in {folder}; allowed: {', '.join(there) or 'none'}", code=2)
    return found


def log_folder(files: Sequence[Path]) -> Path:
    """Where those files are, or else the logs of the cluster on this machine. Ends the command where there is none, or more than one."""
    if files:
        return files[-1].parent
    states = known_clusters() or known_clusters(dead_too=True)
    if len(states) != 1:
        fail(f"{len(states)} clusters on this machine: which one is meant?", mend="--log FILE", code=2)
    return RunDir(states[0].name).path / "logs"
