"""The worksheet: what `raylane plan` is asked for. One YAML file, read and checked; see docs/planning.md."""

from planning.worksheet.demand import DemandStream, Growth, RegionRate, StreamSlo, TokenLengths, TraceSource
from planning.worksheet.load import WorksheetError, load_worksheet, parse_worksheet
from planning.worksheet.sheet import (
    GpuPrice,
    GroupCandidate,
    HeadroomShare,
    ModelConfig,
    PriceKinds,
    SpotPrices,
    Survival,
    TokenOffer,
    TransferSizes,
    Worksheet,
)
