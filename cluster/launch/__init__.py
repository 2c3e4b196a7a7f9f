"""Renders what brings a region's Ray cluster up: pure functions from a spec to files."""

from cluster.launch.environment import RAY_ENVIRONMENT
from cluster.launch.nodes import KEYS_FILE, SECRET_FILE, TOKEN_FILE, cell_folder, service_name
from cluster.launch.ray_yaml import RAY_YAML, SECRETS, launcher_files

__all__ = [
    "KEYS_FILE",
    "RAY_ENVIRONMENT",
    "RAY_YAML",
    "SECRETS",
    "SECRET_FILE",
    "TOKEN_FILE",
    "cell_folder",
    "launcher_files",
    "service_name",
]
