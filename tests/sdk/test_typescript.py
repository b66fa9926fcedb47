"""The official TypeScript SDKs, as a test run of Node's own in `target/node`, where `xtask` installs them."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from conftest import KEY, ROOT
from places import NAMES, found

TESTS = pathlib.Path(__file__).parent / "typescript" / "clients.test.mjs"
HOME = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "node"

if not (HOME / "installed-package-lock.json").exists():
    pytest.skip("the TypeScript SDKs are not installed: Node with npm is missing", allow_module_level=True)


CHATS, TOOL = ["chats", "streams"], ["calls a tool, whole", "calls a tool, streamed"]
ERRORS = "tells errors by their class"
CASES = {"openai": [*CHATS, "puts a stream together", "runs a tool", "lists models", ERRORS], "anthropic": [*CHATS, *TOOL, ERRORS]}


@pytest.fixture(scope="module")
def outcomes(request):
    """What Node's run came to: (SDK, place, test) -> whether it passed; and all that it said."""
    places = [vars(found(request, name)) | {"key": KEY} for name in NAMES]
    # Node looks for packages beside the file.
    copied = shutil.copy(TESTS, HOME)
    done = subprocess.run(
        ["node", "--test", "--test-reporter=tap", copied],
        cwd=HOME,
        env={**os.environ, "HEADRACE_PLACES": json.dumps(places)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    told, group = {}, None
    for line in done.stdout.splitlines():
        if begun := re.match(r"# Subtest: (\w+), (\w+)$", line.strip()):
            group = begun.groups()
        elif ended := re.match(r"(ok|not ok) \d+ - (.*)$", line.strip()):
            told.setdefault((*group, ended[2]), ended[1] == "ok") if group else None
    return told, done


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("sdk", "case"), [(sdk, f"{sdk}: {case}") for sdk, cases in CASES.items() for case in cases])
def test_typescript(outcomes, sdk, case, name):
    told, done = outcomes
    assert told.get((sdk, name, case.removeprefix(f"{sdk}: "))), done.stdout + done.stderr


def test_nothing_else_failed(outcomes):
    _, done = outcomes
    assert done.returncode == 0, done.stdout + done.stderr
