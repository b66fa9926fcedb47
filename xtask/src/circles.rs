//! Checks that neither the files nor the top-level modules of a crate import each other in a circle, since then none
//! can be read first. Checks the files of the console's JavaScript too, and that its pages do not import each other.
//! Knows the imports, not how they are read from Rust sources.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::imports::{Imports, Sources, imports};
use crate::shell::{Failure, read};

/// Allowed circles: crate, modules, reason.
type Allowed = &'static [(&'static str, &'static [&'static str], &'static str)];

/// Allowed circles of files.
const FILES: Allowed = &[];

/// Allowed circles of top-level modules.
const MODULES: Allowed = &[];

/// The folder of the console's JavaScript.
const SCRIPTS: &str = "crates/admin-assets/assets/js";
/// The folder of the console's pages, below [`SCRIPTS`].
const SCRIPT_PAGES: &str = "pages/";
/// The scripts that may import pages.
const IMPORTERS_OF_PAGES: [&str; 2] = ["main.js", "router.js"];

/// Returns the violations, each with the names of the imports.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>, Failure> {
    let mut broken = Vec::new();
    for folder in crate_folders(root)? {
        let mut sources = Sources::new();
        collect(&folder.join("src"), "", &mut sources)?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let imports = imports(&sources);
        broken.extend(of_crate(&name, &imports, FILES));
        broken.extend(of_crate(&name, &of_modules(&imports), MODULES));
    }
    let scripts = script_imports(&root.join(SCRIPTS))?;
    broken.extend(of_crate(SCRIPTS, &scripts, FILES));
    broken.extend(page_imports(&scripts));
    Ok(broken)
}

/// Imports of the console's pages by other scripts than [`IMPORTERS_OF_PAGES`].
fn page_imports(scripts: &Imports) -> Vec<String> {
    let importers = scripts.iter().filter(|(script, _)| !IMPORTERS_OF_PAGES.contains(&script.as_str()));
    let pages = importers.flat_map(|(script, taken)| {
        let taken = taken.iter().filter(|(from, _)| from.starts_with(SCRIPT_PAGES));
        taken.map(move |(from, names)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!(
                "`{SCRIPTS}`: {script} takes {} from the page {from}: move it to a module that both import",
                names.join(", ")
            )
        })
    });
    pages.collect()
}

/// The imports between top-level modules: each file counts as its first folder. The crate's root, which declares the
/// modules, is left out.
fn of_modules(imports: &Imports) -> Imports {
    let top = |module: &str| module.split("::").next().unwrap_or_default().to_owned();
    let mut folded = Imports::new();
    for (module, taken) in imports.iter().filter(|(module, _)| !module.is_empty()) {
        let module = top(module);
        let row = folded.entry(module.clone()).or_default();
        for (from, names) in taken {
            let from = top(from);
            if !from.is_empty() && from != module {
                row.entry(from).or_default().extend(names.iter().cloned());
            }
        }
    }
    folded
}

/// The imports between scripts, by path below `folder`.
fn script_imports(folder: &Path) -> Result<Imports, Failure> {
    let mut open = vec![folder.to_owned()];
    let mut imports = Imports::new();
    while let Some(inside) = open.pop() {
        for path in entries(&inside)? {
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|end| end == "js") {
                let relative = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
                let row = imported_scripts(&relative, &read(&path)?);
                imports.insert(relative, row);
            }
        }
    }
    Ok(imports)
}

/// The scripts that a script imports statically, with the text of the import as its name.
fn imported_scripts(script: &str, text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut row: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for import in text.split("import ").skip(1) {
        let Some((names, rest)) = import.split_once(" from '") else { continue };
        let Some((target, _)) = rest.split_once('\'') else { continue };
        if names.contains(';') || !target.starts_with('.') {
            continue;
        }
        let mut path: Vec<&str> = script.split('/').collect();
        path.pop();
        for part in target.split('/') {
            match part {
                "." => {}
                ".." => drop(path.pop()),
                name => path.push(name),
            }
        }
        row.entry(path.join("/")).or_default().insert(names.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    row
}

fn entries(folder: &Path) -> Result<Vec<std::path::PathBuf>, Failure> {
    let failed = |error| Failure::new(format!("{}: {error}", folder.display()), "check its permissions");
    let listed = std::fs::read_dir(folder).map_err(failed)?;
    listed.map(|entry| Ok(entry.map_err(failed)?.path())).collect()
}

fn crate_folders(root: &Path) -> Result<Vec<std::path::PathBuf>, Failure> {
    let mut folders = entries(&root.join("crates"))?;
    folders.push(root.join("xtask"));
    folders.retain(|folder| folder.join("src").is_dir());
    folders.sort();
    Ok(folders)
}

/// Collects the sources below a folder. The names of their modules start with `prefix`.
fn collect(folder: &Path, prefix: &str, sources: &mut Sources) -> Result<(), Failure> {
    for path in entries(folder)? {
        let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        let module = match (prefix, stem) {
            ("", "lib" | "main") => String::new(),
            ("", stem) => stem.to_owned(),
            (prefix, stem) => format!("{prefix}::{stem}"),
        };
        if path.is_dir() {
            collect(&path, &module, sources)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            sources.insert(module, read(&path)?);
        }
    }
    Ok(())
}

fn of_crate(name: &str, imports: &Imports, allowed: &[(&str, &[&str], &str)]) -> Vec<String> {
    let circles = circles(imports);
    let is = |circle: &BTreeSet<&str>, modules: &[&str]| {
        circle.len() == modules.len() && circle.iter().all(|module| modules.contains(module))
    };
    let allowed = || allowed.iter().filter(|(of, ..)| *of == name).map(|(_, modules, _)| *modules);
    let mut broken: Vec<String> = circles
        .iter()
        .filter(|circle| !allowed().any(|modules| is(circle, modules)))
        .map(|circle| describe(name, circle, imports))
        .collect();
    let stale = allowed().filter(|modules| !circles.iter().any(|circle| is(circle, modules)));
    broken.extend(stale.map(|modules| {
        format!("`{name}`: {} are no circle any more: take them off the list", modules.join(", "))
    }));
    broken
}

/// Sets of modules in which each imports every other, directly or indirectly.
fn circles(imports: &Imports) -> BTreeSet<BTreeSet<&str>> {
    let reach = |from: &str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(module) = open.pop() {
            for next in imports.get(&module).into_iter().flat_map(|taken| taken.keys()) {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    };
    let reached: Vec<(&str, BTreeSet<String>)> =
        imports.keys().map(|module| (module.as_str(), reach(module))).collect();
    let in_circle = reached.iter().filter(|(module, reach)| reach.contains(*module));
    in_circle
        .map(|(module, reach)| {
            let back =
                reached.iter().filter(|(other, back)| reach.contains(*other) && back.contains(*module));
            back.map(|(other, _)| *other).collect()
        })
        .collect()
}

fn describe(name: &str, circle: &BTreeSet<&str>, imports: &Imports) -> String {
    let ties = circle.iter().flat_map(|module| {
        let taken = imports.get(*module).into_iter().flatten();
        let taken = taken.filter(|(from, _)| circle.contains(from.as_str()));
        taken.map(move |(from, names)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("{} takes {} from {}", shown(module), names.join(", "), shown(from))
        })
    });
    let ties: Vec<String> = ties.collect();
    format!("`{name}`: {} files import each other in a circle: {}", circle.len(), ties.join("; "))
}

fn shown(module: &str) -> &str {
    if module.is_empty() { "the crate's root" } else { module }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::Place;

    fn check(files: &[(&str, &str)], allowed: &[(&str, &[&str], &str)]) -> Vec<String> {
        let sources = files.iter().map(|(module, text)| ((*module).to_owned(), (*text).to_owned())).collect();
        of_crate("name", &imports(&sources), allowed)
    }

    #[test]
    fn no_crate_has_a_circle() {
        let broken = violations(&Place::find().unwrap().root).unwrap();
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    #[test]
    fn a_circle_is_told_with_the_names_that_tie_it() {
        let face = "mod a; mod b; mod c; pub use a::One; pub(crate) use b::{Two, Three as Third};";
        for (a, b, ties) in [
            ("use crate::b::Two;", "use super::a::{self, One};", 2),
            // Through a re-export of the crate, a renamed import, a path in code, a macro, and a third file.
            ("use crate::Third;", "fn f() { crate::One::new() }", 2),
            ("macro_rules! m { () => { $crate::b::Two } }", "use crate::{One, c};", 2),
            ("use crate::b::*;", "use crate::c::Four;", 3),
        ] {
            let broken = check(&[("", face), ("a", a), ("b", b), ("c", "use crate::a::One;")], &[]);
            assert_eq!(broken.len(), 1, "{a} {b}: {broken:?}");
            assert!(broken.concat().matches(" takes ").count() >= ties, "{a} {b}: {broken:?}");
        }
        // A parent uses its child, which uses a definition of the parent.
        let nested = [("p", "mod c; use c::C; pub struct P;"), ("p::c", "use super::P; pub struct C;")];
        assert_eq!(check(&nested, &[]).len(), 1);
    }

    #[test]
    fn what_is_no_circle_passes() {
        for (parent, child) in [
            // The parent re-exports the child's name.
            ("mod c; pub use c::C; pub struct P;", "use super::P; pub struct C;"),
            // Only the parent's tests import the child.
            ("mod c; pub struct P; #[cfg(test)] mod tests { use super::c::C; }", "use super::P;"),
            ("mod c; pub struct P;", "pub struct C; #[cfg(test)] use super::P;"),
            // The parent of an inline module is the file itself.
            (
                "mod c; use c::C;",
                "pub struct C; mod inner { use super::C; } mod more { mod deep { use super::super::C; } }",
            ),
            ("mod c; // use c::C;\nconst X: &str = \"c::C\";", "use super::P;"),
        ] {
            let broken = check(&[("p", parent), ("p::c", child)], &[]);
            assert!(broken.is_empty(), "{parent} {child}: {broken:?}");
        }
    }

    #[test]
    fn folders_count_as_one_module() {
        let files = [("a", ""), ("a::x", "use crate::b::B;"), ("b", ""), ("b::y", "use crate::a::A;")];
        let sources = files.iter().map(|(module, text)| ((*module).to_owned(), (*text).to_owned())).collect();
        let imports = imports(&sources);
        assert!(of_crate("name", &imports, &[]).is_empty());
        assert_eq!(of_crate("name", &of_modules(&imports), &[]).len(), 1);
    }

    #[test]
    fn reads_the_imports_of_a_script() {
        let text = "// import x from './no.js';\nimport { one,\n two } from '../ui/parts.js';\nimport three from './request.js';\nimport('./late.js');\nimport v from 'vendor';";
        let row = imported_scripts("pages/now.js", text);
        let paths: Vec<&str> = row.keys().map(String::as_str).collect();
        assert_eq!(paths, ["pages/no.js", "pages/request.js", "ui/parts.js"]);
    }

    #[test]
    fn only_the_router_and_the_start_import_pages() {
        let import = "import { json } from './pages/money.js';";
        for (script, text, count) in [
            ("pages/now.js", "import { json } from './money.js';", 1),
            ("playground/turn.js", "import { json } from '../pages/money.js';", 1),
            ("shell.js", import, 1),
            ("router.js", import, 0),
            ("main.js", import, 0),
            ("router.js", "const load = () => import('./pages/money.js');", 0),
            ("pages/now.js", "import { json } from '../ui/parts.js';", 0),
        ] {
            let scripts = Imports::from([(script.to_owned(), imported_scripts(script, text))]);
            let broken = page_imports(&scripts);
            assert_eq!(broken.len(), count, "{script} {text}: {broken:?}");
            assert!(broken.iter().all(|line| line.contains("{ json }") && line.contains("pages/money.js")));
        }
    }

    #[test]
    fn an_allowed_circle_passes_and_must_be_one() {
        let files = [("a", "use crate::b::B;"), ("b", "use crate::a::A;"), ("c", "")];
        assert!(check(&files, &[("name", &["a", "b"], "they are one")]).is_empty());
        assert_eq!(check(&files, &[("other", &["a", "b"], "they are one")]).len(), 1);
        assert_eq!(check(&files, &[("name", &["a", "b"], "so"), ("name", &["b", "c"], "so")]).len(), 1);
    }
}
