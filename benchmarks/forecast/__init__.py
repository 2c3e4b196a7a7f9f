"""How far forecasts of the arrival of work are off, on recorded rates."""
