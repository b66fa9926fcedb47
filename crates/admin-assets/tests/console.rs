//! Checks of the console's files: every file is in the program, none is too large, and no construct could turn text
//! into markup or code.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use headrace_admin_assets::console::{CONTENT_SECURITY_POLICY, asset, paths};

/// Maximum size of the first page, with everything that its modules import before they run.
const FIRST_PAGE_MAX_BYTES: usize = 200 * 1024;
const FILE_MAX_LINES: usize = 600;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets")
}

fn walk(at: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push(path.strip_prefix(folder()).unwrap().to_str().unwrap().replace('\\', "/"));
        }
    }
}

fn on_disk() -> Vec<String> {
    let mut found = Vec::new();
    walk(&folder(), &mut found);
    found.sort();
    found
}

fn text(path: &str) -> &'static str {
    std::str::from_utf8(asset(path).unwrap_or_else(|| panic!("no file {path}")).bytes).unwrap()
}

/// The paths of this project's own files that end in `end`. Vendored files are left out.
fn ours(end: &str) -> Vec<&'static str> {
    paths().filter(|path| path.ends_with(end) && !path.starts_with("vendor/")).collect()
}

#[test]
fn every_file_of_the_folder_is_in_the_program_and_is_the_same() {
    let mut listed: Vec<_> = paths().map(str::to_owned).collect();
    listed.sort();
    assert_eq!(listed, on_disk());
    for path in paths() {
        assert_eq!(asset(path).unwrap().bytes, std::fs::read(folder().join(path)).unwrap(), "{path}");
    }
}

#[test]
fn tags_differ_where_files_do() {
    let mut tags: Vec<_> = paths().map(|path| asset(path).unwrap().etag).collect();
    assert!(tags.iter().all(|tag| tag.len() == 18 && tag.starts_with('"') && tag.ends_with('"')));
    tags.sort_unstable();
    tags.dedup();
    assert_eq!(tags.len(), paths().count());
}

/// The static imports of a module, as paths.
fn imports(path: &str) -> Vec<String> {
    let base = Path::new(path).parent().unwrap();
    let from = |import: &str| {
        let name = import.split(" from '").nth(1)?.split('\'').next()?;
        let mut whole = Vec::new();
        for part in base.join(name).iter() {
            match part.to_str()? {
                "." => {}
                ".." => drop(whole.pop()),
                part => whole.push(part.to_owned()),
            }
        }
        Some(whole.join("/"))
    };
    // An import may have several lines.
    text(path).split("\nimport ").skip(1).filter_map(from).collect()
}

#[test]
fn the_first_page_is_light() {
    let mut all = vec![
        "index.html".to_owned(),
        "icon.svg".to_owned(),
        "js/main.js".to_owned(),
        "js/pages/now.js".to_owned(),
    ];
    // Only pages of the documentation use this sheet.
    all.extend(ours(".css").into_iter().filter(|path| *path != "style/book.css").map(str::to_owned));
    // Files that the first page fetches beside its modules.
    all.extend(["vendor/uplot.js".to_owned(), "vendor/uplot.css".to_owned()]);
    let mut at = 0;
    while at < all.len() {
        if all[at].ends_with(".js") && !all[at].starts_with("vendor/") {
            for path in imports(&all[at].clone()) {
                if !all.contains(&path) {
                    all.push(path);
                }
            }
        }
        at += 1;
    }
    let bytes: usize =
        all.iter().map(|path| asset(path).unwrap_or_else(|| panic!("{path}")).bytes.len()).sum();
    println!("{bytes} bytes in {} files", all.len());
    assert!(bytes <= FIRST_PAGE_MAX_BYTES, "{bytes} bytes: {all:?}");
}

#[test]
fn nothing_in_the_sources_can_make_markup_or_code_of_text() {
    for path in ours(".js") {
        for (at, line) in text(path).lines().enumerate() {
            let code = line.trim_start();
            if code.starts_with("//") || code.starts_with('*') || code.starts_with("/*") {
                continue;
            }
            for banned in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "DOMParser",
                "createContextualFragment",
                "setHTML",
                "srcdoc",
                "eval(",
                "new Function",
                "javascript:",
                ".cssText",
                "setAttribute('style",
                "setTimeout('",
                "setInterval('",
            ] {
                assert!(!code.contains(banned), "{path}:{}: {banned}", at + 1);
            }
        }
    }
    for path in ours(".js").into_iter().filter(|path| *path != "js/dom.js") {
        assert!(!text(path).contains("createElement"), "{path}: elements are made in dom.js alone");
    }
    let page = text("index.html");
    for banned in ["style=", "<style", "javascript:", "http://", "https://", "onload", "onclick", "onerror"] {
        assert!(!page.contains(banned), "index.html: {banned}");
    }
    assert_eq!(
        page.matches("<script").count(),
        page.matches("<script type=\"module\" src=\"/").count(),
        "a script without a file"
    );
}

#[test]
fn nothing_is_loaded_from_elsewhere() {
    for path in ours(".js").into_iter().chain(ours(".css")) {
        for (at, line) in text(path).lines().enumerate() {
            let loads =
                ["src: 'http", "import('http", "from 'http", "url(http", "url(//", "@import", "fetch('http"];
            assert!(!loads.iter().any(|what| line.contains(what)), "{path}:{}: {line}", at + 1);
        }
    }
    for directive in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ] {
        assert!(CONTENT_SECURITY_POLICY.contains(directive), "{directive}");
    }
    assert!(
        !CONTENT_SECURITY_POLICY.contains("unsafe") && !CONTENT_SECURITY_POLICY.contains("  "),
        "{CONTENT_SECURITY_POLICY}"
    );
}

#[test]
fn files_say_what_they_are_for_and_are_no_longer_than_others() {
    for path in ours(".js").into_iter().chain(ours(".css")) {
        let begins = if path.ends_with(".js") { "// " } else { "/* " };
        assert!(text(path).starts_with(begins), "{path}: begins without a word on what it is for");
        let lines = text(path).lines().count();
        assert!(lines <= FILE_MAX_LINES, "{path}: {lines} lines");
    }
}

#[test]
fn what_is_vendored_stands_with_its_licence() {
    assert!(
        text("vendor/uplot.LICENSE").contains("MIT")
            && text("vendor/uplot.js").starts_with("/*! https://github.com/leeoniya/uPlot")
    );
}

/// A module that no other module imports is dead code.
#[test]
fn every_module_is_reached_from_a_page() {
    let mut reached = vec!["js/main.js".to_owned(), "js/book.js".to_owned()];
    let mut at = 0;
    while at < reached.len() {
        let path = reached[at].clone();
        let base = Path::new(&path).parent().unwrap().to_str().unwrap().to_owned();
        let mut found = imports(&path);
        found.extend(
            text(&path)
                .split("import('./")
                .skip(1)
                .filter_map(|rest| Some(format!("{base}/{}", rest.split('\'').next()?))),
        );
        for one in found {
            assert!(asset(&one).is_some(), "{path} imports {one}, which is not there");
            if !reached.contains(&one) {
                reached.push(one);
            }
        }
        at += 1;
    }
    reached.sort();
    let mut all: Vec<_> = ours(".js").into_iter().map(str::to_owned).collect();
    all.sort();
    assert_eq!(reached, all);
}
