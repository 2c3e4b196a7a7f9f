"""ServeGen's description of production traffic (github.com/alibaba/ServeGen, 2025): not a trace, so requests are drawn from it."""

from planning.workload.servegen.draw import drawn_trace
from planning.workload.servegen.tables import Client, ServeGenError, Window, read_tables

__all__ = ["Client", "ServeGenError", "Window", "drawn_trace", "read_tables"]
