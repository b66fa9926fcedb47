"""expected.py FOLDER: has transformers answer twelve conversations, greedily and in float32, and writes FOLDER/expected.json: the rendering,
the ids in and out, and the smallest gap between the two likeliest tokens.  The project's tests reproduce them."""
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Get the current weather for a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["city"]}}}
SEARCH = {"type": "function", "function": {"name": "web_search", "description": "Search the web", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}}
user = lambda text: {"role": "user", "content": text}
CONVERSATIONS = [([user(text)], None) for text in (
    "What happens when I call an LLM API?", "What is prefill?", "What is the KV cache?", "Hello!", "How much do 250000 tokens cost at $4 per million tokens?",
    "Tell me a short story about a fox named Quibble.", "What is a rate limit?", "Why do output tokens cost more than input tokens?")]
CONVERSATIONS += [([user("What is the KV cache?"), {"role": "assistant", "content": "The KV cache keeps the keys and values of earlier tokens."}, user("Why does that matter?")], None),
                  ([user("What is the weather in Lisbon?")], [WEATHER]), ([user("What is the weather in Zagreb? Answer in fahrenheit.")], [WEATHER, SEARCH]),
                  ([{"role": "system", "content": "You are a helpful assistant."}, user("Extract the fields as JSON: Lucas bought 8 chairs at 12 dollars each.")], None)]
MOST = 200

torch.set_num_threads(1); folder = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(folder); model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(); cases = []
for messages, tools in CONVERSATIONS:
    rendered = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True); ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]; said, gap = [], float("inf")
    with torch.no_grad():
        while len(said) < MOST and (not said or said[-1] not in (0, 2)):
            best = model(torch.tensor([ids + said])).logits[0, -1].topk(2); gap = min(gap, float(best.values[0] - best.values[1])); said.append(int(best.indices[0]))
    cases.append(dict(messages=messages, tools=tools, rendered=rendered, ids=ids, greedy=said, greedy_text=tokenizer.decode(said), min_gap=round(gap, 6))); print(messages[-1]["content"], "->", cases[-1]["greedy_text"], round(gap, 4))
with open(folder + "/expected.json", "w") as file: json.dump(cases, file, ensure_ascii=False, indent=1)
