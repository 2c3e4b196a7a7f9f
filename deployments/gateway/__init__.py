"""The gateway: the HTTP front of a cell. It decides in its own process and relays the engine's bytes untouched."""
