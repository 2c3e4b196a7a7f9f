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
    BOUNDED = "bounded"
    """No prompt, but work by its size, which `gateway.limits.max_guide_*` bound (`guides.py`)."""
    REFUSED = "refused"
    """400, unless it is null, false or empty."""


class Across(StrEnum):
    """What a field means to another model that generates text (`across.py`)."""

    SAME = "same"
    BOUND = "bound"
    """Something else, or nothing: token ids, log probabilities, what a template or a processor of its own reads."""
    TOOLS = "tools"
    """The same to a model that has a parser of tool calls, too."""
    REASONING = "reasoning"
    """The same to a model that has a parser of its reasoning, too."""


@dataclass(frozen=True, slots=True)
class Field:
    """`name`: of a member of the body, or with a dot, of a member of that member. `kinds`: of bodies (all: those that
    have it). `why`: for who reads this table, or gets the refusal. `shapes`: the answer may differ by it
    (`meaning.py`)."""

    name: str
    effect: Effect
    kinds: frozenset[BodyKind]
    why: str
    across: Across
    shapes: bool = True


def _fields(
    effect: Effect, kinds: str, names: str, why: str, across: Across = Across.SAME, shapes: bool = True
) -> tuple[Field, ...]:
    of_kinds = frozenset(map(BodyKind, kinds.split()))
    return tuple(Field(name, effect, of_kinds, why, across, shapes) for name in names.split())


COUNTED, HARMLESS, BOUNDED, REFUSED = Effect
SAME, BOUND, TOOLS, REASONING = Across
ALL = " ".join(BodyKind)
GENERATING = "chat chats completion response messages"
CONVERSATIONS = "chat chats messages count tokenizer"
OTHERS = " ".join(kind for kind in BodyKind if kind is not BodyKind.RESPONSE)

# vLLM makes a chat of each conversation of a batch, with all other members of the body: CHATS has what CHAT has.
CENSUS: tuple[Field, ...] = (
    *_fields(COUNTED, CONVERSATIONS, "messages", "the prompt"),
    *_fields(COUNTED, "completion tokenizer", "prompt", "the prompt"),
    *_fields(COUNTED, "response embedding", "input", "the prompt"),
    *_fields(COUNTED, "tokenizer", "tokens", "to detokenize", BOUND),
    *_fields(COUNTED, "messages count", "system", "before the messages"),
    *_fields(COUNTED, "response", "instructions", "before the input"),
    *_fields(COUNTED, "response", "previous_input_messages", "before the input", BOUND),
    *_fields(COUNTED, "completion", "suffix", "after the prompt, for models that fill in the middle", BOUND),
    *_fields(COUNTED, CONVERSATIONS + " response", "tools", "the chat template reads them", TOOLS),
    *_fields(COUNTED, CONVERSATIONS + " response", "chat_template_kwargs", "the chat template reads them", BOUND),
    *_fields(COUNTED, "chat chats", "documents", "the chat template reads them", BOUND),
    *_fields(COUNTED, "chat chats tokenizer", "chat_template", "refused by vLLM, unless its operator trusts it",
             BOUND),
    *_fields(COUNTED, "chat chats completion messages", "max_tokens", "the output"),
    *_fields(COUNTED, "chat chats", "max_completion_tokens", "the output"),
    *_fields(COUNTED, "response", "max_output_tokens", "the output"),
    *_fields(COUNTED, "chat completion", "n", "sequences; of a batch vLLM allows only 1"),

    *_fields(REFUSED, GENERATING, "kv_transfer_params ec_transfer_params vllm_xargs.kv_transfer_params "
             "vllm_xargs.ec_transfer_params", "it is for engines among themselves, and may carry a prompt"),
    *_fields(REFUSED, "completion", "prompt_embeds", "how many tokens they are is not known before they run"),
    *_fields(REFUSED, "embedding", "messages", "texts are sent as input, and vLLM would take these in its place"),
    *_fields(REFUSED, "embedding", "padding", "a padded prompt takes more tokens than it has"),
    *_fields(REFUSED, "response", "request_id", "the engine would count by it; use the header X-Request-Id"),
    *_fields(REFUSED, "response", "store background previous_response_id", "responses are stateless here"),

    *_fields(HARMLESS, ALL, "model stream metadata service_tier", "names, and how to answer"),
    *_fields(HARMLESS, "response", "user prompt_cache_key", "the answer may repeat them"),
    *_fields(HARMLESS, OTHERS, "user prompt_cache_key", "who asks, and a hint", shapes=False),
    *_fields(HARMLESS, ALL, "cache_salt", "sets the prompts of one user apart from those of others"),
    *_fields(HARMLESS, ALL, "priority session_id", "the gateway's or the replica's own count", shapes=False),
    *_fields(HARMLESS, "chat chats completion embedding", "request_id", "the gateway's header comes first",
             shapes=False),
    *_fields(HARMLESS, "chats", "n best_of early_stopping guided_decoding_backend", "1, or of no effect"),
    *_fields(HARMLESS, "response", "prompt", "a template of the provider's: vLLM refuses it"),
    *_fields(HARMLESS, "embedding", "chat_template chat_template_kwargs", "only messages have a template"),
    *_fields(HARMLESS, ALL, "mm_processor_kwargs media_io_kwargs", "refused by vLLM, unless its operator trusts them",
             BOUND),
    *_fields(HARMLESS, ALL, "truncate_prompt_tokens", "a shorter prompt than was counted", BOUND),
    *_fields(HARMLESS, ALL, "truncation_side", "a shorter prompt than was counted"),
    *_fields(HARMLESS, "response", "truncation", "a shorter conversation: `turns.py`"),
    *_fields(HARMLESS, ALL, "add_special_tokens add_generation_prompt continue_final_message", "a few tokens"),
    *_fields(HARMLESS, ALL, "temperature top_p top_k min_p seed frequency_penalty presence_penalty repetition_penalty "
             "length_penalty watermarking use_beam_search ignore_eos min_tokens",
             "how to choose the tokens that are counted"),
    *_fields(HARMLESS, ALL, "reasoning reasoning_effort thinking thinking_token_budget", "how to choose them",
             REASONING),
    *_fields(HARMLESS, ALL, "parallel_tool_calls max_tool_calls tool_choice", "how to choose them", TOOLS),
    *_fields(BOUNDED, ALL, "structured_outputs response_format text output_config stop stop_sequences bad_words",
             "compiled, or looked at for each token"),
    *_fields(BOUNDED, ALL, "stop_token_ids logit_bias allowed_token_ids logprob_token_ids", "looked at for each token",
             BOUND),
    *_fields(HARMLESS, ALL, "repetition_detection", "names and numbers"),
    *_fields(HARMLESS, ALL, "vllm_xargs", "names and numbers", BOUND),
    *_fields(HARMLESS, "chat chats completion", "echo", "gateway.limits.max_prompt_logprobs"),
    *_fields(HARMLESS, "chat chats completion", "prompt_logprobs logprobs", "gateway.limits.max_prompt_logprobs",
             BOUND),
    *_fields(HARMLESS, "chat chats response", "top_logprobs", "of the output: comes no faster than it is decoded",
             BOUND),
    *_fields(HARMLESS, ALL, "include_reasoning", "what the answer shows", REASONING),
    *_fields(HARMLESS, ALL, "include return_token_ids return_tokens_as_token_ids return_token_offsets "
             "return_token_strs return_prompt_text return_mm_kwargs mm_payload routed_experts_prompt_start",
             "what the answer shows", BOUND),
    *_fields(HARMLESS, ALL, "stream_options stream_interval include_stop_str_in_output skip_special_tokens "
             "spaces_between_special_tokens enable_response_messages "
             "encoding_format embed_dtype endianness dimensions use_activation", "what the answer shows"),
)  # fmt: skip


def by_kind(effect: Effect) -> Mapping[BodyKind, Sequence[Field]]:
    """The fields of that effect in each kind of body."""
    return {kind: [field for field in CENSUS if field.effect is effect and kind in field.kinds] for kind in BodyKind}
