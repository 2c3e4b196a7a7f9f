"""What an owner tells an autoscaler (its books), and what an autoscaler tells a cell (its decisions). Pure."""
