"""A command in a pseudo-terminal, and what a person sees of it: the bytes go through a terminal's own rules (pyte), so that lines that were
edited, wrapped or written over are read as they look."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pyte
import pytest

TIMEOUT_S = 60
ENTER, INTERRUPT, END, TAB, UP, LEFT = "\r", "\x03", "\x04", "\t", "\x1b[A", "\x1b[D"
ALT_ENTER = "\x1b\r"


def pasted(text):
    """As terminals send what is pasted."""
    return f"\x1b[200~{text}\x1b[201~"


class Terminal:
    """The command with a pseudo-terminal for all three streams."""

    def __init__(self, command, directory, columns=80, rows=40, **settings):
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HEADRACE_", "XDG_")) and name not in ("NO_COLOR", "COLUMNS")
        }
        env = {**kept, "TERM": "xterm-256color", "HOME": str(directory), **settings}
        self.screen = pyte.HistoryScreen(columns, rows, history=2000)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.line = 0
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        # A session of its own makes the terminal the one whose Ctrl-C arrives.
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            cwd=directory,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def type(self, text):
        os.write(self.master, text.encode())

    def lines(self):
        """All lines that were shown, as they look now, to the one that the cursor is on."""
        columns = self.screen.columns
        gone = ["".join(line[at].data for at in range(columns)) for line in self.screen.history.top]
        here = self.screen.display[: self.screen.cursor.y + 1]
        return [line.rstrip() for line in [*gone, *here]]

    def read(self, seconds):
        """Takes what comes within that time; false: nothing did."""
        if not select.select([self.master], [], [], max(0, seconds))[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        self.raw += data
        self.stream.feed(data)
        return bool(data)

    def expect(self, pattern):
        """Waits until the pattern stands below what was expected before, and gives what stands there. `\\n` is a line's end, `\\s+` also one
        that wrapping made."""
        deadline = time.monotonic() + TIMEOUT_S
        while not re.search(pattern, text := "\n".join(self.lines()[self.line :])):
            if not self.read(deadline - time.monotonic()):
                pytest.fail(f"{pattern!r} is not in\n{text}\n{self.raw[-400:]!r}")
        self.line = len(self.lines()) - 1
        return text

    def style(self, word):
        """How the last such word is shown: bold, italics, and the colour."""
        for row in range(self.screen.lines - 1, -1, -1):
            at = self.screen.display[row].rfind(word)
            if at >= 0:
                cell = self.screen.buffer[row][at]
                return cell.bold, cell.italics, cell.fg
        pytest.fail(f"{word!r} is not on the screen")

    def resize(self, columns):
        rows = self.screen.lines
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def end(self):
        """Its exit status; the terminal must be as it was before."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read(0.05)
        code = self.process.wait(timeout=1)
        while self.read(0.05):
            pass
        assert termios.tcgetattr(self.slave) == self.before, "the terminal is left as it was found"
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)
