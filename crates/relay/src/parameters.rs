//! The end of the page of parameters: what becomes of the fields of a relayed body. Uses the tables that bodies are
//! checked with. Must not know models.

use std::fmt::Write;

use crate::request::DECIDED_HERE;

/// Returns the sections on relayed calls, which end the page `docs/parameters.md`.
pub fn relayed_parameters() -> String {
    let mut page = String::from(HEAD);
    page.push_str("\n| parameter | why it is refused |\n|---|---|\n");
    for (name, _, why) in DECIDED_HERE {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "| `{name}` | {why} |");
    }
    page.push_str("\n## Models whose server speaks another dialect\n\n");
    // The title of the included page is left out.
    let translation = include_str!("request/translation.md").trim_start();
    page.push_str(translation.split_once('\n').map_or("", |(_, rest)| rest.trim_start()));
    page
}

const HEAD: &str = "
## Models that are asked in messages

A body in the dialect of the server that answers is passed on as it came, parameters that nobody here knows included: they mean what
that server says. Only what is decided here is refused, and what is Headrace's own (`headrace`, `timeout`) stays here.
";

#[cfg(test)]
mod tests {
    use headrace_wire::parameters_page;

    use super::*;

    #[test]
    fn the_page_is_what_is_generated() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/parameters.md");
        let page = parameters_page() + &relayed_parameters();
        if std::env::var_os("HEADRACE_BLESS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let found = std::fs::read_to_string(path).unwrap();
        assert!(found == page, "docs/parameters.md is out of date: HEADRACE_BLESS=1 writes it");
    }
}
