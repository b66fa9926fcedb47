//! Checks the crate graph of ARCHITECTURE.md: which crate may use which, and which knowledge is restricted to some
//! crates. The rules are data; the code below only compares.

use std::path::Path;

use crate::files;
use crate::metadata::{Kind, Package, workspace};
use crate::shell::{Failure, Place, read};

/// The part of the workspace that a crate belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Shared by both halves.
    Ground,
    /// The engine half. Knows nothing of HTTP, keys, limits or money.
    Engine,
    /// The gateway half. Knows nothing of kernels, KV blocks or weights.
    Gateway,
    /// Stores, clients and the program.
    Around,
    /// Tools of tests. No crate ships them.
    Development,
}

use Part::{Around, Development, Engine, Gateway, Ground};

struct CrateRule {
    name: &'static str,
    part: Part,
    /// Crates that this crate may use, besides `domain`, which every crate may use.
    may_use: &'static [&'static str],
}

const fn rule(name: &'static str, part: Part, may_use: &'static [&'static str]) -> CrateRule {
    CrateRule { name, part, may_use }
}

const CRATES: &[CrateRule] = &[
    rule("kv-layout", Ground, &[]),
    rule("domain", Ground, &["kv-layout"]),
    rule("wire", Ground, &[]),
    rule("relay", Ground, &["wire"]),
    rule("quant", Ground, &[]),
    rule("checkpoint", Ground, &["quant"]),
    rule("tokenizer", Ground, &["checkpoint"]),
    rule("prompt", Ground, &["tokenizer"]),
    rule("inspect", Ground, &["checkpoint", "tokenizer", "prompt"]),
    rule("engine-api", Ground, &[]),
    rule("grammar", Ground, &["tokenizer", "engine-api"]),
    rule("call-api", Ground, &[]),
    rule("scheduler", Engine, &["kv-layout"]),
    rule("kernels", Engine, &["kv-layout", "quant"]),
    rule("model", Engine, &["kv-layout", "kernels", "quant", "checkpoint"]),
    rule("cuda", Engine, &["kv-layout", "kernels", "checkpoint", "model"]),
    rule("engine", Engine, &["kv-layout", "engine-api", "scheduler", "kernels", "tokenizer"]),
    rule("embedder", Engine, &["engine-api", "kernels"]),
    rule("identity", Gateway, &[]),
    rule("jwt", Gateway, &["identity"]),
    rule("limits", Gateway, &[]),
    rule("ledger", Gateway, &[]),
    rule("moderation", Gateway, &[]),
    rule("agent", Gateway, &[]),
    rule("objects", Gateway, &[]),
    rule("fleet", Gateway, &["engine-api"]),
    rule("worker", Gateway, &["engine-api", "call-api"]),
    rule("upstream", Gateway, &["engine-api", "wire", "relay", "tokenizer", "worker", "moderation"]),
    rule(
        "call-state",
        Gateway,
        &["call-api", "engine-api", "wire", "tokenizer", "identity", "limits", "ledger"],
    ),
    rule("rollout", Gateway, &["call-api", "wire", "relay", "identity", "call-state"]),
    rule(
        "catalog",
        Gateway,
        &[
            "engine-api",
            "grammar",
            "tokenizer",
            "prompt",
            "identity",
            "limits",
            "ledger",
            "moderation",
            "fleet",
            "rollout",
        ],
    ),
    rule(
        "render",
        Gateway,
        &["wire", "tokenizer", "prompt", "engine-api", "grammar", "call-state", "catalog"],
    ),
    rule(
        "resources",
        Gateway,
        &["call-api", "wire", "relay", "identity", "ledger", "moderation", "objects", "call-state"],
    ),
    rule(
        "gateway",
        Gateway,
        &[
            "wire",
            "relay",
            "tokenizer",
            "prompt",
            "engine-api",
            "grammar",
            "call-api",
            "identity",
            "jwt",
            "limits",
            "ledger",
            "moderation",
            "objects",
            "fleet",
            "call-state",
            "rollout",
            "catalog",
            "render",
            "resources",
        ],
    ),
    rule("edge", Gateway, &["wire", "call-api"]),
    rule("trace", Around, &[]),
    rule("explain", Around, &["trace"]),
    rule("telemetry", Around, &["trace"]),
    rule("postgres", Around, &["identity", "limits", "ledger", "objects"]),
    rule("valkey", Around, &["limits"]),
    rule("store", Around, &["identity", "limits", "ledger", "objects", "trace", "postgres"]),
    rule("admin", Around, &["identity", "ledger", "trace"]),
    rule("admin-http", Around, &["admin", "identity", "jwt", "ledger"]),
    rule("client", Around, &["wire"]),
    rule("admin-assets", Around, &[]),
    rule("bench", Around, &["client"]),
    rule(
        "config",
        Around,
        &[
            "wire",
            "relay",
            "quant",
            "checkpoint",
            "prompt",
            "engine-api",
            "scheduler",
            "kernels",
            "identity",
            "jwt",
            "limits",
            "ledger",
            "moderation",
            "objects",
            "fleet",
            "worker",
            "upstream",
            "call-state",
            "rollout",
            "catalog",
            "gateway",
            "edge",
            "trace",
            "telemetry",
            "store",
            "admin",
            "client",
        ],
    ),
    rule("terminal", Around, &[]),
    rule("server-access", Around, &["admin", "client", "config", "terminal"]),
    rule("chat", Around, &["trace", "client", "terminal", "server-access"]),
    rule(
        "server",
        Around,
        &[
            "wire",
            "quant",
            "checkpoint",
            "tokenizer",
            "prompt",
            "inspect",
            "engine-api",
            "grammar",
            "call-api",
            "kv-layout",
            "kernels",
            "model",
            "cuda",
            "engine",
            "embedder",
            "identity",
            "jwt",
            "limits",
            "ledger",
            "moderation",
            "objects",
            "fleet",
            "worker",
            "valkey",
            "upstream",
            "call-state",
            "rollout",
            "catalog",
            "gateway",
            "edge",
            "trace",
            "explain",
            "telemetry",
            "store",
            "admin",
            "admin-http",
            "admin-assets",
            "config",
            "terminal",
        ],
    ),
    rule(
        "cli",
        Around,
        &[
            "wire",
            "relay",
            "quant",
            "checkpoint",
            "inspect",
            "engine-api",
            "kv-layout",
            "kernels",
            "model",
            "identity",
            "ledger",
            "trace",
            "explain",
            "store",
            "admin",
            "client",
            "bench",
            "config",
            "terminal",
            "server-access",
            "chat",
            "server",
        ],
    ),
    rule("headrace", Around, &["cli"]),
    rule("xtask", Around, &["wire", "explain"]),
    rule("fault-server", Development, &[]),
    rule("sim", Development, &["kv-layout", "engine-api", "kernels", "engine"]),
];

/// External crates that represent a kind of knowledge, and the crates that may have it.
const KNOWLEDGE: &[(&str, &[&str], &[&str])] = &[
    (
        "HTTP",
        &["http", "http-body", "http-body-util", "hyper", "hyper-util", "axum", "aide", "tower", "reqwest"],
        &["edge", "upstream", "jwt", "admin-http", "client", "bench", "telemetry"],
    ),
    ("WebSockets", &["tokio-tungstenite", "tungstenite"], &["edge"]),
    (
        "TLS",
        &["rustls", "tokio-rustls", "rustls-platform-verifier", "rustls-webpki", "rcgen"],
        &["edge", "client", "upstream", "jwt", "postgres", "valkey"],
    ),
    ("ciphers and signatures", &["aws-lc-rs"], &["edge", "jwt", "store"]),
    ("SQL", &["sqlx", "sqlx-core", "rusqlite", "libsqlite3-sys"], &["store"]),
    ("Valkey", &["redis"], &["valkey"]),
    ("PostgreSQL", &["tokio-postgres", "tokio-postgres-rustls"], &["postgres"]),
    (
        "the command line",
        &["clap", "clap_complete", "clap_mangen", "rustyline", "indicatif"],
        &["server-access", "chat", "cli"],
    ),
    ("configuration files", &["toml"], &["config", "cli", "xtask"]),
    ("chat templates", &["minijinja", "minijinja-contrib"], &["prompt"]),
    ("the arithmetic of weights", &["half"], &["quant", "kernels", "model", "cuda", "config", "cli"]),
    ("GPUs", &["cudarc"], &["cuda"]),
    ("mapped files", &["memmap2"], &["checkpoint"]),
    ("Markdown", &["pulldown-cmark", "pulldown-cmark-escape"], &["admin-assets"]),
];

const PREFIX: &str = "headrace-";

/// Returns the violations, each with its rule.
pub(crate) fn violations(place: &Place) -> Result<Vec<String>, Failure> {
    let packages = workspace(place)?;
    let mut broken: Vec<String> =
        packages.iter().flat_map(|package| of_package(&package_of(package), package)).collect();
    broken.extend(unused_arrows(&packages));
    for package in &packages {
        broken.extend(unused_dependencies(place, package)?);
    }
    Ok(broken)
}

/// Arrows of the graph that no manifest has, and crates of the graph that do not exist.
fn unused_arrows(packages: &[Package]) -> Vec<String> {
    let mut broken = Vec::new();
    for rule in CRATES {
        let Some(package) = packages.iter().find(|package| package_of(package) == rule.name) else {
            broken.push(format!("the graph has `{}`, which is not in the workspace", rule.name));
            continue;
        };
        let depends = |used: &str| {
            let name = format!("{PREFIX}{used}");
            package.dependencies.iter().any(|found| found.kind == Kind::Ships && found.name == name)
        };
        let unused = rule.may_use.iter().filter(|used| !depends(used));
        broken.extend(unused.map(|used| {
            format!(
                "`{}` may use `{used}`, but its manifest does not: remove the arrow from the graph",
                rule.name
            )
        }));
    }
    broken
}

/// Dependencies on crates of the workspace that no source of the package names.
fn unused_dependencies(place: &Place, package: &Package) -> Result<Vec<String>, Failure> {
    let name = package_of(package);
    let folder =
        if name == "xtask" { place.root.join("xtask") } else { place.root.join("crates").join(&name) };
    let mut sources = String::new();
    read_sources(&folder.join("src"), &mut sources)?;
    let ours =
        package.dependencies.iter().filter(|used| used.kind == Kind::Ships && used.name.starts_with(PREFIX));
    let unused = ours.filter(|used| !sources.contains(&used.name.replace('-', "_")));
    Ok(unused
        .map(|used| format!("`{name}` depends on `{}` and does not use it: remove it", used.name))
        .collect())
}

/// Appends the text of all Rust files below a folder.
fn read_sources(folder: &Path, text: &mut String) -> Result<(), Failure> {
    let failed = |error| files::fault(folder, &error);
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            read_sources(&path, text)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            *text += &read(&path)?;
        }
    }
    Ok(())
}

fn package_of(package: &Package) -> String {
    package.name.strip_prefix(PREFIX).unwrap_or(&package.name).to_owned()
}

fn find(name: &str) -> Option<&'static CrateRule> {
    CRATES.iter().find(|rule| rule.name == name)
}

fn of_package(name: &str, package: &Package) -> Vec<String> {
    let Some(rule) = find(name) else {
        return vec![format!(
            "`{name}` is not in the crate graph: add it to ARCHITECTURE.md and to xtask/src/graph.rs"
        )];
    };
    let broken = package.dependencies.iter().filter_map(|dependency| {
        match (dependency.name.strip_prefix(PREFIX), dependency.kind) {
            (Some(used), Kind::Ships) => ships(rule, used),
            (Some(used), Kind::Tests) => tests(rule, used),
            (None, Kind::Ships) => knows(rule, &dependency.name),
            (None, Kind::Tests) => None,
        }
    });
    broken.collect()
}

fn ships(rule: &CrateRule, used: &str) -> Option<String> {
    if used == "domain" || rule.may_use.contains(&used) {
        return None;
    }
    let allowed =
        if rule.may_use.is_empty() { String::new() } else { format!(", {}", rule.may_use.join(", ")) };
    let wall = match (rule.part, find(used).map(|rule| rule.part)) {
        (Engine, Some(Gateway)) => " (engine crates know nothing of HTTP, keys, limits or money)",
        (Gateway, Some(Engine)) => " (gateway crates know nothing of kernels, KV blocks or weights)",
        (_, Some(Development)) => " (a development crate is only for tests)",
        _ => "",
    };
    Some(format!("`{}` uses `{used}`; it may use only domain{allowed}{wall}", rule.name))
}

/// Tests may use more crates, but not of the other half. Code that needs both halves is tested in `sim` or above.
fn tests(rule: &CrateRule, used: &str) -> Option<String> {
    let broken = match (rule.part, find(used)?.part) {
        (Ground, part) => part != Ground,
        (Engine, part) => part == Gateway,
        (Gateway, part) => part == Engine,
        (Around | Development, _) => false,
    };
    broken.then(|| {
        format!(
            "the tests of `{}` use `{used}` of the other half: move them to `sim`, `headrace` or the seam",
            rule.name
        )
    })
}

fn knows(rule: &CrateRule, external: &str) -> Option<String> {
    let (what, _, crates) = KNOWLEDGE.iter().find(|(_, crates, _)| crates.contains(&external))?;
    (!crates.contains(&rule.name)).then(|| {
        format!("`{}` uses the crate `{external}`; only {} may know {what}", rule.name, crates.join(", "))
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
            ("upstream", Kind::Ships, "headrace-fault-server", "only for tests"),
            ("server", Kind::Ships, "headrace-sim", "only for tests"),
            ("config", Kind::Ships, "headrace-server", "may use only domain"),
            ("server", Kind::Ships, "headrace-cli", "may use only domain"),
            ("cellar", Kind::Ships, "serde", "not in the crate graph"),
        ] {
            let broken = check(name, kind, used);
            assert!(broken.len() == 1 && broken.concat().contains(rule), "{name} → {used}: {broken:?}");
        }
        for (name, kind, used) in [
            ("engine", Kind::Ships, "headrace-scheduler"),
            ("engine", Kind::Ships, "headrace-domain"),
            ("gateway", Kind::Tests, "headrace-sim"),
            ("upstream", Kind::Tests, "headrace-fault-server"),
            ("ledger", Kind::Ships, "serde"),
        ] {
            assert!(check(name, kind, used).is_empty(), "{name} → {used}");
        }
    }

    #[test]
    fn names_arrows_that_no_manifest_has() {
        let package = |used: &[&str]| Package {
            name: format!("{PREFIX}prompt"),
            dependencies: used
                .iter()
                .map(|used| Dependency { name: format!("{PREFIX}{used}"), kind: Kind::Ships })
                .collect(),
        };
        let of_prompt = |packages: &[Package]| {
            let broken = unused_arrows(packages);
            broken.into_iter().filter(|broken| broken.starts_with("`prompt`")).collect::<Vec<_>>()
        };
        assert!(of_prompt(&[package(&["tokenizer"])]).is_empty());
        assert_eq!(of_prompt(&[package(&["domain"])]).len(), 1);
        assert!(unused_arrows(&[]).concat().contains("`prompt`, which is not in the workspace"));
    }

    #[test]
    fn the_page_has_a_row_for_each_crate() {
        let page = include_str!("../../ARCHITECTURE.md");
        for rule in CRATES {
            let start = format!("| `{}` | ", rule.name);
            let rows = page.lines().filter(|line| line.starts_with(&start)).count();
            assert_eq!(rows, 1, "rows of `{}` in ARCHITECTURE.md", rule.name);
        }
        assert!(
            page.len() <= 16 << 10,
            "ARCHITECTURE.md has {} bytes: move details to docs/internals",
            page.len()
        );
    }

    /// The table is closed and without cycles, and keeps the halves apart, also through indirect dependencies.
    #[test]
    fn the_table_keeps_the_halves_apart_and_points_downwards() {
        fn reach(name: &str, seen: &mut Vec<&'static str>) {
            for used in find(name).unwrap().may_use {
                assert!(find(used).is_some(), "{name} may use `{used}`, which is not in the graph");
                if !seen.contains(used) {
                    seen.push(used);
                    reach(used, seen);
                }
            }
        }
        for rule in CRATES {
            let mut seen = Vec::new();
            reach(rule.name, &mut seen);
            assert!(!seen.contains(&rule.name), "{} uses itself in the end", rule.name);
            for used in seen {
                let part = find(used).unwrap().part;
                let wall = match rule.part {
                    Ground => part != Ground,
                    Engine => matches!(part, Gateway | Around | Development),
                    Gateway => matches!(part, Engine | Around | Development),
                    Around => part == Development,
                    Development => false,
                };
                assert!(!wall, "{} may reach {used}", rule.name);
            }
        }
    }
}
