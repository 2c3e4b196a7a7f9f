"""GPUs, cloud instances and their prices, the exchange between GPUs, and the network between regions: facts with
sources, not measurements."""

from cluster.hardware.facts import (
    Exchange,
    Hardware,
    Instance,
    InstancePrice,
    Link,
    exchange_table,
    instances,
)
from cluster.hardware.gpus import GPUS, QUANTIZATIONS, Gpu, gpu_named, gpu_names
