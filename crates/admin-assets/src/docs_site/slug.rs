//! Anchors of headings, in GitHub's format, so that a link works on GitHub and here.

use std::collections::BTreeMap;

/// The anchors used on one page.
#[derive(Debug, Default)]
pub(crate) struct Slugs(BTreeMap<String, usize>);

impl Slugs {
    /// Returns the anchor of the next heading: lower case, without punctuation, with hyphens for spaces. A repeated
    /// anchor gets a number.
    pub(crate) fn next(&mut self, heading: &str) -> String {
        let kept = heading.chars().flat_map(char::to_lowercase);
        let kept = kept.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let slug: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let times = self.0.entry(slug.clone()).or_default();
        let named = if *times == 0 { slug } else { format!("{slug}-{times}") };
        *times = times.saturating_add(1);
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_links_were_written_for() {
        let mut slugs = Slugs::default();
        for (heading, slug) in [
            ("The connection (stage `connect`)", "the-connection-stage-connect"),
            ("out_of_money", "out_of_money"),
            ("Who, before what.", "who-before-what"),
            ("Who, before what.", "who-before-what-1"),
            ("Größe & Maß", "größe--maß"),
        ] {
            assert_eq!(slugs.next(heading), slug);
        }
    }
}
