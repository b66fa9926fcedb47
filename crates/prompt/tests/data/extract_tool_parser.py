"""Writes tool-parser.json: the whole replies in the tests of the crate `tool-parser` (Apache-2.0), and what they expect of them.

    python crates/prompt/tests/data/extract_tool_parser.py ~/.cargo/registry/src/INDEX/tool-parser-1.10.0
"""

import json
import pathlib
import re
import sys

FAMILIES = {
    "deepseek": "deepseek_v3",
    "deepseek31": "deepseek_v31",
    "glm4_moe": "glm45",
    "glm47_moe": "glm45",
    "json": "json",
    "kimik2": "kimi_k2",
    "llama": "llama3_json",
    "minimax_m2": "minimax_m2",
    "mistral": "mistral_array",
    "nemotron": "qwen3_coder",
    "pythonic": "pythonic",
    "qwen": "hermes",
    "qwen_xml": "qwen3_coder",
}
TEST = re.compile(r"async fn (\w+)\(\) \{(.*?)\n\}", re.S)
INPUT = re.compile(r'let input\s*=\s*(?:r(#*)"(.*?)"\1|"((?:[^"\\]|\\.)*)");', re.S)
NAME = re.compile(r'(?:tools|calls|tool_calls)\[(\d+)\]\.function\.name,\s*"([^"]*)"')
COUNT = re.compile(r"assert_eq!\((?:tools|calls|tool_calls)\.len\(\), (\d+)")
ARGUMENT = re.compile(r'args\["(\w+)"\],\s*("(?:[^"\\]|\\.)*"|-?[\d.]+|true|false)\s*\)')


def main():
    crate = pathlib.Path(sys.argv[1])
    rows = []
    for name, family in FAMILIES.items():
        source = (crate / "tests" / f"tool_parser_{name}.rs").read_text(encoding="utf-8")
        for test, body in TEST.findall(source):
            inputs = INPUT.findall(body)
            count = COUNT.findall(body)
            if len(inputs) != 1 or len(count) != 1 or "parse_complete(input)" not in body:
                continue
            _, raw, plain = inputs[0]
            text = raw or plain.encode().decode("unicode_escape")
            if not text.isascii() and not raw:
                continue
            names = [name for _, name in sorted(NAME.findall(body), key=lambda found: int(found[0]))]
            arguments = {key: json.loads(value) for key, value in ARGUMENT.findall(body)} if count == ["1"] else {}
            rows.append({"test": f"{name}::{test}", "family": family, "text": text, "calls": int(count[0]),
                         "names": names, "arguments": arguments})
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    out = pathlib.Path(__file__).with_name("tool-parser.json")
    out.write_text(f'{{"crate": "{crate.name}", "rows": [\n{lines}\n]}}\n', encoding="utf-8")
    print(len(rows), "rows")


main()
