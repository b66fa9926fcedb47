//! The project's documentation, as the program serves it: compressed Markdown, rendered to HTML on first access. Must
//! not know HTTP or what the program does.

mod contents;
mod frame;
mod links;
mod packed;
mod render;
mod search;
mod slug;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock};

use crate::contents::Contents;
pub use crate::links::ROOT;
use crate::render::Leaf;

/// A file of the documentation, as it is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// The served bytes.
    pub bytes: &'static [u8],
    /// The media type, with the charset for texts.
    pub mime: &'static str,
    /// The entity tag of this version, in quotes.
    pub etag: &'static str,
}

/// Returns the file at an address without its leading slash, such as `docs/tour`, `docs/tour.md` or
/// `docs/pictures/console-now.png`.
pub fn page(path: &str) -> Option<Page> {
    let name = path.strip_prefix("docs").filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
    let name = name.trim_matches('/');
    let name = name.strip_suffix(".md").unwrap_or(name);
    BOOK.kept.get(name).map(|kept| kept.page(name))
}

/// Returns the page to show if there is no page at an address.
pub fn missing() -> Page {
    BOOK.missing.page("")
}

/// The addresses of all files, without the leading slash, in the form that links use.
pub fn paths() -> impl Iterator<Item = String> {
    BOOK.kept.keys().map(|name| format!("docs/{name}"))
}

/// The compressed and the uncompressed size of all texts, in bytes.
pub fn sizes() -> (usize, usize) {
    (packed::packed_bytes(), packed::text_bytes())
}

static BOOK: LazyLock<Book> = LazyLock::new(Book::open);

struct Book {
    /// Files by name, which is the address after [`ROOT`].
    kept: BTreeMap<String, Kept>,
    contents: Contents,
    missing: Kept,
}

/// One file. Its content is rendered once and cached. The number of files is fixed.
struct Kept {
    what: What,
    made: OnceLock<Made>,
}

enum What {
    /// Markdown, with the path of its file from the root of the repository.
    Text {
        file: &'static str,
        text: &'static str,
    },
    Picture(&'static [u8]),
    /// The index of titles.
    Titles,
    /// The words of every page, for search.
    Words,
    Missing,
}

struct Made {
    bytes: Cow<'static, [u8]>,
    etag: String,
}

impl Book {
    fn open() -> Self {
        let kept = |what| Kept { what, made: OnceLock::new() };
        let mut all: BTreeMap<_, _> = packed::texts()
            .into_iter()
            .map(|(file, text)| (links::name(file), kept(What::Text { file, text })))
            .chain(
                packed::PICTURES.iter().map(|(file, bytes)| (links::name(file), kept(What::Picture(bytes)))),
            )
            .collect();
        let titles: BTreeMap<String, String> = all
            .iter()
            .filter_map(|(name, kept)| match kept.what {
                What::Text { text, .. } => Some((name.clone(), render::title(text))),
                _ => None,
            })
            .collect();
        let first = all.get("").map_or("", |kept| match kept.what {
            What::Text { text, .. } => text,
            _ => "",
        });
        let contents = Contents::read(first, &titles);
        all.insert("index.json".to_owned(), kept(What::Titles));
        all.insert("words.json".to_owned(), kept(What::Words));
        Self { kept: all, contents, missing: kept(What::Missing) }
    }
}

impl Kept {
    fn page(&'static self, name: &str) -> Page {
        let made = self.made.get_or_init(|| self.make(name));
        Page { bytes: &made.bytes, mime: self.mime(), etag: &made.etag }
    }

    fn make(&self, name: &str) -> Made {
        let contents = &BOOK.contents;
        let bytes: Cow<'static, [u8]> = match &self.what {
            What::Text { file, text } => {
                frame::page(contents, name, &Leaf::read(text, file)).into_bytes().into()
            }
            What::Picture(bytes) => (*bytes).into(),
            What::Titles => contents.titles().into_bytes().into(),
            What::Words => words().into_bytes().into(),
            What::Missing => frame::missing(contents).into_bytes().into(),
        };
        let etag = format!("\"{:016x}\"", fnv1a(&bytes));
        Made { bytes, etag }
    }

    const fn mime(&self) -> &'static str {
        match self.what {
            What::Text { .. } | What::Missing => "text/html; charset=utf-8",
            What::Picture(_) => "image/png",
            What::Titles | What::Words => "application/json",
        }
    }
}

/// Every page's sections as JSON: `address`, `heading`, and `blocks` of words.
fn words() -> String {
    let texts = BOOK.kept.iter().filter_map(|(name, kept)| match kept.what {
        What::Text { text, .. } => Some((format!("{ROOT}{name}"), text)),
        _ => None,
    });
    let rows = texts.flat_map(|(address, text)| {
        search::sections(text).into_iter().map(move |section| section.json(&address))
    });
    serde_json::json!({ "data": rows.collect::<Vec<_>>() }).to_string()
}

/// FNV-1a, 64 bits. Distinguishes pages of different builds. Not safe against deliberate collisions, from which an
/// attacker would gain nothing.
/// <http://www.isthe.com/chongo/tech/comp/fnv/>
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
