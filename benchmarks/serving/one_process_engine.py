"""`ray.serve.llm`'s engine with the executor that the other sides use, so that engines are compared with equal engines.

For a CPU its builder forces vLLM's multi-process executor, whose extra worker process costs a good half core more; no
setting of its own turns that off. Its documented hook for another engine class does: `RAYLLM_VLLM_ENGINE_CLS` names
this module's class, and only replicas import it.
"""

from typing import Any

from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine
from ray.llm._internal.serve.engines.vllm.vllm_models import VLLMEngineConfig

_forced = VLLMEngineConfig.get_initialization_kwargs


def _with_one_process(config: Any) -> dict[str, Any]:
    return {**_forced(config), "distributed_executor_backend": "uni"}


VLLMEngineConfig.get_initialization_kwargs = _with_one_process


class OneProcessEngine(VLLMEngine):  # type: ignore[misc]
    """The engine as it is; the import of this module is what matters."""
