//! The search index: the words of every page by section, each with the address of its heading. Must not know how the
//! index is searched.

use pulldown_cmark::{Event, HeadingLevel, Parser, Tag, TagEnd};
use serde_json::{Value, json};

use super::render;
use super::slug::Slugs;

/// A section of a page: a heading and the text up to the next heading.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Section {
    /// The heading's anchor. Empty for the page's title, and for text before the first heading.
    pub(crate) slug: String,
    /// The heading's words. Empty if the anchor is.
    pub(crate) heading: String,
    /// Paragraphs, items, rows and blocks of code, in order.
    pub(crate) blocks: Vec<String>,
}

impl Section {
    /// Returns the section as JSON for the index. `at` is the page's address.
    pub(crate) fn json(&self, at: &str) -> Value {
        let address = if self.slug.is_empty() { at.to_owned() } else { format!("{at}#{}", self.slug) };
        json!({ "address": address, "heading": self.heading, "blocks": self.blocks })
    }
}

/// Splits a page's text into sections. Leaves out empty sections.
pub(crate) fn sections(text: &str) -> Vec<Section> {
    let (mut all, mut slugs) = (vec![Section::default()], Slugs::default());
    let (mut block, mut has_title) = (String::new(), false);
    let mut events = Parser::new_ext(text, render::options());
    while let Some(event) = events.next() {
        match event {
            Event::Start(Tag::Heading { level, .. }) => {
                end(&mut all, &mut block);
                let inner =
                    events.by_ref().take_while(|event| !matches!(event, Event::End(TagEnd::Heading(_))));
                let heading = render::words(inner);
                let slug = slugs.next(&heading);
                if level == HeadingLevel::H1 && !has_title {
                    has_title = true;
                    all.push(Section::default());
                } else {
                    all.push(Section { slug, heading, blocks: Vec::new() });
                }
            }
            Event::Text(text) | Event::Code(text) => block.push_str(&text),
            Event::SoftBreak | Event::HardBreak | Event::End(TagEnd::TableCell) => block.push(' '),
            Event::End(
                TagEnd::Paragraph | TagEnd::Item | TagEnd::TableRow | TagEnd::TableHead | TagEnd::CodeBlock,
            ) => end(&mut all, &mut block),
            _ => {}
        }
    }
    end(&mut all, &mut block);
    all.retain(|section| !section.blocks.is_empty() || !section.heading.is_empty());
    all
}

/// Ends a block, and adds its words to the last section, separated by single spaces.
fn end(all: &mut [Section], block: &mut String) {
    let words = block.split_whitespace().collect::<Vec<_>>().join(" ");
    block.clear();
    if let Some(section) = all.last_mut().filter(|_| !words.is_empty()) {
        section.blocks.push(words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_have_the_words_of_their_blocks_and_the_names_of_their_headings() {
        let text = "# A page\n\nFirst `code`\nwords.\n\n<!-- a note -->\n\n## One\n\n- an [item](x.md)\n- another\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n\
                    ## One\n\n```sh\nheadrace up\n```\n\n### Empty\n";
        let section = |slug: &str, heading: &str, blocks: &[&str]| Section {
            slug: slug.to_owned(),
            heading: heading.to_owned(),
            blocks: blocks.iter().map(|block| (*block).to_owned()).collect(),
        };
        assert_eq!(
            sections(text),
            [
                section("", "", &["First code words."]),
                section("one", "One", &["an item", "another", "a b", "1 2"]),
                section("one-1", "One", &["headrace up"]),
                section("empty", "Empty", &[]),
            ]
        );
        assert_eq!(sections(""), []);
        assert_eq!(section("one", "One", &[]).json("/docs/x")["address"], "/docs/x#one");
        assert_eq!(section("", "", &["a"]).json("/docs/x")["address"], "/docs/x");
    }
}
