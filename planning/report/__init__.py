"""Reports of simulated runs, of `raylane tune`, of plans and of costs: one HTML file each, that stands alone. The extra
`planning` is needed."""
