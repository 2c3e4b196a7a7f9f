"""Whether a model starts on a GPU and what it holds, from its `config.json`, the settings and the GPU's facts."""
