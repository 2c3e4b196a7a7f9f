"""The cluster spec: one file that says what there is, what is served, what is promised and how it may scale."""

from cluster.spec.artifacts import Artifacts
from cluster.spec.autoscaling import Autoscaling, Backlog, PolicySpec, Rollback
from cluster.spec.cluster import ClusterSpec, Pool, Region, exchanged
from cluster.spec.gateway import CorsSpec, GatewaySpec, RequestLimits, Timeouts
from cluster.spec.load import SpecError, load_spec, parse_section, parse_spec, problem_lines
from cluster.spec.models import EngineSettings, Health, LoraAdapter, Model, ReplicasSpec, Simulated, Speculative
from cluster.spec.traffic import LaneSpec, Scheduling, Tenant, TrafficClass

__all__ = [
    "Artifacts",
    "Autoscaling",
    "Backlog",
    "ClusterSpec",
    "CorsSpec",
    "EngineSettings",
    "GatewaySpec",
    "Health",
    "LaneSpec",
    "LoraAdapter",
    "Model",
    "PolicySpec",
    "Pool",
    "Region",
    "ReplicasSpec",
    "RequestLimits",
    "Rollback",
    "Scheduling",
    "Simulated",
    "SpecError",
    "Speculative",
    "Tenant",
    "Timeouts",
    "TrafficClass",
    "exchanged",
    "load_spec",
    "parse_section",
    "parse_spec",
    "problem_lines",
]
