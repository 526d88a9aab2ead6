"""Chat templates: golden prompts for the constructs that the families use, and what a template may refuse.

The templates here are our own, written with the constructs of the named families; the expected prompts are what
Hugging Face's renderer makes of them.
"""

from datetime import datetime

import pytest

from shoal.errors import ManifestError
from shoal_router.text.template import ChatTemplate, TemplateRefused

# A default system message in the loop's first turn, plain concatenation with the content.
SMOLLM2 = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# bos_token, strftime_now, `is defined`, slices of messages, whitespace control, tool calls told by the key's presence.
LLAMA31 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("Only one call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" + message.content + "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

# namespace, reversed slice, string methods, `is string`, nested loops over tool calls, grouping of tool answers.
QWEN = """{%- set ns = namespace(last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" and message.content is string %}
        {%- set ns.last = messages | length - 1 - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content if message.content is string else '' %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant' }}
        {%- if content %}{{- '\\n' + content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name }}
            {{- '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {{- ('!' if loop.index0 == ns.last else '') + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# Strict alternation with raise_exception, the content tested against none, bos and eos tokens.
MISTRAL = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['content'] is not none %}
{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}{% else %}
[TOOL_CALLS]{{ message.tool_calls | map(attribute='function') | list | tojson }}{{ eos_token }}{% endif %}
{% endfor %}"""

USER = {"role": "user", "content": "Hi <b> & 'ü' 世"}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Köln", "note": "<a>"}},
}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", now=lambda: datetime(2026, 3, 4))


def test_case_88_smollm2_golden_prompt() -> None:
    assert template(SMOLLM2).render([USER, {"role": "assistant", "content": "Yes"}, USER]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi <b> & 'ü' 世<|im_end|>\n"
        "<|im_start|>assistant\nYes<|im_end|>\n"
        "<|im_start|>user\nHi <b> & 'ü' 世<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_case_88_llama_golden_prompt() -> None:
    messages = [{"role": "system", "content": "  Short.\n"}, USER, CALLING, {"role": "tool", "content": "12 C"}]
    assert template(LLAMA31).render(messages) == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 04 Mar 2026\n\nShort.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi <b> & 'ü' 世<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "weather", "parameters": {"city": "Köln", "note": "<a>"}}<|eot_id|>'
        "<|start_header_id|>ipython<|end_header_id|>\n\n12 C<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_case_88_qwen_golden_prompt() -> None:
    thought = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes", "tool_calls": [CALL]}
    tools = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    assert template(QWEN).render([USER, thought, *tools]) == (
        "<|im_start|>user\nHi <b> & 'ü' 世!<|im_end|>\n"
        "<|im_start|>assistant\nYes\n<tool_call>\n"
        '{"name": "weather", "arguments": {"city": "Köln", "note": "<a>"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_case_88_mistral_golden_prompt() -> None:
    messages = [USER, {"role": "assistant", "content": "Yes"}, USER, CALLING]
    assert template(MISTRAL).render(messages) == (
        "<s>[INST] Hi <b> & 'ü' 世 [/INST] Yes</s>[INST] Hi <b> & 'ü' 世 [/INST]"
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Köln", "note": "<a>"}}]</s>'
    )


def test_the_templates_own_refusal_is_told_in_its_words() -> None:
    with pytest.raises(TemplateRefused, match=r"roles must alternate user/assistant"):
        template(MISTRAL).render([USER, USER])


def test_messages_that_a_template_cannot_express_are_refused_not_a_crash() -> None:
    with pytest.raises(TemplateRefused, match="cannot express these messages"):
        template("{{ messages[0].content + 1 }}").render([USER])
    with pytest.raises(TemplateRefused, match="no attribute 'name'"):
        template("{{ messages[0].name.first }}").render([USER])


@pytest.mark.parametrize("content", [None, ""])
@pytest.mark.parametrize("source", [SMOLLM2, LLAMA31, QWEN, MISTRAL])
def test_case_76_an_assistant_without_content_is_accepted_by_every_template(source: str, content: str | None) -> None:
    for message in ({"role": "assistant", "content": content}, {"role": "assistant"}):
        rendered = template(source).render([USER, message])
        assert "None" not in rendered


def test_case_76_content_stays_none_beside_tool_calls_only_where_the_template_can_read_it() -> None:
    assert "[TOOL_CALLS]" in template(MISTRAL).render([USER, CALLING])
    assert "None" not in template(SMOLLM2).render([USER, CALLING])
    careless = "{% for m in messages %}{{ m.content }}|{% endfor %}"
    assert template(careless).render([USER, CALLING]).endswith("世||")


def test_developer_becomes_system_unless_the_template_knows_it() -> None:
    shown = "{% for m in messages %}{{ m.role }} {% endfor %}"
    developer = {"role": "developer", "content": "x"}
    assert template(shown).render([developer]) == "system "
    assert template(shown + "a developer helps").render([developer]) == "system a developer helps"
    knows = "{% for m in messages %}{% if m.role == 'developer' %}D{% else %}other{% endif %}{% endfor %}"
    assert template(knows).render([developer]) == "D"


def test_a_template_is_sandboxed_and_cannot_change_its_input() -> None:
    with pytest.raises(TemplateRefused):
        template("{{ messages.append(1) }}").render([USER])
    with pytest.raises(TemplateRefused):
        template("{{ messages.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}").render([USER])


def test_a_broken_template_is_found_when_loading() -> None:
    with pytest.raises(ManifestError, match=r"chat_template\.jinja, line 2"):
        template("x\n{% if %}")
