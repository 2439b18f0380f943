"""Chat templates that know tools, in the syntax of three families and in our own words, with tokenizers for them."""

from functools import cache

from tests.policy.tokenizers_for_chat import train_tokenizer

QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- 'Functions in <tools></tools>:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools>\\nA call is <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem is undefined or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

LLAMA = """\
{{- '<|begin_of_text|>' }}
{%- set first = namespace(user=true) %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + (message.content | tojson) + '<|eot_id|>' }}
    {%- elif message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' + (call.arguments | tojson) + '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
        {%- if message.role == 'user' and tools and first.user %}
            {{- 'Answer with a call of a function if one helps.\\n\\n' }}
            {%- for tool in tools %}{{- (tool | tojson) + '\\n\\n' }}{%- endfor %}
        {%- endif %}
        {%- if message.role == 'user' %}{%- set first.user = false %}{%- endif %}
        {{- (message.content | trim) + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

MISTRAL = """\
{{- '<s>' }}
{%- set turn = namespace(index=0, last=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set turn.last = loop.index0 %}{%- endif %}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
        {%- if (message.role == 'user') != (turn.index % 2 == 0) %}
            {{- raise_exception('user and assistant must alternate, but for calls and results') }}
        {%- endif %}
        {%- set turn.index = turn.index + 1 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.index0 == turn.last %}
            {{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in message.tool_calls %}
            {%- if (call.id or '') | length != 9 %}{{- raise_exception('ids have 9 letters') }}{%- endif %}
            {{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
            {{- ', "id": "' + call.id + '"}' + (', ' if not loop.last else ']</s>') }}
        {%- endfor %}
    {%- elif message.role == 'assistant' %}
        {{- message.content + '</s>' }}
    {%- elif message.role == 'tool' %}
        {%- if message.tool_call_id is undefined or message.tool_call_id | length != 9 %}
            {{- raise_exception('ids have 9 letters') }}
        {%- endif %}
        {{- '[TOOL_RESULTS]{"content": ' + (message.content | tojson) + ', ' }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception('there is no role ' + message.role) }}
    {%- endif %}
{%- endfor %}"""

FAMILIES = {"qwen": QWEN, "llama": LLAMA, "mistral": MISTRAL}
_SPECIAL = {
    "qwen": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "llama": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"],
    "mistral": [
        *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ],
}
_END = {"qwen": "<|im_end|>", "llama": "<|eot_id|>", "mistral": "</s>"}
_WORDS = {"qwen": ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]}


@cache
def tool_tokenizer(family):
    """A small tokenizer with the special tokens and the template of a family."""
    return train_tokenizer(
        special=_SPECIAL[family], words=_WORDS.get(family, []), end=_END[family], template=FAMILIES[family]
    )
