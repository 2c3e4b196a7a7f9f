"""Reports of simulated runs, of `raylane tune` and of the gauntlet: one HTML file each, that stands alone. The extra
`planning` is needed."""
