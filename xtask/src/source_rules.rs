//! Rules that can be checked by reading the sources: file sizes, file heads and forbidden text. Knows text only; the
//! crate graph checks dependencies.

use std::path::{Path, PathBuf};

use crate::shell::{Failure, read};

/// Files with more lines need a reason in [`LONGER`], or must be split.
const MOST_LINES: usize = 600;
/// Files that may be longer, with the reason. A type is not cut into several files for its length.
const LONGER: &[(&str, &str)] = &[
    ("crates/edge/src/connection.rs", "one type: the connection and its timeouts"),
    ("crates/fleet/src/tests.rs", "tests that share their fixtures"),
    ("crates/server/src/upstreams.rs", "one type: the registry of upstreams"),
    ("crates/ledger/src/state.rs", "one type: the state of the ledger"),
    ("crates/wire/src/json/reader.rs", "one type: the pull parser"),
];
/// Sources that may contain `unsafe`: the kernels, the mapping of files, and the one file that calls a GPU's driver.
const UNSAFE_PLACES: &[&str] = &["crates/kernels/", "crates/checkpoint/", "crates/cuda/src/device/nvidia"];

/// Text that no source may contain, and why. Written in pieces, so that this file does not contain it.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("todo", "!("), "finish it or leave it out"),
    (concat!("unimplemented", "!("), "finish it or leave it out"),
    (concat!("dbg", "!("), "use tracing"),
    (concat!("FIX", "ME"), "fix it, or open an issue"),
    (concat!("#[ign", "ore"), "a test that does not run shows nothing"),
];

/// The crate that may name types of SQLite. All others open `Storage` by its URL.
const SQLITE_PLACE: &str = "crates/store/";
/// How the names of those types start.
const SQLITE_TYPES: &str = concat!("Sql", "ite");

/// The start of an example in a doc comment. cargo would compile each example alone. Examples belong in tests, in
/// pages, or in [`EXAMPLE_PAGES`].
const DOC_EXAMPLES: [&str; 2] = [concat!("///", " ```"), concat!("//!", " ```")];

/// Crates whose root documentation starts with an example, which the test command runs.
pub(crate) const EXAMPLE_PAGES: [&str; 1] = ["scheduler"];

/// Text that no file of the repository may contain: leaked secrets and paths of a developer's machine.
const CANARIES: &[(&str, &str)] = &[
    (concat!("PRIVATE ", "KEY-----"), "a private key; make one in the test"),
    (concat!("sk-", "proj-"), "looks like a provider's key"),
    (concat!("sk-", "ant-api"), "looks like a provider's key"),
    (concat!("/home", "/"), "a path of somebody's machine"),
    (concat!("/root", "/."), "a path of somebody's machine"),
];

/// Returns the violations, each with file and line.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>, Failure> {
    let mut files = Vec::new();
    for folder in ["crates", "xtask", "docs", "tests", ".ci"] {
        collect(&root.join(folder), &mut files)?;
    }
    for page in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "Cargo.toml"] {
        files.push(root.join(page));
    }
    let mut broken = Vec::new();
    for file in files.iter().filter(|file| file.exists()) {
        let name = file.strip_prefix(root).unwrap_or(file).to_string_lossy().replace('\\', "/");
        of_text(&name, &read(file)?, &mut broken);
    }
    Ok(broken)
}

/// Collects source and documentation files, without test data, which may contain anything.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let failed = |error| Failure::new(format!("{}: {error}", folder.display()), "check its permissions");
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            if !["data", "target", "corpus", "artifacts", "__pycache__"].contains(&name) {
                collect(&path, files)?;
            }
        } else if name == "run"
            || path
                .extension()
                .and_then(|end| end.to_str())
                .is_some_and(|end| ["rs", "md", "py", "toml"].contains(&end))
        {
            files.push(path);
        }
    }
    Ok(())
}

fn of_text(name: &str, text: &str, broken: &mut Vec<String>) {
    let source = name.ends_with(".rs");
    let shipped = source && name.contains("/src/");
    for (at, line) in text.lines().enumerate() {
        let mut forbid = |what: &str, why: &str| broken.push(format!("{name}:{}: `{what}`: {why}", at + 1));
        for (what, why) in CANARIES {
            if line.contains(what) {
                forbid(what, why);
            }
        }
        for (what, why) in FORBIDDEN.iter().filter(|_| source) {
            if line.contains(what) {
                forbid(what, why);
            }
        }
        if source && !name.starts_with(SQLITE_PLACE) && names_sqlite_type(line) {
            forbid(SQLITE_TYPES, "only store names types of SQLite: open `Storage` by its URL");
        }
        if shipped
            && !is_example_page(name)
            && DOC_EXAMPLES.iter().any(|begin| line.trim_start().starts_with(begin))
        {
            forbid("```", "doc examples are run for EXAMPLE_PAGES alone: write a test");
        }
        if shipped && says_unsafe(line) && !UNSAFE_PLACES.iter().any(|place| name.starts_with(place)) {
            forbid("unsafe", "only the kernels, the mapping of files and the call of a GPU may need it");
        }
    }
    if !shipped {
        return;
    }
    let lines = text.lines().count();
    if lines > MOST_LINES && !LONGER.iter().any(|(file, _)| *file == name) {
        broken.push(format!("{name}: {lines} lines, more than {MOST_LINES}: split it"));
    }
    if !text.starts_with("//!") {
        broken.push(format!("{name}: begins without `//!`: say what it is for and what it must not know"));
    }
    if name.ends_with("/mod.rs") {
        broken.push(format!("{name}: name the file after its module"));
    }
}

fn is_example_page(name: &str) -> bool {
    EXAMPLE_PAGES.iter().any(|example| name == format!("crates/{example}/src/lib.rs"))
}

/// Returns `true` if the code contains the word. Comments and lint names do not count.
fn says_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    ["{", "fn", "impl", "extern"]
        .iter()
        .any(|what| code.contains(&format!("{} {what}", concat!("un", "safe"))))
}

/// Returns `true` if the line names a type such as the store of keys in SQLite.
fn names_sqlite_type(line: &str) -> bool {
    line.match_indices(SQLITE_TYPES).any(|(at, _)| {
        let starts = !line.get(..at).unwrap_or_default().ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let rest = line.get(at + SQLITE_TYPES.len()..).unwrap_or_default();
        starts && rest.starts_with(|c: char| c.is_ascii_uppercase())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::Place;

    #[test]
    fn every_rule_holds() {
        let broken = violations(&Place::find().unwrap().root).unwrap();
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    #[test]
    fn every_breach_is_told_with_file_and_line() {
        let long = format!("//! Long.\n{}", "\n".repeat(MOST_LINES));
        let key = format!("-----BEGIN {}", CANARIES[0].0);
        let unfinished = format!("//! It.\nfn f() {{ {}) }}", FORBIDDEN[0].0);
        let unsound = format!("//! It.\n{} fn f() {{}}", concat!("un", "safe"));
        for (name, text, wanted) in [
            ("crates/a/src/long.rs", long.as_str(), "601 lines"),
            ("crates/a/src/bare.rs", "fn f() {}", "begins without"),
            ("crates/a/src/a/mod.rs", "//! It.", "after its module"),
            ("crates/a/src/b.rs", unfinished.as_str(), "crates/a/src/b.rs:2"),
            ("crates/edge/src/b.rs", unsound.as_str(), "only the kernels"),
            ("crates/a/tests/e.rs", concat!("use s::Sql", "iteFiles;"), "only store"),
            ("crates/a/src/d.rs", "//! It.\n/// ```\nfn f() {}", "crates/a/src/d.rs:2"),
            ("README.md", key.as_str(), "README.md:1"),
        ] {
            let mut broken = Vec::new();
            of_text(name, text, &mut broken);
            assert!(broken.len() == 1 && broken[0].contains(wanted), "{name}: {broken:?}");
        }
        let mut none = Vec::new();
        of_text("crates/kernels/src/b.rs", &unsound, &mut none);
        of_text("crates/store/tests/e.rs", concat!("use s::Sql", "iteFiles;"), &mut none);
        of_text("crates/a/tests/e.rs", "// SQLite, Sqlite or MySqliteX.", &mut none);
        of_text("crates/a/src/c.rs", &unsound.replace("//! It.\n", "//! It.\n// "), &mut none);
        assert!(none.is_empty(), "{none:?}");
    }
}
