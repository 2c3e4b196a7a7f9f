"""What operators say while a cell runs: cordons, drains, holds and pins. Kept by the directory, written down, told to every gateway."""
