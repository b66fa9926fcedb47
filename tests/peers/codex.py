"""OpenAI's Codex CLI, unchanged, in front of Headrace: a session of several turns that writes and changes files with `apply_patch` and looks at
them with the shell, on a scripted model behind an upstream.

    cargo run --release -p xtask -- peers codex        # needs Node with npm; installs the CLI into target/peers

Codex speaks the Responses API alone, streamed, with `store: false` and what it said and did sent again at each turn. The scripted model speaks
chat completions. What it is told to do stands in SCRIPT: by the question, one step after the other.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from peer import TARGET, Checks, Headrace, Unexpected, expect, run
from told import Model, configuration

VERSION = "0.169.0"
# One that it gives `apply_patch` to.
MODEL = "gpt-5.5"
HOME = TARGET / "peers" / "codex"
ADDED = "*** Begin Patch\n*** Add File: greeting.txt\n+Hello, wheel!\n+Goodbye.\n*** End Patch\n"
CHANGED = "*** Begin Patch\n*** Update File: greeting.txt\n@@\n-Hello, wheel!\n+Hello, headrace!\n Goodbye.\n*** End Patch\n"
TORN = "*** Begin Patch\n*** Update File: greeting.txt\n@@\n-No such line\n+x\n*** End Patch\n"
SCRIPT = {
    "Write the greeting.": [("apply_patch", ADDED), "Written."],
    "Greet the headrace instead.": [("apply_patch", TORN), ("apply_patch", CHANGED), ("shell", "cat greeting.txt"), "Changed."],
    "What was the last line?": ["Goodbye was."],
}


def arguments(offered, name, what):
    """Codex has had several shells."""
    if name == "apply_patch":
        return name, json.dumps({"input": what})
    for shell, given in (("exec_command", {"cmd": what}), ("shell_command", {"command": what}), ("shell", {"command": ["bash", "-lc", what]})):
        if shell in offered:
            return shell, json.dumps(given)
    raise Unexpected(f"Codex offers no shell: {sorted(offered)}")


def install():
    program = HOME / "node_modules" / ".bin" / "codex"
    if not program.exists():
        if not shutil.which("npm"):
            sys.exit("install Node 20 or later with npm")
        HOME.mkdir(parents=True, exist_ok=True)
        run(["npm", "install", "--no-audit", "--no-fund", "--prefix", HOME, f"@openai/codex@{VERSION}"])
    return program


class Codex:
    """Its command line, in a directory and with a configuration of its own."""

    def __init__(self, program, directory, headrace):
        self.program, self.work, self.key = program, Path(directory) / "work", headrace.key
        self.home = Path(directory) / "codex"
        for folder in (self.work, self.home):
            folder.mkdir()
        (self.home / "config.toml").write_text(
            f'model = "{MODEL}"\nmodel_verbosity = "medium"\nmodel_provider = "ours"\n[model_providers.ours]\nname = "Headrace"\n'
            f'base_url = "{headrace.url}/v1"\nenv_key = "OUR_KEY"\nwire_api = "responses"\n'
            "request_max_retries = 0\nstream_max_retries = 0\n"
        )

    def say(self, *arguments):
        """Its events, as it prints them."""
        more = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        done = subprocess.run(
            [str(self.program), "exec", *arguments[:-1], *more, arguments[-1]],
            cwd=self.work,
            env={**os.environ, "CODEX_HOME": str(self.home), "OUR_KEY": self.key},
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        failed = [event for event in events if event["type"] in ("error", "turn.failed")]
        if done.returncode or failed:
            raise Unexpected(f"codex ended with {done.returncode}: {failed or done.stderr[-2000:]}")
        return events

    def said(self, *arguments):
        """The last thing that it told."""
        items = [event["item"] for event in self.say(*arguments) if event["type"] == "item.completed"]
        return [item["text"] for item in items if item["type"] == "agent_message"][-1]


def main():
    program, checks = install(), Checks()
    with tempfile.TemporaryDirectory() as directory:
        model = Model(MODEL, SCRIPT, arguments)
        binary = os.environ.get("HEADRACE_BIN") or TARGET / "release" / "headrace"
        headrace = Headrace(binary, directory, configuration(model))
        codex = Codex(program, directory, headrace)
        greeting = codex.work / "greeting.txt"

        def writes():
            expect(codex.said("Write the greeting."), "Written.", "its words")
            expect(greeting.read_text(), "Hello, wheel!\nGoodbye.\n", "the file")
            return "a file by apply_patch"

        def changes():
            expect(codex.said("resume", "--last", "Greet the headrace instead."), "Changed.", "its words")
            expect(greeting.read_text(), "Hello, headrace!\nGoodbye.\n", "the file")
            results = [message["content"] for message in model.asked[-1]["messages"] if message["role"] == "tool"]
            expect(any("Hello, headrace!" in str(result) for result in results), True, "what the shell showed")
            return f"{len(results)} results in the conversation, one of a patch that did not fit"

        def remembers():
            expect(codex.said("resume", "--last", "What was the last line?"), "Goodbye was.", "its words")
            roles = [message["role"] for message in model.asked[-1]["messages"]]
            expect(roles.count("tool"), 4, "results of calls that it sent again")
            return f"{len(roles)} messages"

        checks.check("writes a file", writes)
        checks.check("changes it in a second turn, after a patch that does not fit", changes)
        checks.check("goes on in a third", remembers)
        checks.check("the books balance", headrace.stop)
        model.server.shutdown()
    return 0 if checks.table() else 1


if __name__ == "__main__":
    sys.exit(main())
