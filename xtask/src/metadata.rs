//! The parts of `cargo metadata` that the checks need. Decides nothing.

use serde_json::Value;

use crate::shell::{Failure, Place, capture};

/// A package.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) dependencies: Vec<Dependency>,
}

/// A dependency in a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

/// What a dependency is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The crate itself, or its build script.
    Ships,
    /// The crate's tests and benchmarks.
    Tests,
}

/// The workspace's own packages, read without network access.
pub(crate) fn workspace(place: &Place) -> Result<Vec<Package>, Failure> {
    let arguments = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    let line = format!("cargo {}", arguments.join(" "));
    let text = capture(place.command(&place.cargo).args(arguments), &line)?;
    let parsed: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::new(format!("`{line}` printed no JSON: {error}"), "update cargo"))?;
    Ok(list(&parsed, "packages").iter().map(package).collect())
}

fn package(value: &Value) -> Package {
    Package {
        name: text(value, "name"),
        dependencies: list(value, "dependencies").iter().map(dependency).collect(),
    }
}

fn dependency(value: &Value) -> Dependency {
    let tests = value.get("kind").and_then(Value::as_str) == Some("dev");
    Dependency { name: text(value, "name"), kind: if tests { Kind::Tests } else { Kind::Ships } }
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}
