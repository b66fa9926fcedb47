"""What a server tells of its cache over ZeroMQ, published by ZeroMQ's own library as vLLM does it: with a socket that tells again what
was missed. The events are those that a vLLM told."""

import json
import re
import threading
import time

import pytest

from conftest import ROOT, Server

zmq = pytest.importorskip("zmq", reason="ZeroMQ's own library; it has no wheel for this Python")

EVENTS = json.loads((ROOT / "crates/upstream/tests/data/vllm-kv-events.json").read_text())
BLOCKS = 24
"""In all of them."""


class Publisher(threading.Thread):
    """A PUB socket, and a ROUTER that answers with everything from a number on."""

    def __init__(self):
        super().__init__(daemon=True)
        self.context = zmq.Context()
        self.published = self.context.socket(zmq.PUB)
        self.replayed = self.context.socket(zmq.ROUTER)
        for socket in (self.published, self.replayed):
            socket.linger = 0
        ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (self.published, self.replayed)]
        self.events, self.replay = (f"tcp://127.0.0.1:{port}" for port in ports)
        self.kept, self.asked, self.wanted, self.ended = [], [], [], threading.Event()

    def tell(self, event, lost=False):
        self.wanted.append((event, lost))

    def run(self):
        while not self.ended.is_set():
            while self.wanted:
                event, lost = self.wanted.pop(0)
                number, payload = event["sequence"].to_bytes(8, "big"), bytes.fromhex(event["payload_hex"])
                if not lost:
                    self.published.send_multipart((event["topic"].encode(), number, payload))
                self.kept.append((event["sequence"], payload))
            if self.replayed.poll(10):
                who, _, start = self.replayed.recv_multipart()
                start = int.from_bytes(start, "big")
                self.asked.append(start)
                for number, payload in self.kept:
                    if number >= start:
                        self.replayed.send_multipart((who, b"", number.to_bytes(8, "big"), payload))
                self.replayed.send_multipart((who, b"", (-1).to_bytes(8, "big", signed=True), b""))
        self.context.destroy(linger=0)

    def stop(self):
        self.ended.set()
        self.join()


def blocks(front):
    """How many blocks of the model's cache are known."""
    said = front.run("upstreams").stdout
    return int(re.search(r"(\d+) blocks", said).group(1)), said


def until(front, expected):
    for _ in range(1000):
        count, said = blocks(front)
        if count == expected:
            return
        time.sleep(0.1)
    pytest.fail(said)


def test_a_cache_is_followed_through_a_gap_until_its_server_is_gone(binary, tmp_path):
    publisher = Publisher()
    # Some were told before anybody heard.
    for event in EVENTS[:2]:
        publisher.tell(event, lost=True)
    publisher.start()
    front = Server(
        tmp_path,
        configuration=f"""
[[upstreams]]
name = "gpu"
kind = "vllm"
url = "http://127.0.0.1:9"
kv_events = "{publisher.events}"
kv_replay = "{publisher.replay}"
price = {{ input = "0.1", output = "0.4" }}

[[models]]
name = "cached"
targets = ["gpu/m"]
path = "builtin:demo"

[[prices]]
model = "cached"
input = "0.1"
output = "0.4"
""",
    )
    try:
        until(front, 18)
        for event in EVENTS[2:]:
            # The library may not send to whoever has only just come: some are lost on purpose, and any may be.
            publisher.tell(event, lost=event["sequence"] in (3, 4))
            time.sleep(1.2)
        until(front, BLOCKS)
        assert publisher.asked[0] == 0 and len(publisher.asked) > 1, publisher.asked
        publisher.stop()
        until(front, 0)
        assert "gpu: what it has cached is not all known" in blocks(front)[1]
    finally:
        publisher.ended.set()
        front.stop()
