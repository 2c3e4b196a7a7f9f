"""A region on Kubernetes, where the KubeRay operator runs its Ray cluster."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from cluster.spec.base import Name, Section
from cluster.spec.deploy import DeployBase, ElasticPool, Folder, SecretSource

ZONE_LABEL = "topology.kubernetes.io/zone"
"""Kubernetes' own label of a node's zone."""


class Toleration(Section):
    """A Kubernetes toleration; names and meanings are Kubernetes' own."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> "Toleration":
        if self.operator == "Exists" and self.value is not None:
            raise ValueError(f"value = {self.value!r}: allowed: only with operator = 'Equal'")
        if self.operator == "Equal" and self.key is None:
            raise ValueError("key: missing; operator = 'Equal' needs one")
        return self


class KubernetesPool(ElasticPool):
    """The pods of one pool, each of which is a node of Ray.

    Each asks for the pool's `cpus_per_node` and `gpus_per_node` and for `memory_gib`. `node_selector` and `tolerations`
    choose its nodes, `runtime_class` its runtime. A pool's `zones` are those of Kubernetes' nodes (by `ZONE_LABEL`).
    """

    memory_gib: Annotated[int, Field(ge=1, le=32_768)]
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    runtime_class: Name | None = None


class CacheVolume(Section):
    """Where a pod keeps the files of its models, mounted at `artifacts.cache`: a folder of its node (`host_path`, which
    outlives the pod), or a volume of `size_gib` of a `storage_class` for each pod (None: the cluster's default)."""

    host_path: Folder | None = None
    storage_class: Name | None = None
    size_gib: Annotated[int, Field(ge=1, le=1_000_000)] | None = None

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "CacheVolume":
        if (self.host_path is None) == (self.size_gib is None):
            raise ValueError("allowed: host_path, or size_gib with or without storage_class")
        if self.host_path is not None and self.storage_class is not None:
            raise ValueError(f"storage_class = {self.storage_class!r}: allowed: only with size_gib")
        return self


class KubernetesDeploy(DeployBase):
    """Kubernetes with the KubeRay operator. `image` has raylane, Ray and the engine.

    `gateway_service`: the type of the Service in front of the gateways, with `gateway_annotations` (those of the
    provider's load balancer). `context`: of kubectl's configuration (None: the current one). `store_gib`: of the volume
    that holds the head's state, of a `store_class` (None: the cluster's default). `head_cpus` and `head_memory_gib`: of
    the head's pod.
    """

    provider: Literal["kubernetes"]
    image: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}$")]
    context: str | None = None
    namespace: Name = "raylane"
    image_pull_secret: Name | None = None
    service_account: Name | None = None
    head_cpus: Annotated[int, Field(ge=1, le=256)] = 2
    head_memory_gib: Annotated[int, Field(ge=1, le=4_096)] = 8
    store_gib: Annotated[int, Field(ge=1, le=10_000)] = 10
    store_class: Name | None = None
    head_node_selector: dict[str, str] = Field(default_factory=dict)
    head_tolerations: tuple[Toleration, ...] = ()
    pools: Annotated[tuple[KubernetesPool, ...], Field(min_length=1)]
    model_cache: CacheVolume = CacheVolume(host_path="/var/lib/raylane/models")
    gateway_service: Literal["ClusterIP", "LoadBalancer"] = "ClusterIP"
    gateway_annotations: dict[str, str] = Field(default_factory=dict)
    secrets: SecretSource = SecretSource(kind="kubernetes")

    @model_validator(mode="after")
    def _uses_what_a_pod_has(self) -> "KubernetesDeploy":
        if self.secrets.kind != "kubernetes":
            raise ValueError(
                f"secrets.kind = {self.secrets.kind!r}: allowed: kubernetes; a pod gets its secrets as mounted files"
            )
        if self.head_store.path is not None:
            raise ValueError(
                f"head_store.path = {self.head_store.path!r}: allowed: none; on Kubernetes the store is a volume of "
                "store_gib"
            )
        return self

    def zone_problem(self, pool: str, nodes: int, zones: Sequence[str] | None) -> str:
        """Why the pods of a pool cannot be in these zones (None: it has none); empty: they can."""
        one = next(one for one in self.pools if one.pool == pool)
        if zones is not None and (problem := one.zone_problem(nodes, zones)):
            return f"pools.{pool}.zones: {problem}"
        if zones is not None and ZONE_LABEL in one.node_selector:
            return (
                f"deploy.pools.{pool}.node_selector: has {ZONE_LABEL}; allowed: without it, since the pool has `zones`"
            )
        return ""
