"""How the HorizontalPodAutoscaler turns a metric into a number of replicas. Shared by the laws that end in one.

Follows `calcPlainMetricReplicas` and `GetExternalPerPodMetricReplicas` of Kubernetes, `pkg/controller/podautoscaler/replica_calculator.go` (commit
00067268967ec95a40035bd666374a1caf48dd1a, the same since in these two).
"""

import math

DUST = 1e-9
"""Kubernetes counts in thousandths; a float that is a hair above a whole number is that number."""


def ceil(value: float) -> int:
    """The next whole number, a hair forgiven."""
    return math.ceil(value - DUST)


def by_pod_metric(current: int, ready: int, missing: int, total: float, target: float, tolerance: float) -> int:
    """For a metric of each pod: `total` of the `ready` pods, wanted to average `target`; `missing` ones do not report.

        ratio = total / (target * ready);   as many as there are where it is within the tolerance of 1, else ceil(ratio * ready)

    Pods that do not report count as idle on the way up and as on target on the way down, unless that would turn the direction around. Without a pod
    that reports nothing is changed.
    """
    if ready == 0:
        return current
    ratio = total / (target * ready)
    if missing == 0 or ratio == 1:
        return current if abs(1 - ratio) <= tolerance else ceil(ratio * ready)
    pods = ready + missing
    assumed = (total + (missing * target if ratio < 1 else 0.0)) / (target * pods)
    if abs(1 - assumed) <= tolerance or (ratio < 1 < assumed) or (assumed < 1 < ratio):
        return current
    wanted = ceil(assumed * pods)
    if (assumed < 1 and wanted > current) or (assumed > 1 and wanted < current):
        return current
    return wanted


def by_external_metric(current: int, total: float, target: float, tolerance: float) -> int:
    """For a metric of the whole (`AverageValue`): ceil(total / target), where total / (target * current) is beyond the tolerance of 1."""
    if current and abs(1 - total / (target * current)) <= tolerance:
        return current
    return ceil(total / target)
