"""A second policy beside the active one: asked the same, not obeyed, scored; and what happens when it is promoted."""
