"""Every field of vLLM's request classes, and what the gateway makes of it: whatever carries a prompt to an engine is
counted, or refused. A test compares the table with the installed vLLM.

vLLM passes over fields that it does not know, and so does the gateway. `inquiry.py` reads what is counted and refused
from here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from deployments.openai.endpoints import BodyKind


class Effect(StrEnum):
    """What the gateway makes of a field."""

    COUNTED = "counted"
    """A part of the estimate of what the request takes. What no reader of `inquiry.py` knows counts as JSON."""
    HARMLESS = "harmless"
    """Costs nothing that counts, or an amount that is bounded elsewhere."""
    REFUSED = "refused"
    """400, unless it is null, false or empty."""


ALL = frozenset(BodyKind)


@dataclass(frozen=True, slots=True)
class Field:
    """`name`: of a member of the body, or with a dot, of a member of that member. `kinds`: the bodies that it is for;
    all: those that have it. `why`: for whoever reads this table, or gets the refusal."""

    name: str
    effect: Effect
    kinds: frozenset[BodyKind]
    why: str


def _fields(effect: Effect, kinds: frozenset[BodyKind], names: str, why: str) -> tuple[Field, ...]:
    return tuple(Field(name, effect, kinds, why) for name in names.split())


CHAT, CHATS, COMPLETION, RESPONSE = (
    frozenset({kind}) for kind in (BodyKind.CHAT, BodyKind.CHATS, BodyKind.COMPLETION, BodyKind.RESPONSE)
)
MESSAGES, COUNT, TOKENIZER, EMBEDDING = (
    frozenset({kind}) for kind in (BodyKind.MESSAGES, BodyKind.COUNT, BodyKind.TOKENIZER, BodyKind.EMBEDDING)
)
CONVERSATIONS = CHAT | CHATS | MESSAGES | COUNT | TOKENIZER
GENERATING = CHAT | CHATS | COMPLETION | RESPONSE | MESSAGES
COUNTED, HARMLESS, REFUSED = Effect

# vLLM makes a chat of each conversation of a batch, with all other members of the body: CHATS has what CHAT has.
CENSUS: tuple[Field, ...] = (
    *_fields(COUNTED, CONVERSATIONS, "messages", "the prompt"),
    *_fields(COUNTED, COMPLETION | TOKENIZER, "prompt", "the prompt"),
    *_fields(COUNTED, RESPONSE | EMBEDDING, "input", "the prompt"),
    *_fields(COUNTED, TOKENIZER, "tokens", "to detokenize"),
    *_fields(COUNTED, MESSAGES | COUNT, "system", "before the messages"),
    *_fields(COUNTED, RESPONSE, "instructions previous_input_messages", "before the input"),
    *_fields(COUNTED, COMPLETION, "suffix", "after the prompt, for models that fill in the middle"),
    *_fields(COUNTED, CONVERSATIONS | RESPONSE, "tools chat_template_kwargs", "the chat template reads them"),
    *_fields(COUNTED, CHAT | CHATS, "documents", "the chat template reads them"),
    *_fields(COUNTED, CHAT | CHATS | TOKENIZER, "chat_template", "refused by vLLM, unless its operator trusts it"),
    *_fields(COUNTED, CHAT | CHATS | COMPLETION | MESSAGES, "max_tokens", "the output"),
    *_fields(COUNTED, CHAT | CHATS, "max_completion_tokens", "the output"),
    *_fields(COUNTED, RESPONSE, "max_output_tokens", "the output"),
    *_fields(COUNTED, CHAT | COMPLETION, "n", "sequences; of a batch vLLM allows only 1"),

    *_fields(REFUSED, GENERATING, "kv_transfer_params ec_transfer_params vllm_xargs.kv_transfer_params "
             "vllm_xargs.ec_transfer_params", "it is for engines among themselves, and may carry a prompt"),
    *_fields(REFUSED, COMPLETION, "prompt_embeds", "how many tokens they are is not known before they run"),
    *_fields(REFUSED, EMBEDDING, "messages", "texts are sent as input, and vLLM would take these in its place"),
    *_fields(REFUSED, EMBEDDING, "padding", "a padded prompt takes more tokens than it has"),
    *_fields(REFUSED, RESPONSE, "request_id", "the engine would count by it; the header X-Request-Id names a request"),
    *_fields(REFUSED, RESPONSE, "store background previous_response_id", "responses are stateless here"),

    *_fields(HARMLESS, ALL, "model stream user metadata service_tier prompt_cache_key", "names, and how to answer"),
    *_fields(HARMLESS, ALL, "cache_salt priority session_id", "the gateway's or the replica's own count"),
    *_fields(HARMLESS, CHAT | CHATS | COMPLETION | EMBEDDING, "request_id", "the gateway's header comes first"),
    *_fields(HARMLESS, CHATS, "n best_of early_stopping guided_decoding_backend", "1, or of no effect"),
    *_fields(HARMLESS, RESPONSE, "prompt", "a template of the provider's: vLLM refuses it"),
    *_fields(HARMLESS, EMBEDDING, "chat_template chat_template_kwargs", "only messages have a template"),
    *_fields(HARMLESS, ALL, "mm_processor_kwargs media_io_kwargs", "refused by vLLM, unless its operator trusts them"),
    *_fields(HARMLESS, ALL, "truncate_prompt_tokens truncation_side truncation", "a shorter prompt than was counted"),
    *_fields(HARMLESS, ALL, "add_special_tokens add_generation_prompt continue_final_message", "a few tokens"),
    *_fields(HARMLESS, ALL, "temperature top_p top_k min_p seed frequency_penalty presence_penalty repetition_penalty "
             "length_penalty watermarking use_beam_search ignore_eos min_tokens reasoning "
             "reasoning_effort thinking thinking_token_budget parallel_tool_calls max_tool_calls",
             "how tokens are chosen, within those that are counted"),
    *_fields(HARMLESS, ALL, "structured_outputs response_format text output_config tool_choice stop stop_sequences "
             "stop_token_ids bad_words logit_bias allowed_token_ids logprob_token_ids repetition_detection vllm_xargs",
             "no prompt, but for schemas in the templates of very few models; work by its size"),
    *_fields(HARMLESS, ALL, "logprobs top_logprobs prompt_logprobs echo stream_options stream_interval include "
             "include_reasoning include_stop_str_in_output return_token_ids return_tokens_as_token_ids "
             "return_token_offsets return_token_strs return_prompt_text return_mm_kwargs mm_payload "
             "routed_experts_prompt_start skip_special_tokens spaces_between_special_tokens enable_response_messages "
             "encoding_format embed_dtype endianness dimensions use_activation", "what the answer shows"),
)  # fmt: skip


def by_kind(effect: Effect) -> Mapping[BodyKind, Sequence[Field]]:
    """The fields of that effect in each kind of body."""
    return {kind: [field for field in CENSUS if field.effect is effect and kind in field.kinds] for kind in BodyKind}
