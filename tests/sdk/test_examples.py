"""The Python that we print runs as it stands: the README's if it has any, the book's, and what `headrace up` says to paste."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import BINARY, MODEL, ROOT


def run(source, url, **variables):
    """Runs a program in an interpreter of its own; what it printed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    # Each recipe has a port of its own, and other people's models behind it: here they are one server.
    source = re.sub(r"http://127\.0\.0\.1:80\d\d", url, source)
    for model in ("openai/gpt-5", "claude/claude-sonnet-4-5"):
        source = source.replace(model, MODEL)
    done = subprocess.run(
        [sys.executable, "-c", source], env={**env, **variables}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{source}\n{done.stderr}"
    return done.stdout


def blocks(page):
    """The Python of a page that is not marked as not run."""
    found = re.findall(r"(<!-- not run: [^\n]*\n)?^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [block for unused, block in found if not unused]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_the_pages(server, page):
    for block in blocks(page):
        said = run(block, server.url, HEADRACE_API_KEY=server.key, OPENAI_API_KEY=server.key)
        assert said.rstrip().endswith("."), f"the answer is cut off: {said}"


def test_the_pages_have_python():
    assert {"start", "ci", "openai-anthropic"} <= {page.stem for page in PAGES if blocks(page)}


def test_what_up_says(server, tmp_path):
    """With a key that it makes itself, on a directory of its own."""
    data = tmp_path / "data"
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    command = [str(BINARY), "up", "--data-dir", str(data), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as child:
        lines = []
        for line in child.stdout:
            lines.append(line)
            if "headrace credit show" in line:
                break
        try:
            begin = next(at for at, line in enumerate(lines) if line.startswith("From Python"))
            end = next(at for at, line in enumerate(lines) if line.startswith("Then try"))
            said = run("".join(line.removeprefix("  ") for line in lines[begin + 1 : end]), server.url)
            assert said.rstrip().endswith("."), f"the answer is cut off: {said}"
        finally:
            child.terminate()
            child.wait(timeout=60)
    assert pathlib.Path(data).is_dir()
