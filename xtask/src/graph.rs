//! Checks the crate graph of ARCHITECTURE.md: which crate may use which, and which knowledge is restricted to some
//! crates. The rules are data; the code below only compares.

use crate::metadata::{Kind, Package, workspace};
use crate::shell::{Failure, Place};

/// The part of the workspace that a crate belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Shared by both halves.
    Ground,
    /// The engine half. Knows nothing of HTTP, keys, limits or money.
    Engine,
    /// The gateway half. Knows nothing of kernels, KV blocks or weights.
    Gateway,
    /// Stores, clients, the simulation and the program.
    Around,
}

use Part::{Around, Engine, Gateway, Ground};

struct Room {
    name: &'static str,
    part: Part,
    /// Crates that this crate may use, besides `domain`, which every crate may use.
    may_use: &'static [&'static str],
}

const fn room(name: &'static str, part: Part, may_use: &'static [&'static str]) -> Room {
    Room { name, part, may_use }
}

const ROOMS: &[Room] = &[
    room("domain", Ground, &[]),
    room("wire", Ground, &[]),
    room("quant", Ground, &[]),
    room("checkpoint", Ground, &["quant"]),
    room("tokenizer", Ground, &["checkpoint"]),
    room("prompt", Ground, &["tokenizer"]),
    room("lens", Ground, &["checkpoint", "tokenizer", "prompt"]),
    room("engine-api", Ground, &[]),
    room("grammar", Ground, &["tokenizer", "engine-api"]),
    room("call-api", Ground, &[]),
    room("scheduler", Engine, &[]),
    room("kernels", Engine, &["quant"]),
    room("model", Engine, &["kernels", "quant", "checkpoint"]),
    room("cuda", Engine, &["kernels", "checkpoint", "model"]),
    room("engine", Engine, &["engine-api", "scheduler", "kernels", "tokenizer"]),
    room("embedder", Engine, &["engine-api", "kernels"]),
    room("identity", Gateway, &[]),
    room("limits", Gateway, &[]),
    room("ledger", Gateway, &[]),
    room("moderation", Gateway, &[]),
    room("objects", Gateway, &[]),
    room("fleet", Gateway, &["engine-api", "wire"]),
    room("worker", Gateway, &["engine-api", "call-api"]),
    room("upstream", Gateway, &["engine-api", "wire", "tokenizer", "worker"]),
    room(
        "gateway",
        Gateway,
        &[
            "wire",
            "checkpoint",
            "tokenizer",
            "prompt",
            "engine-api",
            "grammar",
            "call-api",
            "identity",
            "limits",
            "ledger",
            "moderation",
            "objects",
            "fleet",
        ],
    ),
    room("edge", Gateway, &["call-api"]),
    room("trace", Around, &[]),
    room("explain", Around, &["trace"]),
    room("telemetry", Around, &["trace"]),
    room("store", Around, &["identity", "ledger", "limits", "objects", "trace"]),
    room("admin", Around, &["identity", "limits", "ledger", "moderation", "fleet", "gateway", "trace"]),
    room("admin-http", Around, &["admin", "identity", "ledger", "trace"]),
    room("client", Around, &["wire"]),
    room("book", Around, &[]),
    room("console", Around, &[]),
    room("bench", Around, &["client"]),
    room("hostile", Around, &[]),
    room(
        "sim",
        Around,
        &[
            "wire",
            "checkpoint",
            "tokenizer",
            "prompt",
            "engine-api",
            "grammar",
            "scheduler",
            "kernels",
            "engine",
            "identity",
            "limits",
            "ledger",
            "moderation",
            "objects",
            "fleet",
            "gateway",
            "store",
            "trace",
        ],
    ),
    room(
        "headrace",
        Around,
        &[
            "wire",
            "quant",
            "checkpoint",
            "tokenizer",
            "prompt",
            "lens",
            "engine-api",
            "grammar",
            "call-api",
            "scheduler",
            "kernels",
            "model",
            "cuda",
            "engine",
            "embedder",
            "identity",
            "limits",
            "ledger",
            "moderation",
            "objects",
            "fleet",
            "worker",
            "upstream",
            "gateway",
            "edge",
            "trace",
            "explain",
            "telemetry",
            "store",
            "admin",
            "admin-http",
            "book",
            "console",
            "client",
            "bench",
        ],
    ),
    room("xtask", Around, &["wire", "trace", "explain"]),
];

/// External crates that represent a kind of knowledge, and the crates that may have it.
const KNOWLEDGE: &[(&str, &[&str], &[&str])] = &[
    (
        "HTTP",
        &["http", "http-body", "http-body-util", "hyper", "hyper-util", "axum", "aide", "tower", "reqwest"],
        &["edge", "upstream", "admin-http", "client", "bench", "telemetry", "headrace"],
    ),
    ("WebSockets", &["tokio-tungstenite", "tungstenite"], &["edge"]),
    (
        "TLS",
        &["rustls", "tokio-rustls", "rustls-platform-verifier", "rustls-webpki", "aws-lc-rs", "rcgen"],
        &["edge", "client", "upstream", "headrace"],
    ),
    ("SQL", &["sqlx", "sqlx-core", "rusqlite", "libsqlite3-sys"], &["store"]),
    (
        "the command line and configuration files",
        &["clap", "clap_complete", "clap_mangen", "rustyline", "toml", "indicatif"],
        &["headrace", "xtask"],
    ),
    ("chat templates", &["minijinja", "minijinja-contrib"], &["prompt"]),
    ("the arithmetic of weights", &["half"], &["quant", "kernels", "model", "cuda", "headrace"]),
    ("GPUs", &["cudarc"], &["cuda"]),
    ("mapped files", &["memmap2"], &["checkpoint"]),
    ("Markdown", &["pulldown-cmark", "pulldown-cmark-escape"], &["book"]),
];

const PREFIX: &str = "headrace-";

/// Returns the violations, each with its rule.
pub(crate) fn violations(place: &Place) -> Result<Vec<String>, Failure> {
    let packages = workspace(place)?;
    Ok(packages.iter().flat_map(|package| of_package(&package_of(package), package)).collect())
}

fn package_of(package: &Package) -> String {
    package.name.strip_prefix(PREFIX).unwrap_or(&package.name).to_owned()
}

fn find(name: &str) -> Option<&'static Room> {
    ROOMS.iter().find(|room| room.name == name)
}

fn of_package(name: &str, package: &Package) -> Vec<String> {
    let Some(room) = find(name) else {
        return vec![format!(
            "`{name}` is no room of the house: add it to ARCHITECTURE.md and to xtask/src/graph.rs"
        )];
    };
    let broken = package.dependencies.iter().filter_map(|dependency| {
        match (dependency.name.strip_prefix(PREFIX), dependency.kind) {
            (Some(used), Kind::Ships) => ships(room, used),
            (Some(used), Kind::Tests) => tests(room, used),
            (None, Kind::Ships) => knows(room, &dependency.name),
            (None, Kind::Tests) => None,
        }
    });
    broken.collect()
}

fn ships(room: &Room, used: &str) -> Option<String> {
    if used == "domain" || room.may_use.contains(&used) {
        return None;
    }
    let allowed =
        if room.may_use.is_empty() { String::new() } else { format!(", {}", room.may_use.join(", ")) };
    let wall = match (room.part, find(used).map(|room| room.part)) {
        (Engine, Some(Gateway)) => " (engine rooms know nothing of HTTP, keys, limits or money)",
        (Gateway, Some(Engine)) => " (gateway rooms know nothing of kernels, KV blocks or weights)",
        _ => "",
    };
    Some(format!("`{}` uses `{used}`; it may use only domain{allowed}{wall}", room.name))
}

/// Tests may use more crates, but not of the other half. Code that needs both halves is tested in `sim` or above.
fn tests(room: &Room, used: &str) -> Option<String> {
    let broken = match (room.part, find(used)?.part) {
        (Ground, part) => part != Ground,
        (Engine, part) => part == Gateway,
        (Gateway, part) => part == Engine,
        (Around, _) => false,
    };
    broken.then(|| {
        format!(
            "the tests of `{}` use `{used}` of the other half: move them to `sim`, `headrace` or the seam",
            room.name
        )
    })
}

fn knows(room: &Room, external: &str) -> Option<String> {
    let (what, _, rooms) = KNOWLEDGE.iter().find(|(_, crates, _)| crates.contains(&external))?;
    (!rooms.contains(&room.name)).then(|| {
        format!("`{}` uses the crate `{external}`; only {} may know {what}", room.name, rooms.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn check(name: &str, kind: Kind, used: &str) -> Vec<String> {
        let package = Package {
            name: format!("{PREFIX}{name}"),
            dependencies: vec![Dependency { name: used.to_owned(), kind }],
        };
        of_package(name, &package)
    }

    #[test]
    fn the_crate_graph_is_the_one_that_is_drawn() {
        let broken = violations(&Place::find().unwrap()).unwrap();
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    #[test]
    fn every_breach_is_told_with_its_rule() {
        for (name, kind, used, rule) in [
            ("engine", Kind::Ships, "headrace-ledger", "keys, limits or money"),
            ("gateway", Kind::Ships, "headrace-kernels", "KV blocks or weights"),
            ("limits", Kind::Ships, "headrace-ledger", "may use only domain"),
            ("scheduler", Kind::Tests, "headrace-identity", "the other half"),
            ("wire", Kind::Tests, "headrace-engine", "the other half"),
            ("ledger", Kind::Ships, "sqlx", "only store may know SQL"),
            ("gateway", Kind::Ships, "hyper", "only edge"),
            ("cellar", Kind::Ships, "serde", "no room"),
        ] {
            let broken = check(name, kind, used);
            assert!(broken.len() == 1 && broken.concat().contains(rule), "{name} → {used}: {broken:?}");
        }
        for (name, kind, used) in [
            ("engine", Kind::Ships, "headrace-scheduler"),
            ("engine", Kind::Ships, "headrace-domain"),
            ("gateway", Kind::Tests, "headrace-sim"),
            ("ledger", Kind::Ships, "serde"),
        ] {
            assert!(check(name, kind, used).is_empty(), "{name} → {used}");
        }
    }

    /// The table is closed and without cycles, and keeps the halves apart, also through indirect dependencies.
    #[test]
    fn the_table_keeps_the_halves_apart_and_points_downwards() {
        fn reach(name: &str, seen: &mut Vec<&'static str>) {
            for used in find(name).unwrap().may_use {
                assert!(find(used).is_some(), "{name} may use `{used}`, which is no room");
                if !seen.contains(used) {
                    seen.push(used);
                    reach(used, seen);
                }
            }
        }
        for room in ROOMS {
            let mut seen = Vec::new();
            reach(room.name, &mut seen);
            assert!(!seen.contains(&room.name), "{} uses itself in the end", room.name);
            for used in seen {
                let part = find(used).unwrap().part;
                let wall = match room.part {
                    Ground => part != Ground,
                    Engine => matches!(part, Gateway | Around),
                    Gateway => matches!(part, Engine | Around),
                    Around => false,
                };
                assert!(!wall, "{} may reach {used}", room.name);
            }
        }
    }
}
