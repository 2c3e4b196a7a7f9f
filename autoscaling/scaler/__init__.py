"""From a policy's number to the requested one: bounds, rates, operators' orders, broken signals. Pure; the same for
every policy."""
