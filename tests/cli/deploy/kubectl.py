#!/usr/bin/env python3
"""A stand-in for `kubectl` in a cluster with KubeRay, as far as `raylane deploy` uses both: objects are in a file, and
after each look KubeRay is one step further. What it does was read in KubeRay's `rayservice_controller.go` (v1.7).

One deployment starts it dozens of times, so each call imports only what it needs."""

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(os.environ["FAKE_CLUSTER"])
ROLLOUT = "raylane.io/rollout"


def step(state: dict[str, Any]) -> None:
    """What KubeRay does next."""
    service, clusters = state.get("service"), state["clusters"]
    if service is None:
        return
    status, wanted = service.setdefault("status", {}), service["metadata"]["annotations"][ROLLOUT]
    active = status.setdefault("activeServiceStatus", {})
    beside = service["spec"]["upgradeStrategy"]["type"] == "NewCluster"
    if status.get("observedGeneration") != service["metadata"]["generation"]:
        import yaml

        status["observedGeneration"] = service["metadata"]["generation"]
        names = [one["name"] for one in yaml.load(service["spec"]["serveConfigV2"], yaml.CSafeLoader)["applications"]]
        state["next"] = {name: {"status": "DEPLOYING"} for name in names}
        active.setdefault("applicationStatuses", state["next"])  # those of before once more
    elif state.get("next"):
        active["applicationStatuses"] = state.pop("next")
    elif not clusters or (beside and wanted not in clusters.values()):
        state["made"] += 1
        clusters[f"{service['metadata']['name']}-{state['made']}"] = wanted
    elif active.get("rayClusterName") != max(clusters):
        active["rayClusterName"] = max(clusters)
    elif len(clusters) > 1:
        del clusters[min(clusters)]
    else:
        for one in active["applicationStatuses"].values():
            one |= {"status": os.environ.get("FAKE_STATUS", "RUNNING"), "message": "no such model"}
        status["conditions"] = [{"type": "Ready", "status": "True"}]


def forward() -> None:
    """Answers as Ray's head does, from files, until it is ended."""
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Head(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = "nodes" if self.path.startswith("/api/v0/nodes") else "applications"
            body = (HERE / f"{name}.json").read_bytes()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    if not (HERE / "nodes.json").exists():
        sys.exit('Error from server (NotFound): services "team-eu-head-svc" not found')
    with HTTPServer(("127.0.0.1", 0), Head) as server:
        print(f"Forwarding from 127.0.0.1:{server.server_port} -> 8265", flush=True)
        server.serve_forever()


def main(arguments: list[str]) -> None:
    file = HERE / "state.json"
    state: dict[str, Any] = {"clusters": {}, "made": 0, "log": []}
    if file.exists():
        state = json.loads(file.read_text())
    arguments = arguments[arguments.index("--namespace") + 2 :]
    maps, others = state.setdefault("maps", {}), state.setdefault("others", [])
    if arguments[0] in ("apply", "create"):
        import yaml

        text = sys.stdin.read() if arguments[-1] == "-" else Path(arguments[-1]).read_text()
        for one in yaml.load_all(text, yaml.CSafeLoader):
            if one["kind"] == "ConfigMap":
                if arguments[0] == "create" and one["metadata"]["name"] in maps:
                    sys.exit("already exists")
                maps[one["metadata"]["name"]] = one
            if one["kind"] in ("Ingress", "NetworkPolicy", "PersistentVolumeClaim", "PodDisruptionBudget"):
                others += {f"{one['kind'].lower()}/{one['metadata']['name']}"} - {*others}
            if one["kind"] == "Secret":
                state["secret"] = one["stringData"]
            if one["kind"] == "RayService":
                old = state.get("service", {"metadata": {"generation": 0}, "spec": None})
                generation = old["metadata"]["generation"] + (one["spec"] != old["spec"])
                state["service"] = {**one, "status": old.get("status", {})}
                state["service"]["metadata"]["generation"] = generation
    elif arguments[0] == "port-forward":
        forward()
    elif arguments[1].startswith("secret/"):
        if "secret" in state:
            data = {key: base64.b64encode(text.encode()).decode() for key, text in state["secret"].items()}
            print(json.dumps({"data": data}))
    elif arguments[1].startswith("configmap/"):
        name = arguments[1].split("/")[1]
        if arguments[0] == "delete":
            del maps[name]
        elif name in maps:
            print(json.dumps(maps[name]))
    elif arguments[0] == "delete" and arguments[1].startswith("rayservice/"):
        state |= {"clusters": {}}
        del state["service"]
    elif arguments[0] == "delete" and not arguments[1].startswith("raycluster/"):
        state["others"] = [one for one in others if one not in arguments]
    elif arguments[0] == "delete":
        state["log"].append(arguments[1])
        del state["clusters"][arguments[1].split("/")[1]]
        state["service"]["status"]["conditions"] = []
    elif arguments[1] == "rayclusters":
        items = [{"metadata": {"name": n, "annotations": {ROLLOUT: of}}} for n, of in state["clusters"].items()]
        print(json.dumps({"items": items}))
    elif arguments[1].startswith("rayservice/"):
        if "service" not in state and "--ignore-not-found" in arguments:
            return
        if "service" not in state:
            sys.exit("not found")
        print(json.dumps(state["service"]))
        step(state)
    file.write_text(json.dumps(state))


main(sys.argv[1:])
