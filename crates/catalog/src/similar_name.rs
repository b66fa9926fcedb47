//! Finds the model that a caller probably meant by a name that matches no model. Knows only the names that the caller
//! may use.

use headrace_identity::Principal;
use strsim::levenshtein;

use crate::catalog::Catalog;

/// The most names that are compared.
const MOST_COMPARED: usize = 200;
/// Longest name that is compared, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// The name most similar to the requested one, among those that `GET /v1/models` lists for the caller. `None` if none
/// is similar.
pub fn similar_name(asked: &str, principal: &Principal, catalog: &Catalog) -> Option<String> {
    let own = catalog
        .names()
        .map(|(name, _)| name)
        .filter(|name| principal.models.allows(name.as_str()))
        .filter(|name| catalog.offers_within(name, &principal.regions));
    nearest(asked, own.map(|name| name.as_str())).map(str::to_owned)
}

/// The most similar of some names. Similar names differ in case, in the path before the last slash, in the extension
/// `.gguf`, or in a few letters.
fn nearest<'a>(asked: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if asked.is_empty() || asked.len() > MAX_NAME_BYTES {
        return None;
    }
    let asked = asked.to_ascii_lowercase();
    let compared = names.filter(|name| name.len() <= MAX_NAME_BYTES).take(MOST_COMPARED);
    let near = compared.filter_map(|name| Some((distance_of(&asked, &name.to_ascii_lowercase())?, name)));
    near.min().map(|(_, name)| name)
}

/// The edit distance of two names in bytes. `None` if they are not similar.
fn distance_of(asked: &str, name: &str) -> Option<usize> {
    if asked == name || core(asked) == core(name) {
        return Some(0);
    }
    let bound = 1 + asked.len() / 4;
    let far = |one: &str, other: &str| {
        let alike = one.len().abs_diff(other.len()) <= bound;
        alike.then(|| levenshtein(one, other)).filter(|far| *far <= bound)
    };
    far(asked, name).into_iter().chain(far(core(asked), core(name))).min()
}

/// A name without leading folders and without the extension `.gguf`.
fn core(name: &str) -> &str {
    let last = name.rsplit('/').next().unwrap_or(name);
    last.strip_suffix(".gguf").unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_name_is_found_and_a_far_one_is_not() {
        let names = ["headrace-demo", "far/tiny.gguf", "qwen3-0.6b", "embed"];
        for (asked, meant) in [
            ("tiny", Some("far/tiny.gguf")),
            ("tiny.gguf", Some("far/tiny.gguf")),
            ("Headrace-Demo", Some("headrace-demo")),
            ("headrace_demo", Some("headrace-demo")),
            ("headrace/headrace-demo", Some("headrace-demo")),
            ("qwen3-0.6B-instruct", None),
            ("qwen3-0.8b", Some("qwen3-0.6b")),
            ("gpt-4o-mini", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(nearest(asked, names.into_iter()), meant, "{asked}");
        }
        let long = "m".repeat(MAX_NAME_BYTES + 1);
        assert_eq!(nearest(&long, [long.as_str()].into_iter()), None, "long names cost nothing");
    }
}
