//! The page that explains errors: every code that an answer can carry is an anchor on it.
//! Reads codes out of the sources that define them; knows no error's meaning.

use std::collections::BTreeSet;
use std::path::Path;

use crate::shell::{Failure, read};

const PAGE: &str = "docs/errors.md";
/// Sources whose `=> "code"` arms are codes that answers and traces carry.
const SOURCES: &[&str] = &[
    "crates/ledger/src/refusal.rs",
    "crates/identity/src/error.rs",
    "crates/gateway/src/authenticate.rs",
    "crates/gateway/src/authorize.rs",
];
/// The source of the request parser's codes: `const NAME: &str = "code"`.
const PARSER: &str = "crates/wire/src/fault.rs";

/// Sources that make refusals themselves: after each of these words the first string is a code.
const REFUSING: &[&str] = &["crates/gateway/src", "crates/edge/src"];
const REFUSALS: &[&str] =
    &["Why::new(", "Self::new(", "bad_request(", "why(", "overloaded(", "ErrorFacts::new(", "ErrorKind::"];

/// Codes that no anchor explains.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>, Failure> {
    let anchors = anchors(&read(&root.join(PAGE))?);
    let mut codes: BTreeSet<String> = quoted_after(&read(&root.join(PARSER))?, ": &str = \"");
    for source in SOURCES {
        codes.extend(quoted_after(&read(&root.join(source))?, "=> \""));
    }
    for folder in REFUSING {
        refused_in(&root.join(folder), &mut codes)?;
    }
    let missing = codes.into_iter().filter(|code| !anchors.contains(code));
    Ok(missing.map(|code| format!("{PAGE} has no heading `{code}`")).collect())
}

/// The page's anchors: its headings of third level, whose text is a code in back quotes.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter_map(|line| line.strip_prefix("### "));
    headings.map(|heading| heading.trim().trim_matches('`').to_owned()).collect()
}

fn refused_in(folder: &Path, codes: &mut BTreeSet<String>) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::new(format!("{}: {error}", folder.display()), "restore the folder");
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            refused_in(&path, codes)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            codes.extend(refusals(&read(&path)?));
        }
    }
    Ok(())
}

/// The codes of refusals that are made in a source. A first string that is no code is a message: its code came as a value.
fn refusals(source: &str) -> BTreeSet<String> {
    let shipped = source.split("#[cfg(test)]").next().unwrap_or_default();
    let mut codes = BTreeSet::new();
    for lead in REFUSALS {
        for rest in shipped.split(lead).skip(1) {
            let call = rest.split(';').next().unwrap_or_default();
            codes.extend(call.split('"').nth(1).filter(|text| is_code(text)).map(str::to_owned));
        }
    }
    codes
}

fn quoted_after(source: &str, lead: &str) -> BTreeSet<String> {
    let shipped = source.split("#[cfg(test)]").next().unwrap_or_default();
    let rest = shipped.split(lead).skip(1);
    rest.filter_map(|rest| rest.split('"').next())
        .filter(|code| {
            !code.is_empty()
                && code.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        })
        .map(str::to_owned)
        .collect()
}

fn is_code(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::Place;

    #[test]
    fn every_code_is_explained() {
        let root = Place::find().unwrap().root;
        let broken = violations(&root).unwrap();
        assert!(broken.is_empty(), "{}", broken.join("\n"));
        let anchors = anchors(&read(&root.join(PAGE)).unwrap());
        for (code, meaning) in headrace_wire::CODES {
            assert!(anchors.contains(*code), "{PAGE} has no heading `{code}` ({meaning})");
        }
        let limits = read(&root.join("crates/limits/src/refusal.rs")).unwrap();
        for rule in ["requests_per_minute", "tokens_per_minute", "concurrency"] {
            assert!(limits.contains(rule) && anchors.contains(rule), "{rule}");
        }
        assert!(headrace_wire::ERROR_DOCS.ends_with(PAGE));
    }

    #[test]
    fn no_code_is_explained_twice() {
        let page = read(&Place::find().unwrap().root.join(PAGE)).unwrap();
        let headings = page.lines().filter(|line| line.starts_with("### ")).count();
        assert_eq!(headings, anchors(&page).len());
    }

    #[test]
    fn codes_are_found_in_sources() {
        let source = "A => \"out_of_money\",\nB => \"Not a code\",\n#[cfg(test)] C => \"hidden\"";
        assert_eq!(quoted_after(source, "=> \"").into_iter().collect::<Vec<_>>(), ["out_of_money"]);
        let source = "Why::new(Stage::Hold, 503, \"queue_full\", \"Full.\"); Why::new(stage, 429, code, \"Slow down.\");";
        assert_eq!(refusals(source).into_iter().collect::<Vec<_>>(), ["queue_full"]);
    }
}
