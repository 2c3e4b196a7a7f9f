"""`raylane tune`: settings of a scaling policy that meet the SLOs for less, found on recorded traffic with the policies
that run in production."""
