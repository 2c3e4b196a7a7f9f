"""Traffic: recorded traces in the formats that are in use, and lengths and arrivals that are drawn. Read by `raylane
bench` and by the simulator."""
