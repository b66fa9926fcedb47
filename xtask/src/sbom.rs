//! Lists the parts of the program as a CycloneDX document, from `cargo metadata`, `cargo tree` and `Cargo.lock`. A
//! crate that the program is built from on this target is `required`. Every other crate of `Cargo.lock` (tests, other
//! targets) is `excluded`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use toml::Table;

use crate::shell::{Failure, Place, capture, read};

/// The version of CycloneDX.
const SPECIFICATION: &str = "1.5";

/// The document as text.
pub(crate) fn document(place: &Place, target: &str, version: &str, made: &str) -> Result<String, Failure> {
    let arguments = ["metadata", "--format-version", "1", "--locked", "--filter-platform", target];
    let line = format!("cargo {}", arguments.join(" "));
    let printed = capture(place.command(&place.cargo).args(arguments), &line)?;
    let metadata: Value = serde_json::from_str(&printed)
        .map_err(|error| wrong(format!("`{line}` printed no JSON: {error}")))?;
    let lock: Table = read(&place.root.join("Cargo.lock"))?
        .parse()
        .map_err(|error| wrong(format!("Cargo.lock: {error}")))?;
    let when = capture(
        place.command("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ"]).arg(format!("--date=@{made}")),
        "date",
    )?;
    let required = built(place, target)?;
    let document = assemble(&metadata, &lock, &required, target, version, when.trim())?;
    let text = serde_json::to_string_pretty(&document).map_err(|error| wrong(error.to_string()))?;
    Ok(text + "\n")
}

/// The package URL of a crate, which is its name in the document.
pub(crate) fn package_url(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

fn assemble(
    metadata: &Value,
    lock: &Table,
    required: &BTreeSet<String>,
    target: &str,
    version: &str,
    when: &str,
) -> Result<Value, Failure> {
    let known: BTreeMap<String, &Value> =
        list(metadata, "/packages").iter().map(|package| (url(package), package)).collect();
    let edges = edges(metadata);
    let main = known
        .keys()
        .find(|url| url.starts_with("pkg:cargo/headrace@"))
        .ok_or_else(|| wrong("cargo metadata names no package headrace".to_owned()))?;
    let rows = lock.get("package").and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
    let components: Vec<Value> = rows
        .iter()
        .filter_map(|row| component(row, &known, required))
        .filter(|component| component.get("bom-ref").and_then(Value::as_str) != Some(main))
        .collect();
    let depends = |url: &String| {
        let all = edges.get(url).cloned().unwrap_or_default();
        json!({"ref": url, "dependsOn": all.intersection(required).collect::<Vec<_>>()})
    };
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "version": 1,
        "metadata": {
            "timestamp": when,
            "component": {
                "type": "application", "bom-ref": main, "name": "headrace", "version": version, "purl": main,
                "licenses": [{"expression": text(known.get(main).copied(), "/license")}],
                "properties": [{"name": "cargo:target", "value": target}],
            },
        },
        "components": components,
        "dependencies": required.iter().map(depends).collect::<Vec<_>>(),
    }))
}

/// One crate of `Cargo.lock`. Its licence is known if cargo resolved it for this target.
fn component(
    row: &toml::Value,
    known: &BTreeMap<String, &Value>,
    required: &BTreeSet<String>,
) -> Option<Value> {
    let word = |name: &str| row.get(name).and_then(toml::Value::as_str);
    let (name, version) = (word("name")?, word("version")?);
    let url = package_url(name, version);
    let scope = if required.contains(&url) { "required" } else { "excluded" };
    let mut out = json!({
        "type": "library", "bom-ref": url, "name": name, "version": version, "scope": scope, "purl": url,
    });
    let licence = text(known.get(&url).copied(), "/license").replace('/', " OR ");
    if let Some(fields) = out.as_object_mut() {
        if let Some(sum) = word("checksum") {
            fields.insert("hashes".to_owned(), json!([{"alg": "SHA-256", "content": sum}]));
        }
        if !licence.is_empty() {
            fields.insert("licenses".to_owned(), json!([{"expression": licence}]));
        }
    }
    Some(out)
}

/// For each crate, the crates that it or its build script contains. Dependencies of tests are left out.
fn edges(metadata: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let names: BTreeMap<&str, String> = list(metadata, "/packages")
        .iter()
        .filter_map(|package| Some((package.get("id")?.as_str()?, url(package))))
        .collect();
    let ships = |dependency: &&Value| {
        list(dependency, "/dep_kinds")
            .iter()
            .any(|kind| kind.get("kind").and_then(Value::as_str) != Some("dev"))
    };
    let name = |id: &Value| names.get(id.as_str()?).cloned();
    list(metadata, "/resolve/nodes")
        .iter()
        .filter_map(|node| {
            let to = list(node, "/deps")
                .iter()
                .filter(ships)
                .filter_map(|dependency| name(dependency.get("pkg")?));
            Some((name(node.get("id")?)?, to.collect()))
        })
        .collect()
}

/// The crates that the program is built from on this target, with its features. `cargo metadata` would add features
/// that only tests use.
pub(crate) fn built(place: &Place, target: &str) -> Result<BTreeSet<String>, Failure> {
    let selected = ["tree", "-p", "headrace", "--locked", "-e", "normal,build", "--target", target];
    let arguments = [&selected[..], &["--prefix", "none", "-f", "{p}"]].concat();
    let tree =
        capture(place.command(&place.cargo).args(&arguments), &format!("cargo {}", arguments.join(" ")))?;
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        Some(package_url(words.next()?, words.next()?.trim_start_matches('v')))
    };
    Ok(tree.lines().filter_map(line).collect())
}

fn url(package: &Value) -> String {
    package_url(&text(Some(package), "/name"), &text(Some(package), "/version"))
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text(value: Option<&Value>, pointer: &str) -> String {
    value.and_then(|value| value.pointer(pointer)).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn wrong(what: String) -> Failure {
    Failure::new(format!("the list of parts: {what}"), "see xtask/src/sbom.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_of_tests_and_of_other_targets_are_excluded() {
        let package =
            |name: &str| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0"});
        let needs = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package("headrace"), package("a"), package("b"), package("t")],
            "resolve": {"nodes": [
                {"id": "headrace", "deps": [needs("a", Value::Null), needs("t", json!("dev"))]},
                {"id": "a", "deps": [needs("b", json!("build")), needs("t", Value::Null)]},
                {"id": "b", "deps": []}, {"id": "t", "deps": []},
            ]},
        });
        let row =
            |name: &str| format!("[[package]]\nname = \"{name}\"\nversion = \"1.0.0\"\nchecksum = \"00\"\n");
        let lock: Table = ["a", "b", "headrace", "t", "windows"].map(row).concat().parse().unwrap();
        let required = ["headrace", "a", "b"].map(|name| package_url(name, "1.0.0")).into();
        let made = assemble(&metadata, &lock, &required, "x", "1.0.0", "1970-01-01T00:00:00Z").unwrap();
        let scopes: Vec<_> = list(&made, "/components")
            .iter()
            .map(|row| {
                (
                    text(Some(row), "/name"),
                    text(Some(row), "/scope"),
                    text(Some(row), "/licenses/0/expression"),
                )
            })
            .collect();
        let row =
            |name: &str, scope: &str, licence: &str| (name.to_owned(), scope.to_owned(), licence.to_owned());
        let either = "MIT OR Apache-2.0";
        assert_eq!(
            scopes,
            [
                row("a", "required", either),
                row("b", "required", either),
                row("t", "excluded", either),
                row("windows", "excluded", "")
            ]
        );
        assert_eq!(made.pointer("/dependencies/0/dependsOn"), Some(&json!(["pkg:cargo/b@1.0.0"])));
        assert_eq!(made.pointer("/dependencies/2/dependsOn"), Some(&json!(["pkg:cargo/a@1.0.0"])));
    }
}
