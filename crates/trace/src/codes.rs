//! The codes that the program can answer with: the headings of the error page, which a check compares with the sources.
//! Decides nothing about them.

/// Rules that refuse under another name than their error's code.
const OTHER_RULES: [&str; 2] = ["balance", "budget"];

/// Every code, in the order of the page.
pub(crate) fn codes() -> impl Iterator<Item = &'static str> {
    const PAGE: &str = include_str!("../../../docs/errors.md");
    PAGE.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'))
}

/// Every rule that refuses.
pub(crate) fn rules() -> impl Iterator<Item = &'static str> {
    codes().chain(OTHER_RULES)
}
