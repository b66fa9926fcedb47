//! The table of contents: the pages in the order of the first page, and the title of every page. Must not know how
//! pages look.

use std::collections::BTreeMap;

use pulldown_cmark::{Event, Parser, Tag, TagEnd};
use serde_json::{Value, json};

use super::links::{self, ROOT};
use super::render;

/// The file of the first page.
const FIRST: &str = "docs/README.md";

/// Chapters and titles of the documentation.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// The chapters, in order.
    pub(crate) chapters: Vec<Chapter>,
    /// Every page's title, by its name.
    titles: BTreeMap<String, String>,
}

/// A chapter.
#[derive(Debug, Default)]
pub(crate) struct Chapter {
    /// The chapter's name.
    pub(crate) name: String,
    /// The chapter's pages: the name, and the link text on the first page.
    pub(crate) pages: Vec<(String, String)>,
}

impl Contents {
    /// Reads the contents from the text of the first page. Each heading begins a chapter, and each link in a list to a
    /// page of the documentation adds a page. `titles` has the titles of all pages, by name.
    pub(crate) fn read(first: &str, titles: &BTreeMap<String, String>) -> Self {
        let mut chapters: Vec<Chapter> = Vec::new();
        let (mut depth, mut events) = (0_usize, Parser::new_ext(first, render::options()));
        while let Some(event) = events.next() {
            match event {
                Event::Start(Tag::Heading { .. }) => {
                    let name = render::words(
                        events.by_ref().take_while(|event| !matches!(event, Event::End(TagEnd::Heading(_)))),
                    );
                    chapters.push(Chapter { name, pages: Vec::new() });
                }
                Event::Start(Tag::Item) => depth = depth.saturating_add(1),
                Event::End(TagEnd::Item) => depth = depth.saturating_sub(1),
                Event::Start(Tag::Link { dest_url, .. }) if depth > 0 => {
                    let words = render::words(
                        events.by_ref().take_while(|event| !matches!(event, Event::End(TagEnd::Link))),
                    );
                    let leads = links::target(FIRST, &dest_url);
                    let name = leads.strip_prefix(ROOT).filter(|name| titles.contains_key(*name));
                    if let (Some(name), Some(chapter)) = (name, chapters.last_mut()) {
                        chapter.pages.push((name.to_owned(), capital(&words)));
                    }
                }
                _ => {}
            }
        }
        chapters.retain(|chapter| !chapter.pages.is_empty());
        Self { chapters, titles: titles.clone() }
    }

    /// Returns the previous and the next page of the page `name`.
    pub(crate) fn beside(&self, name: &str) -> [Option<&(String, String)>; 2] {
        let all: Vec<_> = self.chapters.iter().flat_map(|chapter| &chapter.pages).collect();
        let Some(at) = all.iter().position(|(one, _)| one == name) else { return [None, None] };
        let of = |at: Option<usize>| at.and_then(|at| all.get(at).copied());
        [of(at.checked_sub(1)), of(at.checked_add(1))]
    }

    /// Returns the titles of all pages as JSON, for search: `title`, `address`, `chapter`. Pages of the chapters come
    /// first.
    pub(crate) fn titles(&self) -> String {
        let row = |name: &str, title: &str, chapter: &str| -> Value {
            json!({ "title": title, "address": format!("{ROOT}{name}"), "chapter": chapter })
        };
        let mut rows = Vec::new();
        for chapter in &self.chapters {
            rows.extend(chapter.pages.iter().map(|(name, words)| row(name, words, &chapter.name)));
        }
        let listed = |name: &str| self.chapters.iter().flat_map(|of| &of.pages).any(|(one, _)| one == name);
        for (name, title) in self.titles.iter().filter(|(name, _)| !listed(name)) {
            let chapter = match name.split_once('/') {
                Some(("errors", _)) => "Errors",
                Some(("admin-errors", _)) => "Errors of the admin API",
                _ => "The book",
            };
            rows.push(row(name, title, chapter));
        }
        json!({ "data": rows }).to_string()
    }
}

/// Returns `words` with a capital letter, because some links are in the middle of a sentence.
fn capital(words: &str) -> String {
    let mut rest = words.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}
