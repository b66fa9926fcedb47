//! Other servers and clients, tested with Headrace on demand. Each is a script in `tests/peers` that installs its peer
//! itself. Knows where the scripts are, not what they check.

use crate::python;
use crate::shell::{Failure, Place, show};

/// Name, script and purpose.
const PEERS: &[(&str, &str, &str)] = &[
    (
        "haproxy",
        "tests/peers/haproxy.py",
        "three servers behind HAProxy, restarted in turn under load: no call fails",
    ),
    ("vllm", "tests/peers/vllm.py", "a real vLLM behind Headrace: same ids, its cache, and its death"),
    (
        "gateways",
        "tests/peers/gateways.py",
        "LiteLLM's and Portkey's gateways beside ours, same load, same mock",
    ),
    (
        "codex",
        "tests/peers/codex.py",
        "OpenAI's Codex CLI: turns with patches and a shell on a scripted model",
    ),
    ("aider", "tests/peers/aider.py", "aider: edits in both dialects on a scripted model"),
];

/// Runs one script against the release program, after building it.
pub(crate) fn run(place: &Place, name: &str, more: &[&str]) -> Result<(), Failure> {
    let Some((_, script, _)) = PEERS.iter().find(|(peer, ..)| *peer == name) else {
        return Err(Failure::new(format!("there is no peer `{name}`"), list()));
    };
    python::install(place)?;
    place.cargo(&["build", "--release"], &[])?;
    let mut command = place.command(python::python(place));
    command.arg(script).args(more).env("CARGO_TARGET_DIR", &place.target).env("PYTHONDONTWRITEBYTECODE", "1");
    show(&mut command, &format!("target/venv/bin/python {script} {}", more.join(" ")))
}

/// The list of peers, for people.
pub(crate) fn list() -> String {
    let rows = PEERS.iter().map(|(name, _, what)| format!("  peers {name:<14} {what}\n"));
    rows.collect()
}
