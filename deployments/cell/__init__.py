"""What the gateways, replicas and controller of one cell share: the directory, operators' orders, departures, scaling
state."""
