"""Makes the pictures of docs/console.md anew: a running `headrace up`, minutes of traffic of three projects, four screenshots.

Run it from the root of the repository, with the virtual environment of the step `console`:

    HEADRACE_BIN=target/release/headrace target/venv-console/bin/python tests/console/pictures.py

It takes six minutes, as the charts of the page Now show the five minutes before it was opened. Arguments name single pictures, and
TRAFFIC_S is the time before the first one. Look at each picture.
"""

import collections
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib

from playwright.sync_api import sync_playwright

from conftest import CHROMIUM, ROOT, Tab
from test_real import BINARY, QUESTION, House

PICTURES = ROOT / "docs" / "pictures"
TRAFFIC_S = float(os.environ.get("TRAFFIC_S", 320))
CALLERS = [("support", "help-desk"), ("search", "answers"), ("research", "notebooks")]
SYSTEM = "You are a friendly assistant. You answer questions about LLM APIs in a few short sentences, and say so if you do not know."
QUESTIONS = [QUESTION, "What is prefill?", "What is a token?", "What is the KV cache?", "What is 17 times 3?", "How does a prompt get cheaper?"]


def command(house, *words):
    ran = subprocess.run([str(BINARY), *words, "--data-dir", str(house.directory / "data")], env=house.env, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def key_of(house, project, name):
    command(house, "projects", "create", project)
    return re.search(r"sk-[\w-]+", command(house, "keys", "create", "--project", project, "--name", name)).group(0)


def talk(house, key, user, until):
    """One caller: questions with a system prompt that stays, now and then one that is refused."""
    chance = random.Random(user)
    while time.monotonic() < until():
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": chance.choice(QUESTIONS)}]
        refused = chance.random() < 0.03
        more = {"max_tokens": 100_000} if refused else {"max_tokens": 200}
        house.ask("", key=key, messages=messages, user=user, **more)
        time.sleep(chance.uniform(0.3, 1.5))


def with_palette(png):
    """A PNG of 8-bit RGB or RGBA with its 256 commonest colours, a third as large: pictures are part of the program."""
    chunks, at = {}, 8
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at:at + 8])
        chunks[kind] = chunks.get(kind, b"") + png[at + 8:at + 8 + size]
        at += size + 12
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    step = {2: 3, 6: 4}[colour]
    assert depth == 8
    data, line, before, lines = zlib.decompress(chunks[b"IDAT"]), width * step, bytearray(width * step), []
    for row in range(height):
        kind, raw = data[row * (line + 1)], bytearray(data[row * (line + 1) + 1:(row + 1) * (line + 1)])
        for x in range(line):
            left, up, corner = raw[x - step] if x >= step else 0, before[x], before[x - step] if x >= step else 0
            nearest = min((abs(up - corner), 0, left), (abs(left - corner), 1, up), (abs(left + up - 2 * corner), 2, corner))[2] if kind == 4 else 0
            raw[x] = (raw[x] + (0, left, up, (left + up) // 2, nearest)[kind]) & 255
        lines.append([bytes(raw[x:x + 3]) for x in range(0, line, step)])
        before = raw
    counts = collections.Counter(colour for pixels in lines for colour in pixels)
    palette = [colour for colour, _ in counts.most_common(256)]
    nearest = {colour: min(range(len(palette)), key=lambda n: sum((a - b) ** 2 for a, b in zip(colour, palette[n]))) for colour in counts}
    rows = b"".join(b"\0" + bytes(nearest[colour] for colour in pixels) for pixels in lines)
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return png[:8] + chunk(b"IHDR", head) + chunk(b"PLTE", b"".join(palette)) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def shoot(tab, name, settle_ms=400):
    tab.page.wait_for_timeout(settle_ms)
    path = PICTURES / f"console-{name}.png"
    tab.page.screenshot(path=path)
    path.write_bytes(with_palette(path.read_bytes()))
    print(path.relative_to(ROOT), path.stat().st_size, "bytes")


def now(house, tab, key):
    tab.go("now")
    tab.page.wait_for_timeout(3_000)
    tab.page.wait_for_function("() => Number(document.querySelector('.tile .tile-value').textContent) > 0")
    shoot(tab, "now", 0)


def playground(house, tab, key):
    tab.go("playground")
    tab.page.get_by_label("Message").fill(QUESTION)
    tab.page.get_by_label("Message").press("Enter")
    tab.page.locator(".turn.assistant .figures").wait_for(timeout=60_000)
    shoot(tab, "playground")


def request(house, tab, key):
    house.ask(QUESTION, key=key)
    time.sleep(1)
    tab.go("requests?outcome=completed")
    tab.page.wait_for_selector(".long-view .long-row")
    rows = tab.page.locator(".long-view .long-row").all()[:12]
    took = [float((re.search(r"([\d.]+)\s*ms", row.inner_text()) or [0, 0])[1]) for row in rows]
    # A long answer: its time is the engine's.
    rows[took.index(max(took))].click()
    tab.page.get_by_role("tab", name="Waterfall").wait_for()
    tab.settle()
    shoot(tab, "request")


def book(house, tab, key):
    tab.page.goto(f"{house.console}docs/tour")
    shoot(tab, "book")


ALL = {"now": now, "playground": playground, "request": request, "book": book}


def main():
    random.seed(1)
    with tempfile.TemporaryDirectory() as directory:
        house = House(pathlib.Path(directory))
        end = [time.monotonic() + TRAFFIC_S]
        keys = [key_of(house, project, name) for project, name in CALLERS]
        callers = [threading.Thread(target=talk, args=(house, key, f"user-{at}", lambda: end[0])) for at, key in enumerate(keys * 2)]
        for caller in callers:
            caller.start()
        time.sleep(max(0, TRAFFIC_S - 10))
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                end[0] = time.monotonic() + 120
                tab = Tab(browser, house.console)
                tab.page.set_viewport_size({"width": 1280, "height": 800})
                tab.sign_in(house.link)
                for name in sys.argv[1:] or ALL:
                    ALL[name](house, tab, keys[0])
                browser.close()
        finally:
            end[0] = 0
            for caller in callers:
                caller.join()
            house.stop()


if __name__ == "__main__":
    sys.exit(main())
