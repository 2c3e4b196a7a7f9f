"""What clients sent, counted by minute and by hour: the gateways write it, `raylane plan --against live` reads it."""
