"""Trace formats, one a file: `FORMATS` is their registry. Which one a file is of, its first line says."""

from planning.workload.formats.azure import AZURE
from planning.workload.formats.burstgpt import BURSTGPT
from planning.workload.formats.format import Format, Rows
from planning.workload.formats.ledger import LEDGER
from planning.workload.formats.mooncake import MOONCAKE
from planning.workload.formats.own import OWN

FORMATS = (AZURE, BURSTGPT, MOONCAKE, LEDGER, OWN)
