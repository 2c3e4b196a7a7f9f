"""Trace formats, one a file: `FORMATS` is their registry. Which one a file is of, its first line says."""

from autoscaling.workload.formats.azure import AZURE
from autoscaling.workload.formats.burstgpt import BURSTGPT
from autoscaling.workload.formats.format import Format
from autoscaling.workload.formats.ledger import LEDGER
from autoscaling.workload.formats.mooncake import MOONCAKE
from autoscaling.workload.formats.own import OWN
from autoscaling.workload.formats.rows import Rows

FORMATS = (AZURE, BURSTGPT, MOONCAKE, LEDGER, OWN)

__all__ = ["FORMATS", "Format", "Rows"]
