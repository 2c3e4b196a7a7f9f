"""A region on Kubernetes: its Secret and its objects, by `kubectl apply --server-side`."""

import base64
import contextlib
import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import yaml

from cli.console import console
from cli.deploy.changes import DeployPlan, removed_objects
from cli.deploy.record import RECORD, Applied, parsed, who
from cli.deploy.serve_api import DeployError, ServeApi
from cli.deploy.state import DeployState
from cli.deploy.steps import finished
from cluster.launch import DASHBOARD_PORT, KEYS_FILE, MANIFESTS, ROLLOUT_ANNOTATION, SECRET_FILE, TOKEN_KEY, secret_name
from cluster.secrets import CellSecrets, SecretsUnavailable, kept
from cluster.spec import ClusterSpec, KubernetesDeploy, Region

_MANAGER = "raylane"
_PODS_S = 600.0
"""How long pods may take to start, nodes of a cloud among them, beyond what models take (seconds)."""
_POLL_S = 2.0
_LOOKS = 5
"""KubeRay writes down once more how the applications were before it hands the new ones over: what is said so often in a
row holds."""
_FAILED = "application"


def _rollout_of(one: Mapping[str, Any]) -> str | None:
    found: str | None = one["metadata"].get("annotations", {}).get(ROLLOUT_ANNOTATION)
    return found


class ConfigMapRecord:
    """Two ConfigMaps beside the cell's objects: the record, and the lock while it is held."""

    def __init__(self, kubernetes: "Kubernetes", cell: str) -> None:
        self._kubernetes = kubernetes
        self._name, self._lock = f"{cell}-{RECORD}", f"{cell}-deploying"

    def read(self) -> Applied:
        return parsed(self._text(self._name), f"ConfigMap {self._name!r}")

    def write(self, applied: Applied) -> None:
        self._kubernetes.apply_object(self._object(self._name, applied.model_dump_json()))

    @contextmanager
    def lock(self) -> Iterator[None]:
        kubernetes = self._kubernetes
        kubernetes.make_namespace()
        try:
            kubernetes.ask("create", "-f", "-", body=json.dumps(self._object(self._lock, who())))
        except DeployError:
            if not (holder := self._text(self._lock)):
                raise
            raise DeployError(
                f"another deployment of the cell runs, by {holder}; if it is gone: "
                f"{kubernetes.command} delete configmap/{self._lock}"
            ) from None
        try:
            yield
        finally:
            with contextlib.suppress(DeployError):  # what the deployment said counts
                kubernetes.ask("delete", f"configmap/{self._lock}")

    def _object(self, name: str, text: str) -> Mapping[str, Any]:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {RECORD: text}}

    def _text(self, name: str) -> str:
        found = self._kubernetes.ask("get", f"configmap/{name}", "--ignore-not-found", "--output=json")
        return str(json.loads(found)["data"][RECORD]) if found.strip() else ""


class Kubernetes:
    """`kubectl` with the spec's context and namespace."""

    def __init__(self, spec: ClusterSpec, region: Region, deploy: KubernetesDeploy, state: DeployState) -> None:
        self._spec = spec
        self._region = region
        self._cell = spec.cell_name(region)
        self._deploy = deploy
        self._secret = secret_name(spec, region, deploy)
        self._state = state
        self.record = ConfigMapRecord(self, self._cell)
        self._keys = {tenant.name: tenant.keys for tenant in spec.tenants}
        self._patience_s = max(model.health.startup_s for model in spec.models)
        context = [] if deploy.context is None else ["--context", deploy.context]
        self._kubectl = ["kubectl", *context, "--namespace", deploy.namespace]
        self.command = " ".join(self._kubectl)

    def make_namespace(self) -> None:
        """Raises DeployError."""
        self.apply_object({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._deploy.namespace}})

    def outlook(self, plan: DeployPlan) -> list[str]:
        """What the change does to the replicas that run, by Ray's head; how long starts took is not asked. Raises
        DeployError, SecretsUnavailable."""
        from cli.deploy.outlook import RunningCell, outlook  # imports Ray, which takes seconds

        secrets = self.read() if plan.applications else None
        if secrets is None:
            return []
        try:
            with self._head() as url:
                api = ServeApi(url, secrets.ray_token)
                cell = RunningCell(api.applications(), api.nodes(), {})
        except DeployError as error:
            return [f"what becomes of the replicas is not known: {error}"]
        return list(outlook(self._spec, self._region, plan.rendering.applications, cell))

    @contextmanager
    def _head(self) -> Iterator[str]:
        """The REST API of Ray's head, on a loopback port that kubectl chooses. Raises DeployError."""
        command = [*self._kubectl, "port-forward", f"service/{self._cell}-head-svc", f":{DASHBOARD_PORT}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                assert process.stdout is not None
                said = process.stdout.readline()
                if (port := re.search(r"127\.0\.0\.1:(\d+)", said)) is None:
                    raise DeployError(f"kubectl port-forward: {said.strip()[:500] or 'no answer'}")
                yield f"http://127.0.0.1:{port[1]}"
            finally:
                process.terminate()

    def is_up(self) -> bool:
        """Whether the cell runs as it was applied last."""
        try:
            return not self._lacking()
        except DeployError:
            return False

    def shared_secrets(self) -> dict[str, tuple[str, ...]]:
        return {}  # pods mount them

    def read(self) -> CellSecrets | None:
        """What the Secret holds; None: there is none. Raises DeployError, SecretsUnavailable."""
        found = self.ask("get", f"secret/{self._secret}", "--ignore-not-found", "--output=json")
        if not found.strip():
            return None
        try:
            data = {key: base64.b64decode(value).decode() for key, value in json.loads(found).get("data", {}).items()}
            keys = json.loads(data.get(KEYS_FILE) or "{}")
        except ValueError as error:
            raise SecretsUnavailable(f"Secret {self._secret!r}: cannot be read: {error}") from None
        text = {"secret": data.get(SECRET_FILE, ""), "ray_token": data.get(TOKEN_KEY, "")}
        return CellSecrets.from_json(json.dumps({**text, "tenant_keys": keys}), f"Secret {self._secret!r}")

    def write(self, content: CellSecrets) -> None:
        """Raises DeployError."""
        self.apply_object(self._secret_object(content))

    def apply(self, plan: DeployPlan) -> None:
        """Raises DeployError, SecretsUnavailable."""
        applied = self.record.read()
        if not applied.files and self.ask("get", f"rayservice/{self._cell}", "--ignore-not-found").strip():
            raise DeployError(
                f"rayservice/{self._cell} exists, and nothing says what was deployed; allowed: a name that is free, or "
                f"the cell that `raylane deploy` made. To end it: {self.command} delete rayservice/{self._cell}"
            )
        self._state.write_files(plan.rendering.files)
        self.make_namespace()
        self._delete(removed_objects(applied.files, plan.rendering.files))  # while the record has them
        estimates = dict(plan.rendering.estimates)
        began = {"cluster": None, "applications": None, "keys": None, "files": plan.rendering.files}
        self.record.write(applied.model_copy(update={**began, "estimates": estimates}))
        kept(self, self._keys)
        manifests = str(self._state.files / MANIFESTS)
        console.print(self.ask("apply", "--server-side", f"--field-manager={_MANAGER}", "-f", manifests).strip())
        service = self._service()
        for cluster in self._clusters() if self._deploy.upgrade == "replace" else ():
            if _rollout_of(cluster) != _rollout_of(service):
                name = cluster["metadata"]["name"]
                console.print(f"replacing raycluster/{name}: running requests break")
                self.ask("delete", f"raycluster/{name}", "--wait=false")
        self._await()
        self.record.write(finished(plan, applied))

    def _await(self) -> None:
        """Until what was applied last serves. Raises DeployError."""
        console.print(f"waiting for rayservice/{self._cell} ...")
        deadline, shown, looks = time.monotonic() + self._patience_s + _PODS_S, "", 0
        while looks < _LOOKS:
            lacking = self._lacking()
            looks = looks + 1 if lacking == shown and (not lacking or lacking.startswith(_FAILED)) else 0
            if lacking and lacking != shown:
                console.print(f"  {lacking}")
            shown = lacking
            if time.monotonic() > deadline and lacking:
                raise DeployError(f"rayservice/{self._cell}: not ready in time: {lacking}")
            time.sleep(_POLL_S)
        if shown:
            raise DeployError(shown)

    def _lacking(self) -> str:
        """What is still to happen until what was applied last serves; empty: nothing. Raises DeployError."""
        service = self._service()
        status = service.get("status", {})
        if status.get("observedGeneration", 0) < service["metadata"]["generation"]:
            return "KubeRay has not seen the change yet"
        active = status.get("activeServiceStatus", {})
        made = {one["metadata"]["name"]: _rollout_of(one) for one in self._clusters()}
        if made.get(active.get("rayClusterName")) != _rollout_of(service) or len(made) > 1:
            return f"Ray clusters: {', '.join(made) or 'none'}; the new one does not serve alone yet"
        states = {name: one["status"] for name, one in active.get("applicationStatuses", {}).items()}
        if failed := [name for name, state in states.items() if state == "DEPLOY_FAILED"]:
            message = active["applicationStatuses"][failed[0]].get("message", "")
            return f"{_FAILED} {failed[0]!r} cannot run: {message}"
        expected = [one["name"] for one in yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]]
        waits = [f"{name}: {states.get(name, 'missing').lower()}" for name in expected if states.get(name) != "RUNNING"]
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ()))
        return ", ".join(waits) or ("" if ready else "no gateway is ready")

    def _service(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask("get", f"rayservice/{self._cell}", "--output=json"))
        return found

    def _clusters(self) -> list[dict[str, Any]]:
        """The Ray clusters that KubeRay has made for the cell, but those that end."""
        label = f"ray.io/originated-from-cr-name={self._cell}"
        found = json.loads(self.ask("get", "rayclusters", f"--selector={label}", "--output=json"))["items"]
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    def down(self, applied: Applied) -> None:
        """Raises DeployError."""
        self._delete([f"rayservice/{self._cell}", *removed_objects(applied.files, {})])
        console.print(
            f"left: the Secret {self._secret!r} and the volume claims of namespace {self._deploy.namespace!r}"
        )
        self.record.write(Applied())

    def _delete(self, objects: Sequence[str]) -> None:
        for one in objects:
            console.print(self.ask("delete", one, "--ignore-not-found", "--wait").strip())

    def _secret_object(self, content: CellSecrets) -> Mapping[str, Any]:
        keys = json.dumps({name: list(of) for name, of in content.tenant_keys.items()}, sort_keys=True)
        texts = {SECRET_FILE: content.secret, TOKEN_KEY: content.ray_token, KEYS_FILE: keys}
        metadata = {"name": self._secret, "namespace": self._deploy.namespace}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "stringData": texts}

    def apply_object(self, content: Mapping[str, Any]) -> None:
        """By standard input: nothing of it stands in a file or on a command line."""
        self.ask("apply", "--server-side", f"--field-manager={_MANAGER}", "-f", "-", body=json.dumps(content))

    def ask(self, *arguments: str, body: str | None = None) -> str:
        try:
            command = [*self._kubectl, *arguments]
            done = subprocess.run(command, input=body or "", capture_output=True, text=True, check=False)
        except OSError as error:
            raise DeployError(f"kubectl: cannot be run: {error.strerror}") from error
        if done.returncode:
            raise DeployError(f"kubectl {arguments[0]}: {done.stderr.strip()[:500]}")
        return done.stdout
