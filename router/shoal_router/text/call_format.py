"""How a model family writes tool calls, told from its chat template: the template shows it to the model.

    HERMES    Hermes 2 and 3, Qwen 2.5 and 3   <tool_call>\\n{"name": …, "arguments": {…}}\\n</tool_call>
    LLAMA     Llama 3.1 to 3.3                 {"name": …, "parameters": {…}}, maybe behind <|python_tag|>
    MISTRAL   Mistral v3 and later             [TOOL_CALLS][{"name": …, "arguments": {…}}, …]

Source: the chat templates in the tokenizer_config.json of these models.
"""

from __future__ import annotations

from enum import StrEnum


class CallFormat(StrEnum):
    """The families whose calls are read."""

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"


def call_format_of(template: str) -> CallFormat | None:
    """None: the template does not show tools to the model, or in a form that is not read here."""
    if "tools" not in template:
        return None
    if "[TOOL_CALLS]" in template:
        return CallFormat.MISTRAL
    if "<tool_call>" in template:
        return CallFormat.HERMES
    if "<|python_tag|>" in template or "ipython" in template:
        return CallFormat.LLAMA
    return None
