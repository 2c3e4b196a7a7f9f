"""What `raylane deploy` puts on each node that is reached by SSH: the scripts that start Ray there, and the head's
systemd unit.

Pure: a spec goes in, texts come out. `ray up` copies them to `~/.raylane/CELL/node`, and the secrets' files to
`~/.raylane/CELL/secrets`, by the cluster's YAML (`ray_yaml.py`). The paths below a home directory are the same for
every user that nodes may have.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cluster.launch.environment import JOINED_ENVIRONMENT, RAY_ENVIRONMENT
from cluster.node_labels import labels_of
from cluster.spec import AwsDeploy, ClusterSpec, LocalDeploy, Region, SecretSource

HEAD_SCRIPT = "node/start-head"
WORKER_SCRIPT = "node/start-worker"
STOP_SCRIPT = "node/stop-worker"
STOP_HEAD_SCRIPT = "node/stop-head"
INSTALL_SCRIPT = "node/install-head-service"
FETCH_SCRIPT = "node/fetch-secrets"
UNIT = "node/head.service"
GCS_PORT = 6379
DASHBOARD_PORT = 8265
"""Serve's REST API listens here, on the head's loopback address."""
KEPT_APPLICATIONS = "serve/applications.json"
"""On the head, relative to the cell's folder: Serve's configuration of the last deployment, for `restore.py`."""
SECRET_FILE, TOKEN_FILE, KEYS_FILE = "secret", "ray_token", "tenant_keys.json"
"""Each in the folder of secrets, on every node."""
PEERS_FILE, EXTERNAL_FILE = "peers_secret", "external_key"
"""There, too, where the cells of a cluster share a secret that is kept in files or by Kubernetes."""


@dataclass(frozen=True, slots=True)
class SharedSecret:
    """A secret that all cells of a cluster have, of at least so many characters. `key`: in the spec; `file`: in each
    node's folder of secrets; `name`: with AWS as raylane/CLUSTER/NAME, with Kubernetes as CLUSTER-NAME."""

    key: str
    source: SecretSource
    file: str
    name: str
    shortest: int


def shared_secrets(spec: ClusterSpec) -> list[SharedSecret]:
    """Those that the spec names."""
    found = []
    if spec.peering is not None and (source := spec.peering.secret) is not None:
        found.append(SharedSecret("peering.secret", source, PEERS_FILE, "peers", 32))
    if spec.external is not None:
        found.append(SharedSecret("external.secret", spec.external.secret, EXTERNAL_FILE, "external", 8))
    return found


_RUNNING = """running() { grep -lz "$1" /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3; }"""
_RAYLETS = "$(running '^[^ ]*/raylet/raylet$')"
WHOSE_RAY = f"""{_RUNNING}; for raylet in {_RAYLETS}; do tr '\\0' '\\n' 2>/dev/null </proc/$raylet/environ |
sed -n 's/^RAY_AUTH_TOKEN_PATH=//p' | grep . || echo unknown; done"""
"""Prints the file of Ray's token for each Ray on a host, which is in its cell's folder."""


def cell_folder(cell: str) -> str:
    """Where a node keeps what raylane needs there, relative to the home directory of the user that runs Ray."""
    return f".raylane/{cell}"


def expected_workers(region: Region, deploy: LocalDeploy | AwsDeploy) -> int:
    """How many workers the cell has as soon as all have joined, before Ray's autoscaler adds any."""
    if isinstance(deploy, LocalDeploy):
        return len(deploy.workers)
    nodes = {pool.name: pool.nodes for pool in region.pools}
    return sum(one.bounds(nodes[one.pool])[0] for one in deploy.pools)


def node_files(spec: ClusterSpec, region: Region, deploy: LocalDeploy | AwsDeploy) -> dict[str, str]:
    """The files by name, relative to the cell's folder."""
    cell = spec.cell_name(region)
    files = {
        HEAD_SCRIPT: _head_script(cell, region, deploy),
        WORKER_SCRIPT: _worker_script(cell, region, deploy),
        STOP_SCRIPT: _stop_script(cell, deploy),
        STOP_HEAD_SCRIPT: _stop_head_script(cell, deploy),
    }
    if deploy.secrets.kind == "aws":
        files[FETCH_SCRIPT] = _fetch_script(cell, region, deploy)
    if deploy.head_service == "systemd":
        files |= {UNIT: _unit(cell, deploy), INSTALL_SCRIPT: _install_script(cell, deploy)}
    return files


def lost_head_procedure(spec: ClusterSpec, region: Region, deploy: LocalDeploy | AwsDeploy) -> str:
    """What to do when the head's machine is lost and nothing replaces it by itself."""
    cell = spec.cell_name(region)
    hours = int(JOINED_ENVIRONMENT["RAY_gcs_rpc_server_reconnect_timeout_s"]) // 3600
    first = "1. See that the old instance is terminated; the next step starts another one."
    if isinstance(deploy, LocalDeploy):
        key = "its key" if deploy.ssh_key is None else f"the key {deploy.ssh_key}"
        root = ", and sudo without a password" if deploy.head_service == "systemd" else ""
        first = f"""1. Give another machine the address {deploy.head}, by which the workers find the head, and see
   that the old one does not come back with it. It needs raylane in `{deploy.venv}`, and the user `{deploy.ssh_user}`
   with {key}{root}."""
    return f"""# The head of {cell} is lost
Requests are answered without it, for {hours} hours; then each node ends itself. Until it is back nothing is scaled,
and a replica that ends is not replaced. If its machine comes back with its disk, there is nothing to do.

{first}
2. `raylane deploy SPEC --region {region.name} --yes`, from a machine that has the cell's secrets (one that has
   deployed it, where they are files). The new head starts Ray on the workers again: streams that still run end with
   an error event.
3. `raylane status --url http://GATEWAY:{spec.gateway.port}` shows the replicas as they come.
"""


def _head_script(cell: str, region: Region, deploy: LocalDeploy | AwsDeploy) -> str:
    store = _store(deploy)
    options = ["--head", f"--port={GCS_PORT}", "--num-cpus=0", "--num-gpus=0", "--dashboard-host=127.0.0.1"]
    options += [f"--dashboard-port={DASHBOARD_PORT}"]
    if isinstance(deploy, LocalDeploy):
        options.append(f"--node-ip-address={deploy.head}")
    # The launcher's own configuration, by which the head starts and replaces workers.
    options.append('--autoscaling-config="$HOME/ray_bootstrap_config.yaml"')
    lines = [
        f"# Starts Ray's head of {cell}. It offers no CPU and no GPU, and has no pool's label: neither a gateway nor a",
        "# replica runs here. Options of `ray start` may be added: the systemd unit adds --block.",
        *_prologue(cell, region, deploy),
        *_autoscaler(deploy),
        *_exports(store),
    ]
    if path := store.get("RAY_gcs_storage_path"):
        lines.append(f"mkdir -p {path}")
    restore = f'python -m cli.deploy.restore "$folder/{KEPT_APPLICATIONS}" {expected_workers(region, deploy)}'
    lines += [
        "# A head that has lost its state gets the applications of the last deployment again.",
        f'if [ -f "$folder/{KEPT_APPLICATIONS}" ]; then',
        f'    setsid nohup {restore} </dev/null >>"$folder/run/logs/restore.log" 2>&1 &',
        "fi",
    ]
    return _script(*lines, f'ray start {" ".join(options)} "$@"')


def _autoscaler(deploy: LocalDeploy | AwsDeploy) -> Iterable[str]:
    """Which of Ray's two autoscalers the head runs.

    The second one needs the variables that the launcher gives the head at its first start. On machines that the spec
    lists, it does not find the head among its nodes, counts it as a worker, and starts one worker less (Ray 2.60; the
    first one knows this case).
    """
    if isinstance(deploy, LocalDeploy):
        yield "export RAY_enable_autoscaler_v2=0"
        return
    yield from _keep_variables()
    yield f'if [ -f "{_FROM_LAUNCHER}" ]; then . "{_FROM_LAUNCHER}"; fi'


_FROM_LAUNCHER = "$folder/from-launcher"


def _keep_variables() -> Iterable[str]:
    """Keeps the variables of Ray's launcher, for a start without it: by systemd, or by hand."""
    yield 'if [ -n "${RAY_CLOUD_INSTANCE_ID:-}" ]; then'
    names = "enable_autoscaler_v2|CLOUD_INSTANCE_ID|NODE_TYPE_NAME"
    yield f"    env | grep -E '^RAY_({names})=' | sed 's/^/export /' > \"{_FROM_LAUNCHER}\""
    yield "fi"


def _store(deploy: LocalDeploy | AwsDeploy) -> dict[str, str]:
    """The variables by which the head keeps its state."""
    if deploy.head_store.kind == "redis":
        return {"RAY_REDIS_ADDRESS": str(deploy.head_store.address)}
    return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": deploy.head_store.path or '"$folder/gcs"'}


def _worker_script(cell: str, region: Region, deploy: LocalDeploy | AwsDeploy) -> str:
    lines = [f"# Starts Ray on a worker of {cell}.", *_prologue(cell, region, deploy)]
    options = [f'--address="$RAY_HEAD_IP:{GCS_PORT}"']
    if isinstance(deploy, LocalDeploy):
        lines += _own_place(region, deploy)
        options += ['--node-ip-address="$address"', '--labels="$labels"', "$amounts"]
    return _script(*lines, f'ray start {" ".join(options)} "$@"')


def _stop_script(cell: str, deploy: LocalDeploy | AwsDeploy) -> str:
    return _script(
        f"# Ends Ray on a worker of {cell}, before it starts again: after a head that has lost its state. A raylet",
        "# that gets SIGTERM kills its gateways at once, and their streams break off. A raylet that dies leaves them",
        "# the time to end each stream with an error event (SIGTERM does not reach them while Ray has no head).",
        "set -eu",
        f'export PATH="{deploy.venv}/bin:$PATH"',
        _RUNNING,
        f'for raylet in {_RAYLETS}; do kill -KILL "$raylet" 2>/dev/null || true; done',
        "tries=25",
        "while [ $tries -gt 0 ] && [ -n \"$(running '^ray::ServeReplica:gateway:')\" ]; do",
        "    sleep 0.2; tries=$((tries - 1))",
        "done",
        "ray stop",
    )


def _stop_head_script(cell: str, deploy: LocalDeploy | AwsDeploy) -> str:
    service = f"raylane-head-{cell}.service"
    unit = [
        _AS_ROOT,
        f"as_root systemctl disable {service}",
        f"as_root systemctl stop {service}",
        f"as_root rm -f /etc/systemd/system/{service}",
        "as_root systemctl daemon-reload",
    ]
    own_store = deploy.head_store.kind == "rocksdb" and deploy.head_store.path is None
    return _script(
        f"# Ends Ray's head of {cell} for good, with the state that it kept: a cell that is deployed again is new.",
        "set -eu",
        f'folder="$HOME/{cell_folder(cell)}"',
        f'export PATH="{deploy.venv}/bin:$PATH"',
        *(unit if deploy.head_service == "systemd" else ()),
        "ray stop",
        *(['rm -rf "$folder/gcs"'] if own_store else ()),
        "# What Ray's launcher knows of the workers: it would take their files for up to date.",
        f"rm -f /tmp/ray/cluster-{cell}.state",
    )


_AS_ROOT = 'as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }'


def _own_place(region: Region, deploy: LocalDeploy) -> Iterable[str]:
    """Which of the workers this machine is: the launcher runs one and the same command on all of them."""
    pools = {pool.name: pool for pool in region.pools}
    yield 'case " $(hostname -I) " in'
    for one in deploy.pools:
        amounts = [f"--num-cpus={pools[one.pool].cpus_per_node}"] if pools[one.pool].cpus_per_node else []
        amounts.append(f"--num-gpus={pools[one.pool].gpus_per_node}")
        for worker in one.workers:
            labels = ",".join(f"{name}={value}" for name, value in labels_of(one.pool, worker.zone).items())
            own = f"labels={labels} amounts={shlex.quote(' '.join(amounts))}"
            yield f'*" {worker.address} "*) address={worker.address} {own} ;;'
    yield '*) echo "raylane: no address of this host ($(hostname -I)) is that of a worker in the spec" >&2; exit 1 ;;'
    yield "esac"


def _prologue(cell: str, region: Region, deploy: LocalDeploy | AwsDeploy) -> Iterable[str]:
    yield "set -eu"
    yield f'folder="$HOME/{cell_folder(cell)}"'
    yield f'export PATH="{deploy.venv}/bin:$PATH"'
    yield from _exports(RAY_ENVIRONMENT | JOINED_ENVIRONMENT)
    yield f'export RAY_AUTH_TOKEN_PATH="$folder/secrets/{TOKEN_FILE}"'
    yield from _exports({name: shlex.quote(value) for name, value in deploy.environment.items()})
    yield 'mkdir -p "$folder/run/logs"; chmod 700 "$folder" "$folder/run"'
    if deploy.secrets.kind == "aws":
        yield f'sh "$folder/{FETCH_SCRIPT}"'
    yield "ulimit -n 65536 2>/dev/null || true"


def _fetch_script(cell: str, region: Region, deploy: LocalDeploy | AwsDeploy) -> str:
    name, aws = deploy.secrets.name or default_secret(cell), aws_region(region)
    return _script(
        "# Fetches the cell's secrets with the instance's role, before Ray starts and when the tenants' keys change.",
        "set -eu",
        f'export PATH="{deploy.venv}/bin:$PATH"',
        f'raylane secrets fetch {name} --aws-region {aws} --into "$HOME/{cell_folder(cell)}/secrets"',
    )


def default_secret(cell: str) -> str:
    """The secret's name in AWS Secrets Manager, where the spec has none."""
    return f"raylane/{cell}"


def aws_region(region: Region) -> str:
    """AWS's name of the region."""
    named = region.deploy.region if isinstance(region.deploy, AwsDeploy) else None
    return named or region.name


def _exports(variables: Mapping[str, str]) -> Iterable[str]:
    for name, value in variables.items():
        yield f"export {name}={value}"


def _script(*lines: str) -> str:
    return "\n".join(["#!/bin/sh", *lines]) + "\n"


def _unit(cell: str, deploy: LocalDeploy | AwsDeploy) -> str:
    return f"""# Ray's head of the cell {cell}: `raylane deploy` installs it on the head's machine.
[Unit]
Description=Head of the raylane cell {cell} (Ray)
After=network-online.target
Wants=network-online.target
# However often it fails: the cell's nodes wait for it.
StartLimitIntervalSec=0

[Service]
Type=exec
User={deploy.ssh_user}
# With --block `ray start` ends as soon as one of the head's processes does.
ExecStart=/bin/sh -c 'exec sh "$$HOME/{cell_folder(cell)}/{HEAD_SCRIPT}" --block'
Restart=always
RestartSec=2
# What is left of a head that failed ends before the next one starts. Gateways and replicas run on other machines.
KillMode=control-group
TimeoutStopSec=30
LimitNOFILE=131072
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""


_KEEP_FROM_LAUNCHER = (
    "# What Ray's launcher gave this head, its key too, is kept on the head's disk. A head that takes this one's place",
    "# has the disk, and no launcher.",
    'if [ -f "$HOME/ray_bootstrap_config.yaml" ]; then',
    '    mkdir -p -m 700 "$folder/launcher"; cp -p "$HOME"/ray_bootstrap_* "$folder/launcher/"',
    "else",
    '    cp -p "$folder"/launcher/* "$HOME/"',
    "fi",
)


def _install_script(cell: str, deploy: LocalDeploy | AwsDeploy) -> str:
    service = f"raylane-head-{cell}.service"
    return _script(
        f"# Installs and restarts the systemd unit of {cell}'s head. Needs root, or sudo without a password.",
        "set -eu",
        f'folder="$HOME/{cell_folder(cell)}"',
        *(_keep_variables() if isinstance(deploy, AwsDeploy) else ()),
        *(_KEEP_FROM_LAUNCHER if isinstance(deploy, AwsDeploy) and deploy.head_group is not None else ()),
        _AS_ROOT,
        f'as_root install -m 644 "$folder/{UNIT}" /etc/systemd/system/{service}',
        "as_root systemctl daemon-reload",
        f"as_root systemctl enable {service}",
        f"as_root systemctl restart {service}",
    )
