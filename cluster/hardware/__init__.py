"""GPUs, cloud instances and their prices, and the network between regions: facts with sources, not measurements."""

from cluster.hardware.facts import Hardware, Instance, InstancePrice, Link, instances
from cluster.hardware.gpus import GPUS, QUANTIZATIONS, Gpu, gpu_named

__all__ = ["GPUS", "QUANTIZATIONS", "Gpu", "Hardware", "Instance", "InstancePrice", "Link", "gpu_named", "instances"]
