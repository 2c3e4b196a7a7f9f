"""The HTTP/1.1 server of gateways and replicas: uvicorn's, with the limits that it lacks."""
