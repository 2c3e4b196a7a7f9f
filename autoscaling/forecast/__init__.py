"""What is expected of the arrival of work: an input of scaling laws, made outside them, from history."""
