"""From a policy's wish to the number that is asked for: bounds, rates, an operator's word, broken signals. Pure; the
same for every policy."""
