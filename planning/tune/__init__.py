"""`raylane tune`: settings of a scaling law that keep the promises for less, found on recorded traffic with the laws that run in production."""
