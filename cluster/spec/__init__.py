"""The cluster spec: one file that says what there is, what is served, what is promised and how it may scale."""

from cluster.spec.autoscaling import Autoscaling, Backlog, Law, Rollback
from cluster.spec.cluster import ClusterSpec, Pool, Region, exchanged
from cluster.spec.gateway import Cors, Gateway, Limits, Timeouts
from cluster.spec.load import SpecError, load_spec, parse_section, parse_spec, problem_lines
from cluster.spec.models import EngineSettings, Health, LoraAdapter, Model, Replicas, Simulated, Speculative
from cluster.spec.traffic import Lane, Scheduling, Tenant, TrafficClass

__all__ = [
    "Autoscaling",
    "Backlog",
    "ClusterSpec",
    "Cors",
    "EngineSettings",
    "Gateway",
    "Health",
    "Lane",
    "Law",
    "Limits",
    "LoraAdapter",
    "Model",
    "Pool",
    "Region",
    "Replicas",
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
