"""Models that other programs have stored on a machine, built here as those programs lay them out: found, listed and served by their names."""

import hashlib
import json
import os
import shutil
import subprocess

import pytest

from conftest import BINARY, Server


@pytest.fixture(scope="module")
def home(binary, tmp_path_factory):
    """A home where Hugging Face's tools and Ollama have stored a tiny model each."""
    home = tmp_path_factory.mktemp("home")
    made = home / "made"
    for kind, out in [("safetensors", made / "tiny"), ("gguf", made / "tiny.gguf")]:
        made.mkdir(exist_ok=True)
        subprocess.run([binary, "models", "make", "--format", kind, out], check=True, capture_output=True, timeout=120)

    repository = home / ".cache/huggingface/hub/models--acme--Tiny-1M"
    snapshot = repository / "snapshots" / "0123456789abcdef"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    for file in (made / "tiny").iterdir():
        blob = repository / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    partial = home / ".cache/huggingface/hub/models--acme--Half/snapshots/1"
    partial.mkdir(parents=True)
    shutil.copy(made / "tiny" / "config.json", partial)

    digest = hashlib.sha256((made / "tiny.gguf").read_bytes()).hexdigest()
    ollama = home / ".ollama" / "models"
    (ollama / "blobs").mkdir(parents=True)
    shutil.copy(made / "tiny.gguf", ollama / "blobs" / f"sha256-{digest}")
    manifest = ollama / "manifests/registry.ollama.ai/library/tuned/latest"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": 1}
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))
    return home


def environment(home):
    return {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "PATH": os.environ["PATH"]}


def run(home, *arguments):
    command = [str(BINARY), *arguments]
    return subprocess.run(command, cwd=home, env=environment(home), capture_output=True, text=True, timeout=60)


def test_they_are_served_by_their_names(home, tmp_path):
    more = ["--model", "acme/Tiny-1M", "--model", "mine=tuned"]
    server = Server(tmp_path, environment(home), more=more)
    try:
        client = server.openai()
        assert {model.id for model in client.models.list()} == {"acme/Tiny-1M", "mine"}
        for model in ("acme/Tiny-1M", "mine"):
            answer = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "hi"}], max_tokens=4
            )
            assert answer.usage.completion_tokens > 0
        assert "acme/Tiny-1M is Hugging Face's acme/Tiny-1M, at" in server.said()
        assert "tuned is Ollama's tuned:latest, at" in server.said()
        listed = json.loads(server.run("models", "list", "--json").stdout)
        assert listed["served"]["models"] == ["acme/Tiny-1M", "mine"]
    finally:
        server.stop()


def test_they_are_listed_with_what_cannot_be_served(home):
    shown = run(home, "models", "list")
    assert shown.returncode == 0 and "no server runs" in shown.stdout, shown.stderr
    for part in ("acme/Tiny-1M", "tuned:latest", "Hugging Face", "Ollama", "cannot be served: it has no weights"):
        assert part in shown.stdout, shown.stdout
    listed = json.loads(run(home, "models", "list", "--json").stdout)
    names = {stored["name"]: stored["fault"] is None for stored in listed["stored"]}
    assert names == {"acme/Half": False, "acme/Tiny-1M": True, "tuned:latest": True}
    inspected = run(home, "models", "inspect", "tuned")
    assert inspected.returncode == 0 and "Ollama" in inspected.stderr, inspected.stderr


@pytest.mark.parametrize(
    "name, parts",
    [
        ("Qwen/Qwen3-0.6B", ["is no file or directory", "hf download Qwen/Qwen3-0.6B", "Headrace downloads nothing"]),
        ("acme/Tiny-2M", ["there are acme/Tiny-1M"]),
        ("mistral:7b", ["ollama pull mistral:7b"]),
        ("acme/Half", ["has no weights"]),
        ("./nothing", ["no such file or directory"]),
    ],
)
def test_what_is_not_there_is_said_with_the_way_to_get_it(home, name, parts):
    refused = run(home, "up", "--model", name, "--listen", "127.0.0.1:0")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    for part in parts:
        assert part in refused.stderr, refused.stderr
