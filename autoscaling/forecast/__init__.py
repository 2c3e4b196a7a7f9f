"""The forecast of arriving work: an input of scaling policies, made outside them, from history."""
