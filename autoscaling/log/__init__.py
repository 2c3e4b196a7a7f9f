"""Every scaling decision with its inputs, as lines of a file that replays to the same decisions."""
