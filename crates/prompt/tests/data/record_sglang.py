"""Writes sglang-replies.json: replies in each family's form, and what SGLang's own parsers read in them.

    pip download sglang==0.5.23 --no-deps && unzip sglang-*.whl 'sglang/srt/function_call/*' 'sglang/srt/parser/*' -d sglang-wheel
    pip install orjson partial-json-parser msgspec regex pydantic
    python crates/prompt/tests/data/record_sglang.py sglang-wheel

The replies are made here, from calls and words that are hard on readers; of what SGLang is, its readers alone are loaded.
"""

import importlib
import json
import pathlib
import sys
import types

VERSION = "0.5.23"
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "list": {"type": "array"},
        "options": {"type": "object"},
    },
}
TOOLS = {"put": SCHEMA, "get_all": {"type": "object", "properties": {}}, "search-web_2": SCHEMA}
VALUES = [
    {"text": "plain"},
    {"text": ""},
    {"text": "two words and, a comma."},
    {"text": "line one\nline two\n\tindented"},
    {"text": 'says "hello" and \'bye\''},
    {"text": "back\\slash \\n and C:\\dir"},
    {"text": "Größe 日本語 😀"},
    {"text": "{not: json} [1, 2"},
    {"text": "a < b && c > d <b>bold</b>"},
    {"text": "123"},
    {"text": "true"},
    {"text": "null"},
    {"text": "x = f(a=1, b='c')"},
    {"text": "word " * 60 + "end"},
    {"count": 0},
    {"count": -7},
    {"count": 9007199254740993},
    {"ratio": 2.5},
    {"ratio": -0.125},
    {"ratio": 3},
    {"flag": True},
    {"flag": False},
    {"list": []},
    {"list": [1, "two", None, [3.5, {"k": "v"}]]},
    {"options": {}},
    {"options": {"deep": {"er": ["x", {"y": True}]}, "s": "a}b"}},
    {"text": "t", "count": 3, "ratio": 0.5, "flag": True, "list": ["a"], "options": {"k": 1}},
]
BEFORE = "Let me look: it is {easy}."


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def raw(value):
    """A value as forms without quotes have it."""
    return value if isinstance(value, str) else dumps(value)


def hermes(calls):
    return "\n".join(f"<tool_call>\n{dumps({'name': name, 'arguments': given})}\n</tool_call>" for name, given in calls)


def qwen3_coder(calls):
    def one(name, given):
        return f"<tool_call>\n<function={name}>\n" + "".join(f"<parameter={key}>\n{raw(value)}\n</parameter>\n" for key, value in given.items()) + "</function>\n</tool_call>"

    return "\n".join(one(*call) for call in calls)


def llama3_json(calls):
    return "<|python_tag|>" + ";".join(dumps({"name": name, "parameters": given}) for name, given in calls)


def pythonic(calls):
    return "[" + ", ".join(f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" for name, given in calls) + "]"


def mistral_array(calls):
    return "[TOOL_CALLS] [" + ", ".join(dumps({"name": name, "arguments": given}) for name, given in calls) + "]"


def mistral(calls):
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{dumps(given)}" for name, given in calls)


def deepseek_v3(calls):
    one = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
    return "<｜tool▁calls▁begin｜>" + "\n".join(one.format(name, dumps(given)) for name, given in calls) + "<｜tool▁calls▁end｜>"


def deepseek_v31(calls):
    one = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    return "<｜tool▁calls▁begin｜>" + "".join(one.format(name, dumps(given)) for name, given in calls) + "<｜tool▁calls▁end｜>"


def dsml(word):
    def write(calls):
        def one(name, given):
            values = (
                f'<｜DSML｜parameter name="{key}" string="{dumps(isinstance(value, str))}">{raw(value)}</｜DSML｜parameter>\n' for key, value in given.items()
            )
            return f'<｜DSML｜invoke name="{name}">\n{"".join(values)}</｜DSML｜invoke>\n'

        return f"<｜DSML｜{word}>\n" + "".join(one(*call) for call in calls) + f"</｜DSML｜{word}>"

    return write


def glm45(calls):
    def one(name, given):
        return f"<tool_call>{name}\n" + "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{raw(value)}</arg_value>\n" for key, value in given.items()) + "</tool_call>"

    return "\n".join(one(*call) for call in calls)


def pairs(calls):
    def one(name, given):
        values = (f"<arg_key>{key}</arg_key>\n<arg_value>{raw(value)}</arg_value>\n" for key, value in given.items())
        return f"<tool_call>{name}<tool_sep>\n{''.join(values)}</tool_call>\n"

    return "<tool_calls>\n" + "".join(one(*call) for call in calls) + "</tool_calls>"


def mimo(calls):
    def one(name, given):
        return f"<tool_call>\n<function={name}>\n" + "".join(f"<parameter={key}>{raw(value)}</parameter>\n" for key, value in given.items()) + "</function>\n</tool_call>"

    return "\n".join(one(*call) for call in calls)


def step3(calls):
    def one(name, given):
        values = (f'<steptml:parameter name="{key}">{raw(value)}</steptml:parameter>\n' for key, value in given.items())
        return f'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">\n{"".join(values)}</steptml:invoke><｜tool_call_end｜>\n'

    return "<｜tool_calls_begin｜>\n" + "".join(one(*call) for call in calls) + "<｜tool_calls_end｜>"


def minimax_m3(calls):
    mark = "]<]minimax[>["

    def value(name, item):
        if isinstance(item, dict):
            inner = "".join(value(key, one) for key, one in item.items())
        elif isinstance(item, list):
            inner = "".join(value("item", one) for one in item)
        else:
            inner = raw(item)
        return f"{mark}<{name}>{inner}{mark}</{name}>"

    def one(name, given):
        return f'{mark}<invoke name="{name}">{"".join(value(*pair) for pair in given.items())}{mark}</invoke>\n'

    return f"{mark}<tool_call>\n" + "".join(one(*call) for call in calls) + f"{mark}</tool_call>"


def kimi_k3(calls):
    kinds = {bool: "boolean", type(None): "null", int: "number", float: "number", str: "string", dict: "object", list: "array"}

    def channel(name, inner, attributes=""):
        return f"<|open|>{name}{attributes}<|sep|>{inner}<|close|>{name}<|sep|>"

    def one(at, name, given):
        values = (channel("argument", raw(value), f' key="{key}" type="{kinds[type(value)]}"') for key, value in given.items())
        return channel("call", "".join(values), f' tool="{name}" index="{at}"')

    return channel("tools", "".join(one(at + 1, *call) for at, call in enumerate(calls)))


def cohere(calls):
    items = (dumps({"tool_call_id": str(at), "tool_name": name, "parameters": given}) for at, (name, given) in enumerate(calls))
    return "<|START_ACTION|>[\n    " + ",\n    ".join(items) + "\n]<|END_ACTION|>"


def apertus(calls):
    return "<|tools_prefix|>[" + ", ".join(dumps({name: given}) for name, given in calls) + "]<|tools_suffix|>"


def kimi_k2(calls):
    one = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
    inner = "".join(one.format(name, at, dumps(given)) for at, (name, given) in enumerate(calls))
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def minimax_m2(calls):
    def one(name, given):
        return f'<invoke name="{name}">\n' + "".join(f'<parameter name="{key}">{raw(value)}</parameter>\n' for key, value in given.items()) + "</invoke>\n"

    return "<minimax:tool_call>\n" + "".join(one(*call) for call in calls) + "</minimax:tool_call>"


def harmony(calls):
    one = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>"
    return "<|start|>assistant".join(one.format(name, dumps(given)) for name, given in calls)


def gemma4(calls):
    def value(item):
        if isinstance(item, str):
            return f'<|"|>{item}<|"|>'
        if isinstance(item, dict):
            return "{" + ",".join(f"{key}:{value(inner)}" for key, inner in item.items()) + "}"
        if isinstance(item, list):
            return "[" + ",".join(map(value, item)) + "]"
        return dumps(item)

    return "".join(f"<|tool_call>call:{name}{value(given)}<tool_call|>" for name, given in calls)


# Family, how it is written, and SGLang's reader of it.
FAMILIES = [
    ("hermes", hermes, "qwen25_detector", "Qwen25Detector"),
    ("qwen3_coder", qwen3_coder, "qwen3_coder_detector", "Qwen3CoderDetector"),
    ("llama3_json", llama3_json, "llama32_detector", "Llama32Detector"),
    ("pythonic", pythonic, "pythonic_detector", "PythonicDetector"),
    ("mistral_array", mistral_array, "mistral_detector", "MistralDetector"),
    ("mistral", mistral, "mistral_detector", "MistralDetector"),
    ("deepseek_v3", deepseek_v3, "deepseekv3_detector", "DeepSeekV3Detector"),
    ("deepseek_v31", deepseek_v31, "deepseekv31_detector", "DeepSeekV31Detector"),
    ("deepseek_v32", dsml("function_calls"), "deepseekv32_detector", "DeepSeekV32Detector"),
    ("deepseek_v4", dsml("tool_calls"), "deepseekv4_detector", "DeepSeekV4Detector"),
    ("glm45", glm45, "glm4_moe_detector", "Glm4MoeDetector"),
    ("kimi_k2", kimi_k2, "kimik2_detector", "KimiK2Detector"),
    ("minimax_m2", minimax_m2, "minimax_m2", "MinimaxM2Detector"),
    ("harmony", harmony, "gpt_oss_detector", "GptOssDetector"),
    ("gemma4", gemma4, "gemma4_detector", "Gemma4Detector"),
    ("hunyuan", pairs, "hunyuan_detector", "HunyuanDetector"),
    ("mimo", mimo, "mimo_detector", "MiMoDetector"),
    ("step3", step3, "step3_detector", "Step3Detector"),
    ("minimax_m3", minimax_m3, "minimax_m3", "MinimaxM3Detector"),
    ("kimi_k3", kimi_k3, "kimik3_detector", "KimiK3Detector"),
    ("cohere_command", cohere, "cohere_command4_detector", "CohereCommand4Detector"),
    ("apertus", apertus, "apertus2509_detector", "Apertus2509Detector"),
]


class Anything:
    """Stands for whatever the readers import and do not use."""

    def __init__(self, *_, **given):
        self.__dict__.update(given)

    def __call__(self, *_, **__):
        return Anything()

    def __getattr__(self, name):
        return Anything()

    def get(self, *_):
        return False


class Stub(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything() if name == "envs" else Anything


def load(wheel):
    """The readers, without the engine around them."""
    for name in ("sglang", "sglang.srt", "sglang.srt.function_call", "sglang.srt.parser"):
        module = types.ModuleType(name)
        module.__path__ = [str(pathlib.Path(wheel, *name.split(".")))]
        sys.modules[name] = module
    stubs = ("sglang.srt.environ", "sglang.srt.entrypoints", "sglang.srt.entrypoints.openai", "sglang.srt.entrypoints.openai.protocol")
    for name in (*stubs, "sglang.srt.parser.response_template", "xgrammar", "xgrammar.structural_tag"):
        sys.modules[name] = Stub(name)
    return {family: getattr(importlib.import_module(f"sglang.srt.function_call.{module}"), name) for family, _, module, name in FAMILIES}


def cases():
    for at, given in enumerate(VALUES):
        yield f"value {at}", "", [("put", given)]
    yield "no arguments", "", [("get_all", {})]
    yield "another name", "", [("search-web_2", {"text": "a b"})]
    yield "words before", BEFORE, [("put", {"text": "plain"})]
    yield "two", "", [("put", {"text": "a"}), ("search-web_2", {"count": 2})]
    yield "two alike", "", [("put", {"text": "a"}), ("put", {"text": "a"})]
    yield "three, words before", BEFORE, [("get_all", {}), ("put", VALUES[-1]), ("get_all", {})]


def main():
    readers = load(sys.argv[1])
    tools = [Anything(type="function", function=Anything(name=name, parameters=schema, strict=False)) for name, schema in TOOLS.items()]
    rows = []
    for family, write, _, _ in FAMILIES:
        for what, before, calls in cases():
            if family == "pythonic" and any("-" in name for name, _ in calls):
                continue
            if family == "harmony":
                # It reads no call that nothing stands before.
                channel, words = ("commentary", before) if before else ("analysis", "Hm.")
                text = f"<|channel|>{channel}<|message|>{words}<|end|><|start|>assistant{write(calls)}"
            else:
                text = before + write(calls)
            try:
                read = readers[family]().detect_and_parse(text, tools)
            except Exception as error:
                print(f"{family}, {what}: {error!r}")
                continue
            found = [[call.name, json.loads(call.parameters)] for call in read.calls]
            rows.append({"family": family, "what": what, "text": text, "calls": found, "out": read.normal_text})
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    out = pathlib.Path(__file__).with_name("sglang-replies.json")
    out.write_text(f'{{"sglang": "{VERSION}", "tools": {json.dumps(TOOLS)},\n"rows": [\n{lines}\n]}}\n', encoding="utf-8")
    print(len(rows), "rows")


main()
