"""How many replicas run: policies, forecasts and the simulator that rehearses them. Empty until those capabilities land."""
