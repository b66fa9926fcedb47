//! Generates the reference of the admin API, `docs/admin-api.md`, from the committed OpenAPI document. A test of
//! `admin-http` keeps the document up to date. Must not know any route.

mod json;
mod schema;

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::prose::wrapped;
use crate::shell::{Failure, read};
use json::{list, object, slug, text_of};
use schema::{Types, cell, words};

pub(crate) const PAGE: &str = "docs/admin-api.md";

/// The OpenAPI document that the page is generated from.
const DOCUMENT: &str = "crates/admin-http/openapi.json";
/// The prefix of every path.
const ROOT: &str = "/admin/v1";
/// The text before the first route.
const HEAD: &str = include_str!("admin_api/head.md");
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// Generates the page.
///
/// # Errors
/// A [`Failure`] if the document is missing or not valid JSON.
pub(crate) fn page(root: &Path) -> Result<String, Failure> {
    let text = read(&root.join(DOCUMENT))?;
    let document: Value = serde_json::from_str(&text).map_err(|error| {
        let remedy = "HEADRACE_BLESS=1 cargo test -p headrace-admin-http writes it anew";
        Failure::new(format!("{DOCUMENT}: {error}"), remedy)
    })?;
    Ok(written(&document))
}

fn written(document: &Value) -> String {
    let about = document.pointer("/info/description").and_then(Value::as_str).unwrap_or_default();
    let types = Types::of(document);
    let mut page = HEAD.replace("{about}", &wrapped(about));
    // Group the routes by subject, in the order of each subject's first route.
    let (mut list, mut chapters) = (String::new(), Vec::<(&str, String)>::new());
    for (path, item) in object(document.get("paths")) {
        let short = path.strip_prefix(ROOT).unwrap_or(path);
        let subject = short.split('/').nth(1).unwrap_or_default();
        for (method, route) in METHODS.iter().filter_map(|method| Some((method, item.get(*method)?))) {
            let name = format!("{} {short}", method.to_uppercase());
            let says = text_of(route, "summary");
            let _ = writeln!(list, "| [`{name}`](#{}) | {} | {} |", slug(&name), cell(says), roles(route));
            match chapters.iter_mut().find(|(of, _)| *of == subject) {
                Some((_, routes)) => *routes += &described(&name, route),
                None => chapters.push((subject, described(&name, route))),
            }
        }
    }
    let _ = write!(page, "\n| route | what it does | for |\n|---|---|---|\n{list}");
    for (subject, routes) in chapters {
        let _ = write!(page, "\n## {subject}\n{routes}");
    }
    page + "\n## Types\n" + &types.written()
}

/// Describes a route: its purpose and roles, its parameters and body, and its responses.
fn described(name: &str, route: &Value) -> String {
    let mut out = format!("\n### `{name}`\n\n{}. For {}.\n", text_of(route, "summary"), roles(route));
    let parameters = list(route.get("parameters"));
    if !parameters.is_empty() {
        out += "\n| parameter | in | type | what |\n|---|---|---|---|\n";
        for parameter in parameters {
            let schema = parameter.get("schema").unwrap_or(&Value::Null);
            let (name, place) = (text_of(parameter, "name"), text_of(parameter, "in"));
            let what = cell(text_of(parameter, "description"));
            let _ = writeln!(out, "| `{name}` | {place} | {} | {what} |", words(schema, false));
        }
    }
    if let Some(body) = route.get("requestBody") {
        let _ = write!(out, "\nTakes {}.\n", content(body).unwrap_or_else(|| "a body".to_owned()));
    }
    let mut answers: Vec<String> = Vec::new();
    for (status, answer) in object(route.get("responses")).filter(|(status, _)| *status != "default") {
        let says = text_of(answer, "description").trim_end_matches('.');
        answers.push(match content(answer) {
            Some(what) => format!("**{status}** with {what}"),
            None => format!("**{status}**, {says}"),
        });
    }
    if !answers.is_empty() {
        let _ = write!(out, "\nAnswers {}.\n", answers.join("; "));
    }
    out
}

/// Describes a body by its type.
fn content(of: &Value) -> Option<String> {
    let (kind, media) = object(of.get("content")).next()?;
    let schema = words(media.get("schema")?, false);
    Some(if kind == "application/json" { schema } else { format!("{schema} as `{kind}`") })
}

/// The roles that may call a route. The document lists them after `For:`.
fn roles(route: &Value) -> &str {
    let says = text_of(route, "description");
    match says.strip_prefix("For: ").unwrap_or(says).trim_end_matches('.') {
        "owner, admin, billing, developer, viewer" => "every role",
        roles => roles,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::Place;

    #[test]
    fn the_committed_page_is_what_the_document_says_of_every_route_and_type() {
        let root = Place::find().unwrap().root;
        let wanted = page(&root).unwrap();
        let document: Value = serde_json::from_str(&read(&root.join(DOCUMENT)).unwrap()).unwrap();
        for (path, item) in object(document.get("paths")) {
            for (method, route) in object(Some(item)) {
                let name = format!("{} {}", method.to_uppercase(), path.strip_prefix(ROOT).unwrap());
                assert_eq!(wanted.matches(&format!("\n### `{name}`\n")).count(), 1, "{name}");
                assert!(!roles(route).is_empty(), "{name}");
            }
        }
        // Every heading is unique, and every link within the page leads to a heading.
        let headings: Vec<_> = wanted
            .lines()
            .filter(|line| line.starts_with('#'))
            .map(|line| slug(line.trim_start_matches('#').trim()))
            .collect();
        let each: std::collections::BTreeSet<_> = headings.iter().collect();
        assert_eq!(each.len(), headings.len());
        for link in wanted.split("](#").skip(1).filter_map(|rest| rest.split(')').next()) {
            assert!(headings.iter().any(|heading| heading == link), "{link}");
        }
        assert!(
            ["Key", "NewKey", "ErrorDetail"].iter().all(|of| wanted.contains(&format!("\n### Type {of}\n")))
        );
        let found = read(&root.join(PAGE)).unwrap();
        assert!(
            found == wanted,
            "{PAGE} is out of date: `cargo run --release -p xtask -- generate` writes it"
        );
    }
}
