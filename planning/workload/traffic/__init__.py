"""The traffic file: a description of traffic in YAML, and the requests drawn from it."""

from planning.workload.traffic.draw import draw
from planning.workload.traffic.file import TrafficError, TrafficFile, load_traffic, parse_traffic
