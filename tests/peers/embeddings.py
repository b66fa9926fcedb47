"""Headrace beside sentence-transformers on torch: the same encoder, texts, threads and float32 arithmetic, in turn with each other.

    pip install sentence-transformers
    cargo build --release
    python tests/peers/embeddings.py [--threads 2] [--rounds 5]

Makes encoders of random weights in the shapes of published ones. sentence-transformers is called in this process, Headrace over HTTP with all
that a governed call has; both tokenize. Prints texts a second at batch 32 and the time of one short text, and how many times better Headrace
is; and how far the vectors are apart. Nothing else should run on the machine.
"""

import argparse
import base64
import http.client
import json
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEY = "sk-peers-0123456789abcdefghijklmnopqrstuvwxyz"
# Name, hidden size, layers, heads, width of the MLP: MiniLM-L6 and BERT base.
SHAPES = {"minilm-l6": (384, 6, 12, 1536), "bert-base": (768, 12, 12, 3072)}
WORDS = (ROOT / "README.md").read_text().split()


def texts(count, seed, least=6, most=60):
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(least, most))) for _ in range(count)]


def make(folder, shape):
    import torch
    from transformers import BertConfig, BertModel

    hidden, layers, heads, inner = shape
    torch.manual_seed(1)
    config = BertConfig(vocab_size=1024, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner)
    BertModel(config).eval().save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "crates/model/tests/data/bert-embed" / file, folder / file)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": 512}))
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [{"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"} for at, (kind, path) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True}))


class Headrace:
    def __init__(self, directory, models, threads):
        self.data = pathlib.Path(directory) / "data"
        env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        env["HEADRACE_BOOTSTRAP_KEY"] = KEY
        more = [word for name, path in models.items() for word in ("--model", f"{name}={path}")]
        command = [os.environ.get("HEADRACE_BIN") or ROOT / "target/release/headrace", "up", "--data-dir", self.data, "--listen", "127.0.0.1:0", "--threads", str(threads), *more]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        address = self.data / "address"
        while not (address.exists() and address.read_text().strip()):
            assert self.process.poll() is None, "headrace did not start"
            time.sleep(0.02)
        host, port = address.read_text().strip().rsplit(":", 1)
        self.connection = http.client.HTTPConnection(host, int(port), timeout=600)

    def encode(self, model, inputs):
        body = json.dumps({"model": model, "input": inputs, "encoding_format": "base64"})
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        self.connection.request("POST", "/v1/embeddings", body, headers)
        answer = self.connection.getresponse()
        said = answer.read()
        assert answer.status == 200, said
        rows = json.loads(said)["data"]
        return [struct.unpack(f"<{len(data) // 4}f", data) for data in (base64.b64decode(row["embedding"]) for row in rows)]

    def stop(self):
        self.process.terminate()
        self.process.wait()


def timed(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main():
    asked = argparse.ArgumentParser()
    asked.add_argument("--threads", type=int, default=2)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--only", nargs="*", default=list(SHAPES))
    asked = asked.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(asked.threads)
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory() as directory:
        folders = {}
        for name in asked.only:
            folders[name] = pathlib.Path(directory) / name
            folders[name].mkdir()
            make(folders[name], SHAPES[name])
        ours = Headrace(directory, folders, asked.threads)
        try:
            for name, folder in folders.items():
                theirs = SentenceTransformer(str(folder), device="cpu")
                batch, short = texts(32, 1), "How do I reset my password?"
                apart = max(
                    abs(a - b)
                    for got, want in zip(ours.encode(name, batch), theirs.encode(batch, batch_size=32).tolist(), strict=True)
                    for a, b in zip(got, want, strict=True)
                )
                rows = {"batch 32": [[], []], "one short text": [[], []]}
                theirs.encode([short])
                ours.encode(name, [short])
                # In turn, so that a machine that changes its pace does so for both.
                for round in range(asked.rounds):
                    batch = texts(32, 2 + round)
                    rows["batch 32"][0].append(timed(lambda: ours.encode(name, batch)))
                    rows["batch 32"][1].append(timed(lambda: theirs.encode(batch, batch_size=32)))
                    for _ in range(10):
                        rows["one short text"][0].append(timed(lambda: ours.encode(name, [short])))
                        rows["one short text"][1].append(timed(lambda: theirs.encode([short])))
                for load, (mine, other) in rows.items():
                    mine, other = statistics.median(mine), statistics.median(other)
                    each = f"{32 / mine:.0f} beside {32 / other:.0f} texts/s" if load == "batch 32" else f"{mine * 1e3:.1f} beside {other * 1e3:.1f} ms"
                    print(f"{name:<12}{load:<16}{each:<34}{other / mine:.2f}x   vectors within {apart:.1e}", flush=True)
        finally:
            ours.stop()


if __name__ == "__main__":
    sys.exit(main())
