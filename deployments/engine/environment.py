"""The environment of a replica's process and of the processes that vLLM starts in it, and Serve's log in that
process.

Each variable has its reason beside it. The cluster's secret is never among them: environments are readable in
`/proc` and in Ray's own state.
"""

import logging
import os
import tempfile
from logging.handlers import MemoryHandler
from pathlib import Path

from cluster.artifacts import is_hub_name
from cluster.spec import Model, Pool, Tracing
from deployments.engine.fate_share import SWITCH

logger = logging.getLogger(__name__)


INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_CACHES = {"VLLM_CACHE_ROOT": "vllm", INDUCTOR_CACHE: "inductor"}
_SERVE_LOGGER = "ray.serve"
TRACES_ENDPOINT = "RAYLANE_TRACES_ENDPOINT"
"""Where vLLM sends its spans. Not OpenTelemetry's own variable, which a node may have for others."""

_FOREIGN = (
    # It would override kv_cache_memory_bytes.
    "VLLM_CPU_KVCACHE_SPACE",
    # The guard strips the credentials that vLLM's own check would look for.
    "VLLM_API_KEY",
)


def forget_foreign_variables() -> None:
    """Takes out of this process's environment what the node's may hold and a replica must not heed. Called before vLLM
    is imported."""
    for name in _FOREIGN:
        os.environ.pop(name, None)


def keep_serve_log() -> None:
    """Keeps Serve's log of this replica open when vLLM configures its own logging. Called before vLLM starts.

    vLLM calls `logging.config.dictConfig`, which closes every handler of the process. Serve's handler then has no file
    left: what Serve logs is lost, and `ReplicaActor.is_allocated` raises, so that a Serve controller that was restarted
    stops the replica (Ray 2.60, `logging_utils.py`).
    """
    for handler in logging.getLogger(_SERVE_LOGGER).handlers:
        if isinstance(handler, MemoryHandler):
            handler.close = handler.flush  # type: ignore[method-assign]


def own_temp_dir() -> str:
    """Makes a folder in which vLLM's processes leave their temporary files, and returns it; whoever ends the replica
    removes it.

    Each start of an engine leaves a `vllm_dist_*` there (the meeting point of its ranks), and a killed one its sockets.
    """
    folder = tempfile.mkdtemp(prefix="replica-")
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = folder
    return folder


def keep_compiled(folder: str) -> None:
    """Has vLLM and torch's Inductor keep what they compile below `folder`, where this process's environment does not
    say otherwise: it outlives the replica and the cluster. Called before either is imported.

    Both would else use the home or the temporary folder, and a replica's temporary folder goes with it. A folder that
    cannot be made is no reason not to serve: then every start compiles.
    """
    root = Path(folder).expanduser()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        logger.warning("starts.compile_cache = %r: %s: every start compiles anew", folder, error.strerror)
        return
    for name, part in _CACHES.items():
        if not os.environ.get(name):
            os.environ[name] = str(root / part)


def replica_environment(model: Model, pool: Pool, tracing: Tracing | None = None) -> dict[str, str]:
    """The environment variables for one replica of `model` in `pool`: none for a simulated one."""
    if model.engine == "simulated":
        return {}
    variables = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # vLLM would else bind the address of the machine's default route; all its processes are on this node.
        "VLLM_HOST_IP": "127.0.0.1",
        # Plugins, and so fate_share, load in a spawned child but not in a forked one. (In a Ray actor vLLM would choose
        # it too.)
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        SWITCH: "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(int(model.health.startup_s)),
    }
    if pool.accelerator == "cpu":
        variables |= _cpu(model)
    if not any(map(is_hub_name, model.sources)):
        variables["HF_HUB_OFFLINE"] = "1"
    if tracing is not None:
        variables |= {
            TRACES_ENDPOINT: tracing.endpoint,
            # By default vLLM speaks gRPC,
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            # and would sample each start, and each request that comes without a context.
            "OTEL_TRACES_SAMPLER": "parentbased_always_off",
            "OTEL_SERVICE_NAME": "raylane-replica",
        }
    return variables


def _cpu(model: Model) -> dict[str, str]:
    ranks = model.settings.ranks
    return {
        "OMP_NUM_THREADS": str(max(1, int(model.cpus) // ranks)),
        # vLLM would bind each replica of a node to the same first cores, and refuse more ranks than there are NUMA
        # nodes.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # "0" runs the model inside EngineCore's process, a core less than with a worker process of its own; several
        # ranks need the workers.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if ranks == 1 else "1",
    }
