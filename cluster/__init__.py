"""What we run on: the cluster spec, the hardware, the models' files. Nothing here knows of Ray, vLLM or HTTP."""
