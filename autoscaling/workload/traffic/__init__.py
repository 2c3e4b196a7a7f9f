"""The traffic file: a description of traffic in YAML, and the requests drawn from it."""

from autoscaling.workload.traffic.draw import draw
from autoscaling.workload.traffic.file import Traffic
from autoscaling.workload.traffic.load import TrafficError, load_traffic, parse_traffic

__all__ = ["Traffic", "TrafficError", "draw", "load_traffic", "parse_traffic"]
