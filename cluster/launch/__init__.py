"""Renders what brings a region's Ray cluster up: pure functions from a spec to files."""

from cluster.launch.environment import RAY_ENVIRONMENT
from cluster.launch.kuberay import MANIFESTS, ROLLOUT_ANNOTATION, TOKEN_KEY, kubernetes_files, secret_name
from cluster.launch.nodes import (
    DASHBOARD_PORT,
    EXTERNAL_FILE,
    FETCH_SCRIPT,
    KEPT_APPLICATIONS,
    KEYS_FILE,
    PEERS_FILE,
    SECRET_FILE,
    STOP_HEAD_SCRIPT,
    STOP_SCRIPT,
    TOKEN_FILE,
    WHOSE_RAY,
    SharedSecret,
    aws_region,
    cell_folder,
    default_secret,
    expected_workers,
    lost_head_procedure,
    shared_secrets,
)
from cluster.launch.problems import deploy_problems
from cluster.launch.ray_yaml import RAY_YAML, SECRETS, launcher_files
