"""Our own chat templates, for tokenizers that have none. Each is jinja text, as in transformers."""

from __future__ import annotations

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

LLAMA3 = (
    "{{ '<|begin_of_text|>' }}"
    "{% for message in messages %}"
    "{% set role = 'ipython' if message['role'] == 'tool' else message['role'] %}"
    "{{ '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)

# Reasoning stays visible after the user's last message: a tool's answer keeps it, a user's drops it.
QWEN3 = (
    "{% set last = namespace(user=-1) %}"
    "{% for message in messages %}{% if message['role'] == 'user' %}{% set last.user = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for message in messages %}"
    "{% set content = message['content'] %}"
    "{% set role = message['role'] %}"
    "{% if role == 'assistant' and loop.index0 < last.user %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}"
    "{% elif role == 'tool' %}"
    "{% set role = 'user' %}{% set content = '<tool_response>\\n' + content + '\\n</tool_response>' %}"
    "{% endif %}"
    "{{ '<|im_start|>' + role + '\\n' + content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# The most compact form: no role names and no line breaks, three special tokens in all.
NANO = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('this form has no system message') }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{{ message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] + '<|agent|>' }}{% endif %}"
    "{% endfor %}"
)

TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "qwen3": QWEN3, "nano": NANO}
