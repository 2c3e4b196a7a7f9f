"""HTTP between cells: what gateways of different regions say to each other, and how they prove who they are."""
