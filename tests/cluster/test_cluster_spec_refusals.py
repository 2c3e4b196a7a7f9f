"""What is no cluster spec is refused, by the key, the value and what is allowed."""

import pytest

from cluster.spec import SpecError, parse_spec
from tests.cluster.test_cluster_spec import HEAD, MODELS


def problem(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    assert len(caught.value.problems) == 1, caught.value.problems
    return caught.value.problems[0]


KEY = "sha256:" + "0" * 64
REFUSED = [
    ("artifacts: {cache: ~models/x}", "artifacts.cache = '~models/x': allowed: a text of the form ^(/|~/|~$)"),
    ("starts: {compile_cache: ~x}", "starts.compile_cache = '~x': allowed: a text of the form ^(/|~/|~$)"),
    ("ladder: [{rung: shed, classes: [x]}]", "ladder.classes = 'x': unknown; allowed: interactive, completion, batch"),
    ("ladder: [{rung: clamp, classes: [batch]}]", "max_tokens = None: allowed: a number for `clamp`"),
    ("ladder: [{rung: shed, classes: [batch], max_tokens: 9}]", "max_tokens = 9: allowed: a number for `clamp`"),
    ("ladder: [{rung: shed, classes: [batch, batch]}]", "ladder: 'shed:batch' appears twice"),
    ("ladder: [{rung: shed, classes: [batch, interactive, completion]}]", "ladder: sheds all classes; needed: one"),
    ("gateway: {port: 0}", "gateway.port = 0: allowed: a whole number, 1 to 65535"),
    ("gateway: {root_path: /v1}", "'/v1': allowed: a path that does not begin with /v1 or /raylane"),
    ("gateway: {pool: x}", "gateway.pool: 'x' is unknown in r; allowed: p"),
    ("gateway: {root_path: llm}", "gateway.root_path = 'llm'"),
    ("gateway: {port: 70000}", "gateway.port = 70000: allowed: a whole number, 1 to 65535"),
    ("gateway: {port: true}", "gateway.port = True: allowed: a whole number, 1 to 65535"),
    ("gateway: {port: http}", "gateway.port = 'http': allowed: a whole number, 1 to 65535"),
    ("gateway: {port: null}", "gateway.port = None: allowed: a whole number, 1 to 65535"),
    ("gateway: {port: 8000.5}", "gateway.port = 8000.5: allowed: a whole number, 1 to 65535"),
    ("gateway: {cache: {max_bytes: 10}}", "gateway.cache.max_bytes = 10: allowed: a whole number, 1048576 to"),
    ("gateway: {cache: {semantic: {model: m, serve: true}}}", "serve = true without `threshold`: needed: one"),
    (
        "gateway: {cache: {semantic: {model: m}}}",
        "gateway.cache.semantic.model = 'm': allowed: a model whose task is 'embed', in all regions of those that "
        "generate (there is none)",
    ),
    (
        "gateway: {timeouts: {total_s: .nan}}",
        "gateway.timeouts.total_s = nan: allowed: a number, above 0, at most 86400",
    ),
    ("gateway: {timeouts: {total_s: -1}}", "gateway.timeouts.total_s = -1: allowed: a number, above 0, at most 86400"),
    ("gateway: {timeouts: {between_bytes_s: 700}}", "between_bytes_s = 700: allowed: at most total_s = 600"),
    ("gateway: {host: localhost}", "gateway.host = 'localhost': 'localhost' is not an IP address; allowed: 127.0.0.1"),
    (
        "gateway: {host: 0.0.0.0}",
        "host 0.0.0.0 is reachable from other machines; allowed: a loopback address, or set allow_public: true",
    ),
    ("gateway: {host: '::'}", "host :: is reachable from other machines; allowed: a loopback address"),
    ("gateway: {access_log: 5}", "gateway.access_log = 5: allowed: true, false"),
    ("tracing: {ratio: 0.5}", "tracing.endpoint: missing"),
    (
        "tracing: {endpoint: 'http://127.0.0.1:4318'}",
        "tracing.endpoint = 'http://127.0.0.1:4318': allowed: a text of the",
    ),
    (
        "tracing: {endpoint: 'http://a:b@c/v1/traces'}",
        "tracing.endpoint = 'http://a:b@c/v1/traces': allowed: a text of",
    ),
    ("tracing: {endpoint: 'http://c/v1/traces', ratio: 2}", "tracing.ratio = 2: allowed: a number, 0 to 1"),
    ("gateway: {trace_file: 5}", "gateway.trace_file = 5: allowed: a text or null"),
    (
        "gateway: {limits: {max_body_bytes: 10}}",
        "gateway.limits.max_body_bytes = 10: allowed: a whole number, 1024 to 1073741824",
    ),
    (
        "gateway: {tiemouts: 5}",
        "gateway.tiemouts = 5: unknown key; allowed: a mapping of host, port, allow_public, timeouts",
    ),
    ("gateway: [1]", "gateway = [1]: allowed: a mapping of host, port"),
    ("extra: 1", "extra = 1: unknown key; allowed: a mapping of version, name, regions, models"),
    ("version: 2", "version = 2: allowed: 1"),
    ("autoscaling: {policy: Magic!}", "autoscaling.policy = 'Magic!': allowed:"),
    ("autoscaling: {policy: backlog}", "models.m.replicas.max: missing; autoscaling.policy = 'backlog' needs"),
    ("lanes: []", "lanes = []: allowed: a list of at least 1"),
    ("classes: [{name: a, ttft_ms: 0}]", "classes.0.ttft_ms = 0: allowed: a number, above 0, at most 3600000"),
    (
        "classes: [{name: a}]",
        "classes.0.ttft_ms: missing, and it has no default; allowed: a number, above 0, at most 3600000",
    ),
    ("classes: [{name: a, ttft_ms: 1}, {name: a, ttft_ms: 2}]", "classes: 'a' appears twice; names must be unique"),
    ("classes: [{name: A B, ttft_ms: 1}]", "classes.0.name = 'A B': allowed: a text of the form ^[a-z0-9]"),
    (
        "lanes: [{name: a, up_to_tokens: 5}]",
        "lanes.up_to_tokens = [5]: allowed: ascending bounds, and none for the last lane alone",
    ),
    (
        "lanes: [{name: a, up_to_tokens: 5}, {name: b, up_to_tokens: 4}, {name: c}]",
        "lanes.up_to_tokens = [5, 4, None]: allowed: ascending",
    ),
    (
        "lanes: [{name: a, up_to_tokens: 5}, {name: b, up_to_tokens: 5}, {name: c}]",
        "lanes.up_to_tokens = [5, 5, None]: allowed: ascending",
    ),
    ("lanes: [{name: promoted}]", "lanes.name = 'promoted': allowed: any other name"),
    ("lanes: [{name: a}, {name: b}]", "lanes.up_to_tokens = [None, None]: allowed: ascending bounds"),
    ("scheduling: {promoted_share: 1}", "scheduling.promoted_share = 1: allowed: a number, above 0, below 1"),
    ("scheduling: {order: random}", "scheduling.order = 'random': allowed: shortest, arrival"),
    ("gateway: {host: 0.0.0.0, allow_public: true}", "gateway.allow_public = true: allowed only with tenants"),
    ("tenants: [{name: t, keys: []}]", "tenants.0.keys = []: allowed: a list of at least 1"),
    ("tenants: [{name: t, keys: [secret]}]", "tenants.0.keys.0 = 'secret': allowed: a text of the form ^sha256:"),
    (
        f"tenants: [{{name: t, keys: ['{KEY}'], classes: [gold]}}]",
        "tenants.t.classes = 'gold': unknown; allowed: interactive, completion, batch",
    ),
    (f"tenants: [{{name: t, keys: ['{KEY}']}}, {{name: u, keys: ['{KEY}']}}]", "appears twice; names must be unique"),
    (
        f"tenants: [{{name: t, keys: ['{KEY}'], max_concurrency: 0}}]",
        "tenants.0.max_concurrency = 0: allowed: a whole number, 1 to 1000000",
    ),
]


@pytest.mark.parametrize(("text", "reported"), REFUSED)
def test_refusals_name_key_value_and_range(text: str, reported: str) -> None:
    assert reported in problem(HEAD + MODELS + text)


MODEL = "{name: %s, source: s, settings: {max_model_len: 99%s}%s}"
REFUSED_MODELS = [
    ("5", "models.0 = 5: allowed: a mapping of name, source"),
    ("{name: m, settings: {max_model_len: 100}}", "models.0.source: missing, and it has no default; allowed: a text"),
    (
        "{name: m, source: s}",
        "models.0.settings: missing, and it has no default; allowed: a mapping of dtype, quantization",
    ),
    (
        "{name: m, source: s, settings: {max_model_len: 8}}",
        "models.0.settings.max_model_len = 8: allowed: a whole number, 16 to 10485760",
    ),
    (MODEL % ("a b", "", ""), "models.0.name = 'a b': allowed: a text of the form"),
    (MODEL % ("m-simulated", "", ""), "name = 'm-simulated': allowed: a name that does not end in -simulated"),
    (MODEL % ("m-simulated", "", ", engine: simulated"), "engine = 'simulated' without a `simulated` section"),
    (
        MODEL % ("m-simulated", "", ", task: embed, engine: simulated, simulated: {costs: c}"),
        "task: embed: not supported with engine = 'simulated'",
    ),
]
REFUSED_SETTINGS = [
    ("extra: {max_num_seqs: 4}", "max_num_seqs = 4: allowed: beside `extra`, as the key settings.max_num_seqs"),
    ("extra: {port: 1}", "port = 1: set by raylane; allowed: another argument of vLLM"),
    ("max_lora_rank: 20", "max_lora_rank = 20: allowed: 1, 8, 16, 32, 64, 128, 256, 320, 512"),
    ("max_num_batched_tokens: 128", "settings.max_num_batched_tokens = 128: allowed: at least max_num_seqs = 256"),
    (
        "max_num_batched_tokens: 64, max_num_seqs: 8, chunked_prefill: false",
        "settings.max_num_batched_tokens = 64: allowed without chunked_prefill: at least max_model_len = 99",
    ),
    ("dtype: int8", "settings.dtype = 'int8': allowed: auto, bfloat16, float16, float32"),
    ("kv_cache_memory_bytes: 5", "= 5: allowed: a whole number, 1048576 to 4398046511104 or null"),
    (
        "kv_cache_memory_bytes: 102254581055488",
        "models.0.settings.kv_cache_memory_bytes = 102254581055488: allowed: a whole number, 1048576 to 4398046511104",
    ),
    ("tensor_parallel_size: 17", "= 17: allowed: a whole number, 1 to 16"),
    ("speculative: {method: eagle}", "method 'eagle' needs `model`"),
    ("stream_interval: 0", "models.0.settings.stream_interval = 0: allowed: a whole number, 1 to 4096"),
]
REFUSED_KEYS = [
    (
        "groups: [{name: g, settings: {max_num_seqs: 4096}}]",
        "groups.g: settings.max_num_batched_tokens = 2048: allowed: at least max_num_seqs = 4096",
    ),
    ("replicas: {count: -1}", "replicas.count = -1: allowed: a whole number, 0 to 10000"),
    ("replicas: {count: 1, min: 5}", "min = 5 with count = 1: allowed: with `max`, or min = count"),
    ("replicas: {count: 2, min: 0}", "min = 0 with count = 2: allowed: with `max`, or min = count"),
    ("replicas: {count: yes}", "replicas.count = True: allowed: a whole number, 0 to 10000"),
    ("regions: [q]", "models.m.regions = 'q': unknown; allowed: r"),
    ("regions: []", "models.0.regions = []: allowed: a list of at least 1"),
    ("regions: [r, r]", "models.m.regions: 'r' appears twice; names must be unique"),
    ("groups: [{name: g, regions: []}]", "models.0.groups.0.regions = []: allowed: a list of at least 1"),
    ("groups: [{name: g, regions: [r, r]}]", "models.m.groups.g.regions: 'r' appears twice; names must be unique"),
    ("pool: q", "models.m.pool: 'q' is unknown; allowed: p"),
    ("adapters: [{name: m, source: t}]", "'m' appears twice"),
    ("simulated: {costs: c}", "engine = 'vllm' with a `simulated` section: set"),
    ("engine: tpu", "models.0.engine = 'tpu': allowed: vllm, simulated"),
    ("engine: simulated, simulated: {costs: c}", "a name that ends in -simulated"),
]
REFUSED_MODELS += [(MODEL % ("m", f", {settings}", ""), reported) for settings, reported in REFUSED_SETTINGS]
REFUSED_MODELS += [(MODEL % ("m", "", f", {key}"), reported) for key, reported in REFUSED_KEYS]


@pytest.mark.parametrize(
    ("more", "reported"),
    [
        ("aliases: [n]", "models (with aliases and adapters): 'n' appears twice; names must be unique"),
        ("aliases: [x-simulated]", "aliases = 'x-simulated': allowed: names that end in -simulated for simulated"),
        ("fallback: [{to: m}]", "models.m.fallback.to = 'm': allowed: another model with `task: generate` on the same"),
        ("fallback: [{to: e}]", "in all regions of this one: n"),
        ("fallback: [{to: n, classes: [x]}]", "models.m.fallback.classes = 'x': unknown; allowed: interactive"),
    ],
)
def test_refused_names_and_routes(more: str, reported: str) -> None:
    models = [MODEL % ("m", "", f", {more}"), MODEL % ("n", "", ""), MODEL % ("e", "", ", task: embed")]
    assert reported in problem(f"{HEAD}models: [{', '.join(models)}]")


def test_an_encoder_runs_wherever_a_model_generates() -> None:
    head = "name: x\nregions: [{name: r, pools: [{name: p}]}, {name: q, pools: [{name: p}]}]\n"
    cache = "gateway: {cache: {semantic: {model: e}}}"
    encoder = MODEL % ("e", "", ", task: embed, regions: [r]")
    reported = problem(f"{head}models: [{MODEL % ('m', '', '')}, {encoder}]\n{cache}")
    assert "'embed', in all regions of those that generate (there is none)" in reported
    parse_spec(f"{head}models: [{MODEL % ('m', '', ', regions: [r]')}, {encoder}]\n{cache}")


@pytest.mark.parametrize(("model", "reported"), REFUSED_MODELS)
def test_refused_models(model: str, reported: str) -> None:
    assert reported in problem(f"{HEAD}models: [{model}]")


def test_a_model_that_no_node_can_hold() -> None:
    regions = "name: x\nregions: [{name: r, pools: [{name: g, accelerator: L4, gpus_per_node: 2}]}]\n"
    reported = problem(
        regions + "models: [{name: m, source: s, settings: {max_model_len: 99, tensor_parallel_size: 4}}]"
    )
    assert "models.m.settings.tensor_parallel_size = 4" in reported
    assert "allowed: 1 to 2" in reported


def test_a_pipeline_that_no_node_can_hold() -> None:
    regions = "name: x\nregions: [{name: r, pools: [{name: g, accelerator: L4, gpus_per_node: 4}]}]\n"
    settings = "{max_model_len: 99, tensor_parallel_size: 2, pipeline_parallel_size: 4}"
    reported = problem(f"{regions}models: [{{name: m, source: s, settings: {settings}}}]")
    assert "tensor_parallel_size = 2, pipeline_parallel_size = 4: no node of r has so many GPUs" in reported
    assert "allowed: 1 to 4 in all" in reported


def test_ranks_on_cpus_share_the_cores_of_a_replica() -> None:
    regions = "name: x\nregions: [{name: r, pools: [{name: p}]}]\n"
    settings = "max_model_len: 99, tensor_parallel_size: 8"
    model = "{name: m, source: s, settings: {%s}}"
    reported = problem(f"{regions}models: [{model % settings}]")
    assert "models.m.settings.tensor_parallel_size = 8: a replica books fewer cores (settings.cpus)" in reported
    assert "allowed: 1 to 1" in reported
    parse_spec(f"{regions}models: [{model % (settings + ', cpus: 8')}]")


def test_a_pool_has_the_cores_of_a_replica() -> None:
    def spec(cpus: int) -> str:
        pools = "{name: small, cpus_per_node: 4}, {name: large, cpus_per_node: 64}"
        model = f"{{name: m, source: s, settings: {{max_model_len: 99, cpus: {cpus}}}}}"
        return f"name: x\nregions: [{{name: r, pools: [{pools}]}}]\nmodels: [{model}]"

    fitting = parse_spec(spec(16))
    assert fitting.pool_of(fitting.models[0], fitting.regions[0]).name == "large"
    assert "models.m.settings.cpus = 65: no node of r that could hold it has so many cores" in problem(spec(65))


def test_a_pool_of_gpus_that_are_not_known_and_not_counted() -> None:
    model = "models: [{name: m, source: s, settings: {max_model_len: 99}}]"
    reported = problem(f"name: x\nregions: [{{name: r, pools: [{{name: p, accelerator: H1000}}]}}]\n{model}")
    assert "regions.r.pools.p.gpus_per_node = 0: allowed: 1 to 16, or accelerator: cpu" in reported
    assert "regions.r.pools.p.accelerator: GPU 'H1000' is unknown; allowed: A100-40G, " in reported
    assert "1 to 0" not in reported


def test_several_problems_are_told_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec("regions: 5\nmodels: [{name: m}]\n")
    keys = [line.split(":")[0].split(" =")[0] for line in caught.value.problems]
    assert keys == ["name", "regions", "models.0.source", "models.0.settings"]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("a: [", "is not YAML"),
        ("a: *b", "undefined alias"),
        ("a: 1\na: 2", "key 'a' appears twice"),
        ("gateway: {port: 1, port: 2}", "key 'port' appears twice"),
        ("day: 2024-99-99", "is not YAML"),
        ("? [a]\n: b", "a key must be a text"),
        ("a: !!python/object:os.system {}", "is not YAML"),
        ("a: " + "[" * 1_000, "is not YAML"),
        ("port: 1" + "0" * 5_000, "is not YAML"),
        ("a: \x00", "is not YAML"),
        ("", "must be a mapping of keys at the top level, not NoneType"),
        ("- 1", "must be a mapping of keys at the top level, not list"),
        ("text", "must be a mapping of keys at the top level, not str"),
    ],
)
def test_what_is_no_spec_at_all(text: str, reported: str) -> None:
    assert reported in problem(text)
