//! Checks licences, sources and banned crates of every dependency against `deny.toml`, without cargo-deny. If
//! cargo-deny is installed, it runs too. Does not check security advisories.

use std::collections::BTreeSet;

use toml::Table;

use crate::shell::{Done, Failure, Place, capture, read};

/// Runs the step.
pub(crate) fn check(place: &Place) -> Result<Done, Failure> {
    let policy = Policy::read(place)?;
    let packages = built(place)?;
    let mut broken = policy.violations(&packages);
    broken.extend(policy.foreign_sources(&read(&place.root.join("Cargo.lock"))?));
    if !broken.is_empty() {
        return Err(Failure::new(
            format!("dependencies break deny.toml:\n  {}", broken.join("\n  ")),
            "use another crate, or change deny.toml with the reason",
        ));
    }
    println!("{} dependencies: every licence, source and version is allowed by deny.toml", packages.len());
    let installed = place.command(&place.cargo).args(["deny", "--version"]).output();
    if installed.is_ok_and(|output| output.status.success()) {
        place.cargo(&["deny", "--offline", "check", "licenses", "bans", "sources"], &[])?;
    } else {
        println!(
            "cargo-deny is not installed, so the check above stands alone; advisories: `cargo deny check advisories`"
        );
    }
    Ok(Done::Passed)
}

/// A dependency that is really built. (`Cargo.lock` lists more: optional dependencies that are not enabled.)
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    licence: String,
}

/// Every dependency on this platform, including those of tests.
fn built(place: &Place) -> Result<BTreeSet<Package>, Failure> {
    let arguments = ["tree", "--workspace", "--locked", "-e", "all", "--prefix", "none", "-f", "{p}\t{l}"];
    let line = format!("cargo {}", arguments.join(" "));
    let printed = capture(place.command(&place.cargo).args(arguments), &line).map_err(|failure| {
        failure.with_remedy("if Cargo.lock is behind the manifests: cargo update --workspace")
    })?;
    Ok(printed.lines().filter_map(package).collect())
}

/// Parses `NAME vVERSION (…)`, a tab, and the licence. Skips packages with a path, such as the workspace's own.
fn package(line: &str) -> Option<Package> {
    let (package, licence) = line.split_once('\t')?;
    let mut words = package.split_whitespace();
    let (name, version) = (words.next()?, words.next()?.trim_start_matches('v'));
    if words.any(|word| word.starts_with("(/")) {
        return None;
    }
    let licence = licence.trim_end_matches(" (*)").trim().to_owned();
    Some(Package { name: name.to_owned(), version: version.to_owned(), licence })
}

/// The parts of `deny.toml` that are checked here.
struct Policy {
    allowed: Vec<String>,
    banned: Vec<String>,
    single: Vec<String>,
    registry: String,
}

impl Policy {
    fn read(place: &Place) -> Result<Self, Failure> {
        let bad = |why: String| Failure::new(format!("deny.toml: {why}"), "mend deny.toml");
        let table: Table =
            read(&place.root.join("deny.toml"))?.parse().map_err(|error| bad(format!("{error}")))?;
        let list = |section: &str, key: &str| {
            table.get(section).and_then(|section| section.get(key)).and_then(toml::Value::as_array).cloned()
        };
        let words = |values: Vec<toml::Value>| -> Vec<String> {
            values.iter().filter_map(toml::Value::as_str).map(str::to_owned).collect()
        };
        let allowed = list("licenses", "allow").map(words).unwrap_or_default();
        let registries = list("sources", "allow-registry").map(words).unwrap_or_default();
        if allowed.is_empty() {
            return Err(bad("`licenses.allow` is missing or empty".to_owned()));
        }
        let Some(registry) = registries.into_iter().next() else {
            return Err(bad("`sources.allow-registry` is missing or empty".to_owned()));
        };
        let (mut banned, mut single) = (Vec::new(), Vec::new());
        for row in list("bans", "deny").unwrap_or_default() {
            let Some(name) = row.get("crate").and_then(toml::Value::as_str) else {
                return Err(bad("a row of `bans.deny` has no `crate`".to_owned()));
            };
            let several = row.get("deny-multiple-versions").and_then(toml::Value::as_bool).unwrap_or(false);
            if several { &mut single } else { &mut banned }.push(name.to_owned());
        }
        Ok(Self { allowed, banned, single, registry })
    }

    fn violations(&self, packages: &BTreeSet<Package>) -> Vec<String> {
        let mut broken = Vec::new();
        for Package { name, version, licence } in packages {
            if self.banned.contains(name) {
                broken.push(format!("{name} {version} is banned"));
            }
            if !allowed(licence, &self.allowed) {
                broken.push(format!("{name} {version} is under `{licence}`"));
            }
        }
        for name in &self.single {
            let versions: Vec<_> = packages.iter().filter(|package| package.name == *name).collect();
            if versions.len() > 1 {
                let versions: Vec<_> = versions.iter().map(|package| package.version.as_str()).collect();
                broken.push(format!("{name} is there in several versions: {}", versions.join(", ")));
            }
        }
        broken
    }

    /// Sources in `Cargo.lock` other than the registry.
    fn foreign_sources(&self, lock: &str) -> Vec<String> {
        let sources = lock.lines().filter_map(|line| line.strip_prefix("source = "));
        let foreign = sources.filter(|source| !source.contains(&self.registry));
        foreign.map(|source| format!("Cargo.lock takes a crate from {source}")).collect()
    }
}

/// Whether an SPDX expression can be satisfied by allowed licences only. Also accepts `/`, the old notation of OR.
fn allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut words = words.as_slice();
    either(&mut words, allowed) && words.is_empty()
}

fn either(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut met = both(words, allowed);
    while let [first, rest @ ..] = *words {
        if *first != "OR" {
            break;
        }
        *words = rest;
        met |= both(words, allowed);
    }
    met
}

fn both(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut met = one(words, allowed);
    while let [first, rest @ ..] = *words {
        if *first != "AND" {
            break;
        }
        *words = rest;
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut &[&str], allowed: &[String]) -> bool {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let met = either(words, allowed);
            let closed = words.first() == Some(&")");
            *words = words.get(1..).unwrap_or_default();
            met && closed
        }
        [licence, "WITH", exception, rest @ ..] => {
            *words = rest;
            let whole = format!("{licence} WITH {exception}");
            allowed.contains(&whole)
        }
        [licence, rest @ ..] => {
            *words = rest;
            allowed.iter().any(|known| known == licence)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_means_them() {
        let known = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        for (expression, met) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("(GPL-3.0 OR MIT) AND Apache-2.0", true),
            ("Apache-2.0 AND (GPL-3.0 OR ISC)", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH LLVM-exception", false),
            ("(MIT", false),
            ("MIT )", false),
            ("", false),
        ] {
            assert_eq!(allowed(expression, &known), met, "{expression}");
        }
    }

    #[test]
    fn what_breaks_the_policy_is_named() {
        let policy = Policy {
            allowed: vec!["MIT".to_owned()],
            banned: vec!["ring".to_owned()],
            single: vec!["hyper".to_owned()],
            registry: "registry.example".to_owned(),
        };
        let tree = "a v0.1.0 (/somewhere/a)\tApache-2.0\nring v1.0.0\tMIT\nhyper v0.14.0\tMIT\nhyper v1.0.0\tMIT (*)\n\
                    odd v0.1.0\t\nmacros v2.0.0 (proc-macro)\tMIT";
        let packages: BTreeSet<Package> = tree.lines().filter_map(package).collect();
        let broken = policy.violations(&packages);
        let wanted = [
            "odd 0.1.0 is under ``",
            "ring 1.0.0 is banned",
            "hyper is there in several versions: 0.14.0, 1.0.0",
        ];
        assert_eq!(broken, wanted);
        let lock = "source = \"registry+https://registry.example/index\"\nsource = \"git+https://elsewhere.example\"";
        assert_eq!(policy.foreign_sources(lock).len(), 1);
    }
}
