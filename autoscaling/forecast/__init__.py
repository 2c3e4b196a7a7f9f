"""What is expected of the arrival of work: an input of scaling policies, made outside them, from history."""
