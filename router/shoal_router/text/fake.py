"""A small TextModel without a model directory, for tests and for trying the API by hand.

Its tokenizer is byte-level with one id per byte and no merges, so every character beyond ASCII is cut by token
borders; the template is the ChatML form that SmolLM2 and Qwen use.
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from shoal_router.text.detokenize import TokenBytes, byte_level_alphabet
from shoal_router.text.model import GenerationConfig, TextModel
from shoal_router.text.template import ChatTemplate

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_ID = 2

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# The Hermes form, as in Qwen's templates.
CHATML_TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\nTools:\n' }}{% for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}"
    '{{ \'Answer <tool_call>\n{"name": …, "arguments": …}\n</tool_call> to call one.<|im_end|>\n\' }}{% endif %}'
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{{ message['content'] or '' }}"
    "{% for call in message.tool_calls or [] %}{{ '\n<tool_call>\n' }}{{ call.function | tojson }}"
    "{{ '\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Reasons first, unless it is told not to, as Qwen 3 does.
CHATML_THINKS = CHATML + (
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}"
)


def fake_tokenizer() -> Tokenizer:
    """Ids 0-2 are the special tokens, 3-258 the bytes."""
    vocabulary = {token: number for number, token in enumerate(SPECIAL_TOKENS)}
    vocabulary.update({character: 3 + byte for character, byte in byte_level_alphabet().items()})
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def fake_text_model(*, template: str | None = CHATML, defaults: GenerationConfig | None = None) -> TextModel:
    """The TextModel around `fake_tokenizer`; `<|im_end|>` ends an answer."""
    tokenizer = fake_tokenizer()
    return TextModel(
        name="fake",
        digest="f" * 64,
        tokenizer=tokenizer,
        token_bytes=TokenBytes(tokenizer),
        template=None if template is None else ChatTemplate(template, eos_token="<|im_end|>"),
        stop_token_ids=frozenset({EOS_ID}),
        defaults=defaults or GenerationConfig(),
    )
