"""A Terraform provider that knows the schema of AWS's and nothing else, for `terraform validate` and `terraform test`
where the provider itself cannot be downloaded.

It serves the schema that `tf_check.py` reads, over Terraform's plugin protocol 5, on a Unix socket; Terraform is told
of it by TF_REATTACH_PROVIDERS. That schema lists arguments only, so `COMPUTED` adds what modules read. Values come from
`mock_provider` in a test file: nothing here plans or applies.

    python -m tests.infra.schema_provider SCHEMA.json.gz SOCKET TYPE...      prints the value of TF_REATTACH_PROVIDERS

It knows the named resource types and data sources, and all of them without a name; fewer are read faster.
"""

import gzip
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

COMPUTED = {
    "": ("id", "arn"),
    "aws_kms_key": ("key_id",),
    "aws_launch_template": ("latest_version",),
    "aws_eip": ("public_ip",),
    "aws_lb": ("arn_suffix", "dns_name", "zone_id"),
    "aws_lb_target_group": ("arn_suffix",),
    "aws_vpc_endpoint": ("prefix_list_id",),
    "aws_caller_identity": ("account_id",),
    "aws_region": ("region",),
    "aws_partition": ("partition",),
}
_NUMBERS = ("latest_version",)
_TYPES = {"string": '"string"', "number": '"number"', "boolean": '"bool"', "set": '["set","string"]'}
_TYPES |= {"list": '["list","string"]', "map": '["map","string"]', "any": '"string"'}
_NESTING = {"struct": 1, "list": 2, "set": 3, "map": 4}
_PROVIDER = {"a": {"region": [0, "string"]}, "b": {"default_tags": [0, "list", {"a": {"tags": [0, "map"]}, "b": {}}]}}
"""The provider's own block, which the schema file lacks, as far as our regions use it."""


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes | str | int) -> bytes:
    """One field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def attribute(name: str, kind: str, *, required: bool = False, optional: bool = False, computed: bool = False) -> bytes:
    flags = [field(number, 1) for number, holds in ((4, required), (5, optional), (6, computed)) if holds]
    return field(2, field(1, name) + field(2, _TYPES[kind]) + b"".join(flags))


def block(node: dict[str, Any], computed: tuple[str, ...] = ()) -> bytes:
    """A block: its arguments, what the provider computes, and the blocks within."""
    parts = [
        attribute(name, kind, required=bool(needed), optional=not needed, computed=not needed and name in computed)
        for name, (needed, kind) in node["a"].items()
    ]
    parts += [
        attribute(name, "number" if name in _NUMBERS else "string", computed=True)
        for name in sorted({*computed} - node["a"].keys())
    ]
    for name, rule in node["b"].items():
        inner = block(rule[2] or {"a": {}, "b": {}})
        least = field(4, 1) if rule[0] and rule[1] in ("list", "set") else b""
        parts.append(field(3, field(1, name) + field(2, inner) + field(3, _NESTING[rule[1]]) + least))
    return b"".join(parts)


def schema_message(schema: dict[str, Any]) -> bytes:
    def entries(number: int, table: dict[str, Any]) -> Iterator[bytes]:
        for name, node in table.items():
            body = field(2, block(node, (*COMPUTED[""], *COMPUTED.get(name, ()))))
            yield field(number, field(1, name) + field(2, body))

    provider = field(1, field(2, block(_PROVIDER)))
    return provider + b"".join(entries(2, schema["resources"])) + b"".join(entries(3, schema["data"]))


class Provider(grpc.GenericRpcHandler):
    """Answers what Terraform asks before it plans; what it does not know is UNIMPLEMENTED."""

    def __init__(self, schema: dict[str, Any]) -> None:
        answer = schema_message(schema)
        self._methods: dict[str, Callable[[bytes, Any], bytes]] = {
            "/tfplugin5.Provider/GetSchema": lambda request, _: answer,
            # Field 1 of both is the configuration.
            "/tfplugin5.Provider/PrepareProviderConfig": lambda request, _: request,
            "/tfplugin5.Provider/ValidateResourceTypeConfig": lambda request, _: b"",
            "/tfplugin5.Provider/ValidateDataSourceConfig": lambda request, _: b"",
            "/tfplugin5.Provider/Stop": lambda request, _: b"",
        }

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = self._methods.get(call.method)
        return None if method is None else grpc.unary_unary_rpc_method_handler(method)


def main(schema_file: str, socket: str, *types: str) -> None:
    whole = json.loads(gzip.decompress(Path(schema_file).read_bytes()))
    tables = {table: whole[table] for table in ("resources", "data")}
    schema = {
        table: {name: node for name, node in known.items() if not types or name in types}
        for table, known in tables.items()
    }
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((Provider(schema),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    address = {"Network": "unix", "String": socket}
    facts = {"Protocol": "grpc", "ProtocolVersion": 5, "Pid": os.getpid(), "Test": True, "Addr": address}
    print(json.dumps({"registry.terraform.io/hashicorp/aws": facts}), flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.stop(None)


if __name__ == "__main__":
    main(*sys.argv[1:])
