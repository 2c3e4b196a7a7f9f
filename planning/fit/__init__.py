"""Whether a model starts on a GPU and what it holds, from its `config.json`, the settings and the GPU's facts."""

from planning.fit.architecture import Architecture, read_architecture
from planning.fit.of_spec import ModelFit, fits
from planning.fit.quantization import NotModelled
from planning.fit.verdict import Fit, Refusal, RefusalCause, fit
