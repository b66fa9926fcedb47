"""aider, unchanged, in front of Headrace: it writes a file, changes it by a block of search and replace, and answers a question about it, in both
dialects, on a scripted model behind an upstream.

    cargo run --release -p xtask -- peers aider        # installs aider into target/peers
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from peer import TARGET, Checks, Headrace, Unexpected, expect, run
from told import Model, configuration

VERSION = "0.86.2"
MODEL = "scripted"
HOME = TARGET / "peers" / "aider"
FENCE = "`" * 3
FIRST = f"greeting.txt\n{FENCE}\n<<<<<<< SEARCH\n=======\nHello, wheel!\nGoodbye.\n>>>>>>> REPLACE\n{FENCE}\n"
THEN = f"greeting.txt\n{FENCE}\n<<<<<<< SEARCH\nHello, wheel!\n=======\nHello, headrace!\n>>>>>>> REPLACE\n{FENCE}\n"
SCRIPT = {
    "Write the greeting.": [FIRST],
    "Greet the headrace instead.": [THEN],
    "What was the last line?": ["Goodbye was."],
}


def install():
    program = HOME / "bin" / "aider"
    if not program.exists():
        run([sys.executable, "-m", "venv", HOME])
        run([HOME / "bin" / "pip", "install", "--quiet", f"aider-chat=={VERSION}"])
    return program


class Aider:
    def __init__(self, program, directory, dialect, headrace):
        self.program, self.work = program, Path(directory) / dialect
        self.work.mkdir()
        self.model = f"{dialect}/{MODEL}"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "ANTHROPIC_"))}
        self.env |= {
            "HOME": str(self.work),
            "AIDER_ANALYTICS": "false",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OPENAI_API_BASE": headrace.url + "/v1",
            "OPENAI_API_KEY": headrace.key,
            "ANTHROPIC_API_BASE": headrace.url,
            "ANTHROPIC_API_KEY": headrace.key,
        }

    def say(self, text, *more):
        fixed = ["--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--no-show-release-notes", "--no-pretty"]
        # The same model does the small work, such as summaries.
        command = [self.program, "--model", self.model, "--weak-model", self.model, "--edit-format", "diff", *fixed, *more]
        done = subprocess.run(
            [*map(str, command), "--message", text, "greeting.txt"],
            cwd=self.work,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=180,
            stdin=subprocess.DEVNULL,
        )
        said = done.stdout + done.stderr
        # It ends well where its call failed.
        if done.returncode or "litellm." in said:
            raise Unexpected(f"aider ended with {done.returncode}: {said[-1500:]}")
        return said


def main():
    program, checks = install(), Checks()
    with tempfile.TemporaryDirectory() as directory:
        model = Model(MODEL, SCRIPT)
        headrace = Headrace(os.environ.get("HEADRACE_BIN") or TARGET / "release" / "headrace", directory, configuration(model))

        def session(dialect):
            aider = Aider(program, directory, dialect, headrace)
            greeting = aider.work / "greeting.txt"
            aider.say("Write the greeting.")
            expect(greeting.read_text(), "Hello, wheel!\nGoodbye.\n", "the file")
            aider.say("Greet the headrace instead.", "--no-stream")
            expect(greeting.read_text(), "Hello, headrace!\nGoodbye.\n", "the file")
            expect("Goodbye was." in aider.say("What was the last line?"), True, "what it says")
            return "written, changed, told"

        for dialect in ("openai", "anthropic"):
            checks.check(f"a session in {dialect}'s dialect", session, dialect)
        checks.check("the books balance", headrace.stop)
        model.server.shutdown()
    return 0 if checks.table() else 1


if __name__ == "__main__":
    sys.exit(main())
