"""The Python that we print runs as it stands: the README's, and what `headrace up` says to paste."""

import os
import pathlib
import re
import subprocess
import sys

from conftest import BINARY, ROOT


def run(source, url, **variables):
    """Runs a program in an interpreter of its own; what it printed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    source = source.replace("http://127.0.0.1:8080", url)
    done = subprocess.run(
        [sys.executable, "-c", source], env={**env, **variables}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{source}\n{done.stderr}"
    return done.stdout


def test_the_readme(server):
    page = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        said = run(block, server.url, HEADRACE_API_KEY=server.key)
        assert said.rstrip().endswith("."), f"the answer is cut off: {said}"


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
