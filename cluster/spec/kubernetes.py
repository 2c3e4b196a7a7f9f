"""A region on Kubernetes, where the KubeRay operator runs its Ray cluster."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

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
    """Where a pod keeps the files of its models, and what its engines compiled: a volume of `size_gib` of a
    `storage_class` for each pod (None: the cluster's default), which ends with the pod, or a folder of its node
    (`host_path`), which outlives it, exists there, and belongs to user 1000."""

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


_CERTIFICATE = re.compile("cert|ssl|tls", re.IGNORECASE)
"""In the name of an annotation by which a load balancer ends TLS: aws-load-balancer-ssl-cert, certificate-arn."""


class Ingress(Section):
    """An Ingress in front of the gateways' Service, by a controller of `class_name` (None: the cluster's default). TLS
    ends there: with the certificate in the Secret `tls_secret`, or one that `annotations` name."""

    host: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
    class_name: Name | None = None
    tls_secret: Name | None = None
    annotations: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _ends_tls(self) -> "Ingress":
        if self.tls_secret is None and not any(map(_CERTIFICATE.search, self.annotations)):
            raise ValueError("tls_secret: missing; needed: the Secret with the certificate, or an annotation with it")
        return self


class KubernetesDeploy(DeployBase):
    """Kubernetes with the KubeRay operator. `image` has raylane, Ray and the engine.

    `gateway_service`: the type of the Service in front of the gateways, with `gateway_annotations` (those of the
    provider's load balancer). `ingress`: an Ingress in front of that. `tls_secret`: a Secret of type kubernetes.io/tls,
    mounted where `gateway.tls` has its files. `compile_cache_claim`: a claim of yours that pods of all nodes may write
    (ReadWriteMany), for what engines compiled; it outlives the pod. `hub_secret`: a Secret whose key `token` is that of
    a model hub. `upgrade`: what happens when the Ray cluster's pods must change (another image, say): `deploy` replaces
    the cluster, or KubeRay starts another one `beside` it, which needs as much room again. `overrides`, by kind of
    object (and `Pod`: the template of each pod): what is merged into what is rendered; null removes. `context`: of
    kubectl's configuration (None: the current one). `store_gib`: of the volume that holds the head's state, of a
    `store_class` (None: the cluster's default). `head_cpus` and `head_memory_gib`: of the head's pod.
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
    model_cache: CacheVolume = CacheVolume(size_gib=200)
    gateway_service: Literal["ClusterIP", "LoadBalancer"] = "ClusterIP"
    gateway_annotations: dict[str, str] = Field(default_factory=dict)
    ingress: Ingress | None = None
    tls_secret: Name | None = None
    hub_secret: Name | None = None
    compile_cache_claim: Name | None = None
    upgrade: Literal["replace", "beside"] = "replace"
    overrides: dict[str, dict[str, Any] | None] = Field(default_factory=dict)
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
        if self.upgrade == "beside" and self.head_store.kind == "redis":
            raise ValueError(
                "upgrade = 'beside': allowed: with head_store.kind = 'rocksdb', of which each cluster has one"
            )
        if self.gateway_service == "LoadBalancer" and self.tls_secret is None and not self.ends_tls:
            raise ValueError(
                "gateway_service = 'LoadBalancer': clients' keys would travel in clear; allowed: with tls_secret and "
                "gateway.tls, or with gateway_annotations that name the load balancer's certificate; or ClusterIP with "
                "`ingress`"
            )
        return self

    @property
    def ends_tls(self) -> bool:
        """Whether the Service's load balancer does."""
        return any(map(_CERTIFICATE.search, self.gateway_annotations))

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
