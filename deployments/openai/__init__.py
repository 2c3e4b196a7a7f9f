"""The protocol that clients speak (OpenAI's API and its dialects): paths, bodies, errors. Shared by gateway and
simulated engine. Pure."""
