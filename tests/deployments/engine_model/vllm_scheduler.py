"""vLLM's own scheduler, driven as its engine core drives it, without an engine: `v1/engine/core.py`, `step` and
`step_with_batch_queue`. Steps take as long as our cost model says."""

import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from deployments.engine_model.cost_model import Chunk, CostModel
from deployments.engine_model.limits import EngineModelLimits, Speculation
from deployments.engine_model.speculation import accepted
from tests.deployments.engine_model.scripts import Record, Script, Step

_CONTEXT = 100_000
_STOP = 7
"""The token that ends an answer by itself."""


def scheduler_of(limits: EngineModelLimits, folder: Path) -> Scheduler:
    """vLLM's scheduler for an engine of these limits. `folder` is for a model's configuration."""
    if not (folder / "config.json").exists():
        model = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": _CONTEXT}
        model |= {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
        model |= {"num_hidden_layers": 1, "vocab_size": 1_000, "torch_dtype": "float32"}
        (folder / "config.json").write_text(json.dumps(model))
    model_config = ModelConfig(
        model=str(folder), tokenizer=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=_CONTEXT
    )
    config = VllmConfig(
        model_config=model_config,
        scheduler_config=SchedulerConfig(
            max_num_seqs=limits.sequences,
            max_num_batched_tokens=limits.step_tokens,
            max_model_len=_CONTEXT,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=limits.long_prefill_tokens,
            policy="priority",
            async_scheduling=limits.async_scheduling and limits.speculation is None,
        ),
        speculative_config=None if limits.speculation is None else _by_ngrams(model_config, limits.speculation),
        cache_config=CacheConfig(block_size=limits.block_tokens, enable_prefix_caching=limits.prefix_caching),
    )
    config.scheduler_config.enable_chunked_prefill = limits.chunked_prefill
    config.scheduler_config.async_scheduling = limits.async_scheduling
    blocks = limits.kv_tokens // limits.block_tokens + 1  # one is never used
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=limits.block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kind = AsyncScheduler if limits.async_scheduling else Scheduler
    scheduler = kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=limits.block_tokens,
    )
    if limits.speculation is not None:
        scheduler.num_lookahead_tokens = limits.speculation.lookahead  # as a draft model has it
    return scheduler


def _by_ngrams(model: ModelConfig, speculation: Speculation) -> SpeculativeConfig:
    """The one method that needs no weights; the scheduler knows of others by their lookahead alone."""
    return SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=len(speculation.acceptance),
        prompt_lookup_min=1,
        prompt_lookup_max=2,
        target_model_config=model,
        target_parallel_config=ParallelConfig(),
    )


class VllmRun:
    """One run of scripted requests through vLLM's scheduler."""

    def __init__(self, limits: EngineModelLimits, cost: CostModel, folder: Path) -> None:
        self.record = Record()
        self._cost = cost
        self._speculation, self._async = limits.speculation, limits.async_scheduling
        self._scheduler = scheduler_of(limits, folder)
        self._depth = 2 if limits.async_scheduling else 1
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(limits.block_tokens, sha256) if limits.prefix_caching else None
        self._coming: list[tuple[float, int, Script]] = []
        self._made = 0
        self._decoding: set[int] = set()
        self._preempted: set[int] = set()
        self._drafts = deque[dict[int, int]]()
        """Of each step that runs: the sequences that decode, and how many drafted tokens of theirs it verifies."""

    def run(self, requests: list[tuple[float, Script]]) -> Record:
        """Until all requests, and those that follow them, have ended."""
        for at_s, script in requests:
            self._come(at_s, script)
        queue, now, ready_s = deque[tuple[SchedulerOutput, float, set[int]]](), -1.0, 0.0
        scheduler = self._scheduler
        while self._coming or scheduler.has_unfinished_requests() or queue:
            if not scheduler.has_unfinished_requests() and not queue and self._coming[0][0] > now:
                now = self._coming[0][0]
                self._add(*self._coming.pop(0))  # one that finds the engine idle begins at once, alone
            else:
                while self._coming and self._coming[0][0] <= now:
                    self._add(*self._coming.pop(0))
            if scheduler.has_unfinished_requests():
                output = scheduler.schedule()
                ready_s, whole = self._execute(output, max(now, ready_s))
                queue.append((output, ready_s, whole))
                if len(queue) < self._depth and output.num_scheduled_tokens:
                    continue
            if queue:
                output, ends_s, whole = queue.popleft()
                now = max(now, ends_s)
                self._complete(output, whole, now)
        return self.record

    def _come(self, at_s: float, script: Script) -> None:
        self._made += 1
        self._coming.append((at_s, self._made, script))
        self._coming.sort(key=lambda one: one[:2])

    def _add(self, at_s: float, _: int, script: Script) -> None:
        number = len(self.record.arrived)
        self.record.arrived.append((at_s, script))
        sampling = SamplingParams(
            max_tokens=script.output + (1_000 if script.open_ended else 0), stop_token_ids=[_STOP]
        )
        self._scheduler.add_request(
            Request(
                request_id=str(number),
                prompt_token_ids=list(script.tokens[: script.prompt]),
                sampling_params=sampling,
                pooling_params=None,
                arrival_time=float(number),
                priority=script.priority,
                block_hasher=self._hasher,
            )
        )

    def _execute(self, output: SchedulerOutput, began_s: float) -> tuple[float, set[int]]:
        """A step runs. Returns when it ends, and the sequences that it samples for."""
        scheduler, cost_of = self._scheduler, self._cost.step_s
        preempted = {int(name) for name in output.preempted_req_ids or ()}
        self._decoding -= preempted
        self._preempted |= preempted
        if not output.num_scheduled_tokens:
            return began_s, set()
        tokens = {int(name): count for name, count in output.num_scheduled_tokens.items()}
        past = {number: scheduler.requests[str(number)].num_computed_tokens - count for number, count in tokens.items()}
        whole = {number for number in tokens if not scheduler.requests[str(number)].is_prefill_chunk}
        decodes = [number for number in tokens if number in self._decoding]
        verified = {int(name): len(drafts) for name, drafts in output.scheduled_spec_decode_tokens.items()}
        chunks = [
            Chunk(tokens[number] - verified.get(number, 0), past[number])
            for number in tokens
            if number not in self._decoding
        ]
        read = sum(past[number] for number in decodes)
        took_s = cost_of(chunks, len(decodes), read, len(whole) - len(decodes), sum(verified.values()))
        self._drafts.append({number: verified.get(number, 0) for number in decodes})
        self.record.steps.append(Step(began_s, tokens, frozenset(self._preempted), dict(self._found(output))))
        self._preempted.clear()
        self._decoding |= whole
        return began_s + took_s, whole

    @staticmethod
    def _found(output: SchedulerOutput) -> Iterator[tuple[int, int]]:
        for new in output.scheduled_new_reqs:
            yield int(new.req_id), new.num_computed_tokens
        again = output.scheduled_cached_reqs
        for name, computed in zip(again.req_ids, again.num_computed_tokens, strict=True):
            if name in again.resumed_req_ids:
                yield int(name), computed

    def _complete(self, output: SchedulerOutput, whole: set[int], now: float) -> None:
        names = list(output.num_scheduled_tokens)
        drafts = self._drafts.popleft() if names else {}
        sampled = [
            self._next_tokens(int(name), drafts.get(int(name), 0)) if int(name) in whole else [] for name in names
        ]
        self._scheduler.update_from_output(
            output, ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, sampled)
        )
        if self._speculation is not None and names and not self._async:
            proposed = [[1] * len(self._speculation.acceptance) for _ in names]
            self._scheduler.update_draft_token_ids(DraftTokenIds(names, proposed))
        for number in map(int, names):
            if str(number) not in self._scheduler.requests and number not in self.record.finished_s:
                self.record.finished_s[number] = now
                script = self.record.arrived[number][1]
                if script.then is not None:
                    self._come(now + script.after_s, script.then)

    def _next_tokens(self, number: int, drafted: int) -> list[int]:
        request = self._scheduler.requests.get(str(number))
        if request is None:
            return [0]
        script = self.record.arrived[number][1]
        count = 1
        if self._speculation is not None:
            count += min(drafted, accepted(self._speculation, number + 1, request.num_tokens - script.prompt))
        last = len(script.tokens) - 1
        return [
            _STOP if place == last and script.open_ended else script.tokens[min(place, last)]
            for place in range(request.num_tokens, request.num_tokens + count)
        ]
