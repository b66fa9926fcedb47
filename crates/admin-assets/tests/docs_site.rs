//! Checks of every page: all files are served, every link has a target, nothing violates the listener's content
//! security policy, and the sizes are bounded.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use headrace_admin_assets::docs_site::{missing, page, paths, sizes};
use headrace_domain::Code;

/// Maximum compressed size of the texts. Pictures count separately, because they are compressed files already.
const PACKED_MAX_BYTES: usize = 288 * 1024;
const PICTURES_MAX_BYTES: usize = 512 * 1024;

fn html(path: &str) -> &'static str {
    std::str::from_utf8(page(path).unwrap_or_else(|| panic!("no page {path}")).bytes).unwrap()
}

fn pages() -> BTreeMap<String, &'static str> {
    paths()
        .filter(|path| page(path).unwrap().mime.starts_with("text/html"))
        .map(|path| (path.clone(), html(&path)))
        .collect()
}

/// The values of `attribute` in a page.
fn values<'t>(html: &'t str, attribute: &str) -> Vec<&'t str> {
    let before = format!(" {attribute}=\"");
    html.split(before.as_str()).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

fn files(at: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.insert(path.to_str().unwrap().split_once("/docs/").unwrap().1.to_owned());
        }
    }
}

#[test]
fn every_file_under_docs_is_served() {
    let mut found = BTreeSet::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").canonicalize().unwrap(), &mut found);
    assert!(found.len() > 100, "{found:?}");
    for file in found {
        let name = if file == "README.md" { "" } else { file.strip_suffix(".md").unwrap_or(&file) };
        let known = page(&format!("docs/{name}")).unwrap_or_else(|| panic!("{file} is not served"));
        assert!(known.bytes.len() > 100, "{file}: {} bytes", known.bytes.len());
        assert_eq!(page(&format!("docs/{file}")).is_some(), name == file || !name.is_empty(), "{file}");
    }
    assert_eq!(page("docs"), page("docs/"));
}

#[test]
fn every_link_of_every_page_leads_somewhere() {
    let all = pages();
    let ids: BTreeMap<&str, BTreeSet<&str>> =
        all.iter().map(|(path, html)| (path.as_str(), values(html, "id").into_iter().collect())).collect();
    let mut walked = 0;
    for (path, html) in &all {
        for link in values(html, "href").into_iter().chain(values(html, "src")) {
            walked += 1;
            if link.starts_with("https://") || link.starts_with("http://") {
                continue;
            }
            let (address, anchor) = link.split_once('#').map_or((link, None), |(at, to)| (at, Some(to)));
            // Files of the console. A test of the whole program checks them.
            if ["/style/", "/js/", "/icon.svg"].iter().any(|of| address.starts_with(of)) || address == "/" {
                continue;
            }
            let to = if address.is_empty() { path.as_str() } else { address.trim_start_matches('/') };
            assert!(page(to).is_some(), "{path} leads to {link}");
            if let Some(anchor) = anchor {
                assert!(ids[to].contains(anchor), "{path} leads to {link}, which that page has not");
            }
        }
    }
    assert!(walked > 1000, "{walked}");
}

#[test]
fn no_page_has_what_the_policy_would_stop_or_two_of_one_name() {
    for (path, html) in pages() {
        // Texts contain no bare `<` or `>`, so every pair encloses a tag.
        for tag in html.split('<').skip(1).map(|rest| rest.split('>').next().unwrap()) {
            // Attribute values are in quotes and contain none.
            let names: String = tag.split('"').step_by(2).collect();
            assert!(!names.contains(" style") && !names.contains(" on"), "{path}: <{tag}>");
            assert!(!tag.contains("\"javascript:") && !tag.contains("\"data:"), "{path}: <{tag}>");
            assert!(
                !["style", "iframe", "object", "embed", "form", "base"].iter().any(|of| tag.starts_with(of)),
                "{path}: <{tag}>"
            );
        }
        assert_eq!(html.matches("<script").count(), 1, "{path}");
        for source in values(html, "src") {
            assert!(source.starts_with('/'), "{path} loads {source}");
        }
        let ids = values(html, "id");
        let different: BTreeSet<_> = ids.iter().collect();
        assert_eq!(ids.len(), different.len(), "{path}: a name is given twice");
        assert_eq!(html.matches("<h1").count(), 1, "{path}: one first heading");
    }
}

#[test]
fn every_code_of_a_refusal_has_its_page() {
    for code in Code::ALL {
        assert!(page(&format!("docs/errors/{}", code.name())).is_some(), "{}", code.name());
    }
}

#[test]
fn what_is_not_there_is_not_there() {
    for path in
        ["docs/nothing", "doc", "docsx/tour", "docs/../README.md", "docs/TOUR", "tour", "", "docs/%74our"]
    {
        assert_eq!(page(path), None, "{path}");
    }
    let said = std::str::from_utf8(missing().bytes).unwrap();
    assert!(said.contains("There is no such page") && said.contains("href=\"/docs/\""));
}

#[test]
fn the_index_names_every_page_once_and_the_listed_ones_first() {
    let text: String = String::from_utf8(page("docs/index.json").unwrap().bytes.to_vec()).unwrap();
    let addresses: Vec<_> =
        text.split("\"address\":\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(addresses[0], "/docs/tour");
    let different: BTreeSet<_> = addresses.iter().map(|at| at.trim_start_matches('/').to_owned()).collect();
    assert_eq!(different, pages().into_keys().collect());
    assert_eq!(different.len(), addresses.len());
}

/// Maximum size of the search index that a browser fetches, before it is compressed.
const WORDS_MAX_BYTES: usize = 1152 * 1024;

#[test]
fn the_words_of_every_page_are_there_with_addresses_that_lead_to_them() {
    let index = page("docs/words.json").unwrap();
    assert_eq!(index.mime, "application/json");
    assert!(index.bytes.len() < WORDS_MAX_BYTES, "{} bytes", index.bytes.len());
    let index = std::str::from_utf8(index.bytes).unwrap();
    let all = pages();
    let mut found = BTreeSet::new();
    for address in index.split("\"address\":\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        let (path, slug) = address.split_once('#').unwrap_or((address, ""));
        let html = all.get(path.trim_start_matches('/')).unwrap_or_else(|| panic!("{address}: no such page"));
        assert!(slug.is_empty() || html.contains(&format!(" id=\"{slug}\"")), "{address}: no such heading");
        found.insert(path.trim_start_matches('/').to_owned());
    }
    assert_eq!(found, all.into_keys().collect());
    for words in ["429", "fallback", "backup", "out_of_money"] {
        assert!(index.contains(words), "{words}");
    }
}

#[test]
fn tags_differ_where_pages_do() {
    let tags: BTreeSet<_> = paths().map(|path| page(&path).unwrap().etag).collect();
    assert_eq!(tags.len(), paths().count());
}

#[test]
fn it_is_small_in_the_program() {
    let (packed, texts) = sizes();
    let pictures: usize =
        paths().filter(|path| path.ends_with(".png")).map(|path| page(&path).unwrap().bytes.len()).sum();
    println!("{texts} bytes of text take {packed} of the program; pictures take {pictures}");
    assert!(packed <= PACKED_MAX_BYTES && packed * 3 < texts, "{packed} of {texts}");
    assert!(pictures <= PICTURES_MAX_BYTES, "{pictures}");
}
