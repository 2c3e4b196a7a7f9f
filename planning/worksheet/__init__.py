"""The worksheet: what `raylane plan` is asked for. One YAML file, read and checked; see docs/planning.md."""
