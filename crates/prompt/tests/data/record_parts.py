"""Writes parts.json: prompts that transformers renders from messages whose contents are lists of parts.

    pip install transformers==5.24 jinja2 && python crates/prompt/tests/data/record_parts.py

The templates walk through the parts as those of models for text and images do: with a loop and a test (Idefics 3, SmolVLM), with filters
(LLaVA), and for texts and lists alike (Qwen2-VL). The first two write nothing of a content that is a text.
"""

import json
import pathlib

from transformers.utils.chat_template_utils import render_jinja_template

LOOP = (
    "<|im_start|>{% for m in messages %}{{ m['role'] | capitalize }}{{ ':' if m['content'][0]['type'] == 'image' else ': ' }}"
    "{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}<image>{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
FILTERS = (
    "{% for m in messages %}{% if m['role'] != 'system' %}{{ m['role'].upper() + ': ' }}{% endif %}"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] + ' ' }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
EITHER = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if 'text' in part %}{{ part.text }}{% else %}<|image_pad|>{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONVERSATIONS = [
    [("user", "Hello")],
    [("system", "Be brief."), ("user", "What is <end_of_utterance>?"), ("assistant", "A mark."), ("user", " And\nthis? ")],
]


def main():
    rows = []
    for name, template in [("loop", LOOP), ("filters", FILTERS), ("either", EITHER)]:
        for turns in CONVERSATIONS:
            messages = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]
            prompts, _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=True)
            rows.append({"name": name, "template": template, "messages": turns, "prompt": prompts[0]})
    out = pathlib.Path(__file__).parent / "parts.json"
    out.write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n")


main()
