"""The cluster spec: one file with the hardware, the models, the SLOs and the scaling settings."""

from cluster.group_key import DEFAULT_GROUP, group_of, model_of
from cluster.spec.artifacts import Artifacts
from cluster.spec.autoscaling import Autoscaling, Backlog, PolicySpec, Rollback
from cluster.spec.cluster import ClusterSpec, exchanged
from cluster.spec.deploy import HeadStore, PoolPart, SecretSource
from cluster.spec.engine import LoraAdapter, Simulated, Speculative
from cluster.spec.external import PICO, External
from cluster.spec.gateway import CacheSpec, CorsSpec, GatewaySpec, GatewayTls, RequestLimits, SemanticSpec, Timeouts
from cluster.spec.hosts import AwsDeploy, AwsPool, LocalDeploy
from cluster.spec.kubernetes import ZONE_LABEL, Ingress, KubernetesDeploy, KubernetesPool, Toleration
from cluster.spec.load import SpecError, load_spec, parse_section, parse_spec, problem_lines, section_of
from cluster.spec.models import EngineSettings, FallbackRoute, Group, GroupSettings, Health, Model, ReplicasSpec
from cluster.spec.peering import HandOverSettings, Peering, PeerTls
from cluster.spec.regions import Deploy, Pool, Region
from cluster.spec.schedule import BoundsSchedule, ScheduleEntry
from cluster.spec.starts import Starts, StartSeconds
from cluster.spec.tracing import Tracing
from cluster.spec.traffic import LanePolicy, RungSpec, Scheduling, Tenant, TrafficClass
