//! The table of contents: what the first page lists, in its order, and every other page by its title. Must not know how pages look.

use std::collections::BTreeMap;

use pulldown_cmark::{Event, Parser, Tag, TagEnd};
use serde_json::{Value, json};

use crate::links::{self, ROOT};
use crate::render;

/// Where the first page stands.
const FIRST: &str = "docs/README.md";

/// The order of the book.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// Chapters with their pages.
    pub(crate) chapters: Vec<Chapter>,
    /// Every page's title, by its name.
    titles: BTreeMap<String, String>,
}

/// A chapter.
#[derive(Debug, Default)]
pub(crate) struct Chapter {
    /// Its name.
    pub(crate) name: String,
    /// Its pages: name, and the words that the first page has for it.
    pub(crate) pages: Vec<(String, String)>,
}

impl Contents {
    /// Out of the first page: each of its headings is a chapter, each link of its lists to a page of the book a page. `titles` are those of all pages, by
    /// name.
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

    /// The pages before and behind one.
    pub(crate) fn beside(&self, name: &str) -> [Option<&(String, String)>; 2] {
        let all: Vec<_> = self.chapters.iter().flat_map(|chapter| &chapter.pages).collect();
        let Some(at) = all.iter().position(|(one, _)| one == name) else { return [None, None] };
        let of = |at: Option<usize>| at.and_then(|at| all.get(at).copied());
        [of(at.checked_sub(1)), of(at.checked_add(1))]
    }

    /// Every page as JSON, for whoever searches by title: `title`, `address`, `chapter`. Those of the chapters come first.
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

/// With a capital: in the list some links stand within a sentence.
fn capital(words: &str) -> String {
    let mut rest = words.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}
