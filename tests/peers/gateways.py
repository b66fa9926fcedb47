"""Other people's gateways beside ours: LiteLLM's proxy and Portkey's gateway in front of the same mock, under the same load generator, on the
same two cores, in one run of the benchmark `relay`.

    cargo run --release -p xtask -- peers gateways

Installs them into target/peers/gateways (0.8 GB; LiteLLM from PyPI, Portkey's from npm, for which Node is needed), writes how they
are started, and runs the benchmark, which measures ours and theirs: saturated, and at half of that. What cannot be installed here is left
out, by name. Each runs as one process on one core; LiteLLM's has a master key, which ours has as a key with limits, money and a bill.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from peer import ROOT, TARGET, run

LITELLM, PORTKEY = "1.106.2", "1.15.2"
KEY = "sk-benchmark-only-0123456789"
CONFIGURATION = """
model_list:
  - model_name: headrace-demo
    litellm_params: { model: openai/mock-model, api_base: os.environ/MOCK_URL, api_key: none }
litellm_settings: { telemetry: false, set_verbose: false }
"""


def litellm(home):
    """LiteLLM's proxy, with the address of the upstream from a variable."""
    venv = home / "litellm"
    if installed(home / "litellm.installed", LITELLM):
        run([sys.executable, "-m", "venv", "--clear", venv])
        pip = [venv / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, f"litellm[proxy]=={LITELLM}"])
        (home / "litellm.installed").write_text(LITELLM)
    configuration = home / "litellm.yaml"
    configuration.write_text(CONFIGURATION)
    return {
        "name": f"LiteLLM {LITELLM}",
        "argv": [str(venv / "bin/litellm"), "--config", str(configuration), "--host", "127.0.0.1", "--port", "{port}", "--num_workers", "1"],
        # Its list of prices comes with it; from elsewhere it would be fetched at each start.
        "env": {"MOCK_URL": "{upstream}/v1", "LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
        "ready": "/health/liveliness",
    }


def portkey(home):
    """Portkey's gateway, which is told the upstream by a header of each call."""
    folder = home / "portkey"
    if not shutil.which("npm"):
        raise FileNotFoundError("npm is not here")
    if installed(home / "portkey.installed", PORTKEY):
        folder.mkdir(parents=True, exist_ok=True)
        # With the newer ones that it would take, its streams are all 500.
        wanted = {"dependencies": {"@portkey-ai/gateway": PORTKEY}, "overrides": {"@hono/node-server": "1.3.3"}}
        (folder / "package.json").write_text(json.dumps(wanted))
        run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder])
        (home / "portkey.installed").write_text(PORTKEY)
    program = folder / "node_modules/@portkey-ai/gateway/build/start-server.js"
    return {
        "name": f"Portkey {PORTKEY}",
        "argv": ["node", str(program), "--headless", "--port={port}"],
        "env": {"NODE_ENV": "production"},
        "ready": "/",
        "headers": {"x-portkey-provider": "openai", "x-portkey-custom-host": "{upstream}/v1"},
    }


def installed(stamp, version):
    """Whether it has to be installed."""
    return not stamp.exists() or stamp.read_text() != version


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--home", type=Path, default=TARGET / "peers/gateways")
    args.add_argument("--install-only", action="store_true")
    args = args.parse_args()
    home = args.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    peers = []
    for make in (litellm, portkey):
        try:
            peers.append(make(home))
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"left out: {make.__name__}: {error}", flush=True)
    if not peers:
        sys.exit("none of them could be installed here")
    path = home / "peers.json"
    path.write_text(json.dumps(peers, indent=1))
    if args.install_only:
        return
    cargo = os.environ.get("CARGO", "cargo")
    # What everybody does: whole answers and streams.
    env = {"HEADRACE_BENCH_ONLY": "instant,stream", **os.environ, "HEADRACE_BENCH_PEERS": str(path)}
    run([cargo, "bench", "-p", "headrace", "--bench", "relay"], cwd=ROOT, env=env)


if __name__ == "__main__":
    main()
