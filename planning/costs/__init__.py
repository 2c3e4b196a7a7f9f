"""What the steps of an engine cost: fitted from its own steps, from a profile of its model's layers, or from data
sheets."""
