"""A second policy beside the active one: it gets the same inputs, changes nothing and is scored; and its promotion."""
