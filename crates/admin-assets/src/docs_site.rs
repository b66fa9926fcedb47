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

use self::contents::Contents;
pub use self::links::ROOT;
use self::render::Leaf;
use crate::asset::{StaticAsset, entity_tag};

/// Returns the file at an address without its leading slash, such as `docs/tour`, `docs/tour.md` or
/// `docs/pictures/console-now.png`.
pub fn page(path: &str) -> Option<StaticAsset> {
    let name = path.strip_prefix("docs").filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
    let name = name.trim_matches('/');
    let name = name.strip_suffix(".md").unwrap_or(name);
    SITE.files.get(name).map(|kept| kept.page(name))
}

/// Returns the page to show if there is no page at an address.
pub fn missing() -> StaticAsset {
    SITE.missing.page("")
}

/// The addresses of all files, without the leading slash, in the form that links use.
pub fn paths() -> impl Iterator<Item = String> {
    SITE.files.keys().map(|name| format!("docs/{name}"))
}

/// The compressed and the uncompressed size of all texts, in bytes.
pub fn sizes() -> (usize, usize) {
    (packed::packed_bytes(), packed::text_bytes())
}

static SITE: LazyLock<DocsSite> = LazyLock::new(DocsSite::open);

struct DocsSite {
    /// Files by name, which is the address after [`ROOT`].
    files: BTreeMap<String, SiteFile>,
    contents: Contents,
    missing: SiteFile,
}

/// One file. Its content is rendered once and cached. The number of files is fixed.
struct SiteFile {
    what: FileSource,
    made: OnceLock<RenderedFile>,
}

enum FileSource {
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

struct RenderedFile {
    bytes: Cow<'static, [u8]>,
    etag: String,
}

impl DocsSite {
    fn open() -> Self {
        let kept = |what| SiteFile { what, made: OnceLock::new() };
        let mut all: BTreeMap<_, _> = packed::texts()
            .into_iter()
            .map(|(file, text)| (links::name(file), kept(FileSource::Text { file, text })))
            .chain(
                packed::PICTURES
                    .iter()
                    .map(|(file, bytes)| (links::name(file), kept(FileSource::Picture(bytes)))),
            )
            .collect();
        let titles: BTreeMap<String, String> = all
            .iter()
            .filter_map(|(name, kept)| match kept.what {
                FileSource::Text { text, .. } => Some((name.clone(), render::title(text))),
                _ => None,
            })
            .collect();
        let first = all.get("").map_or("", |kept| match kept.what {
            FileSource::Text { text, .. } => text,
            _ => "",
        });
        let contents = Contents::read(first, &titles);
        all.insert("index.json".to_owned(), kept(FileSource::Titles));
        all.insert("words.json".to_owned(), kept(FileSource::Words));
        Self { files: all, contents, missing: kept(FileSource::Missing) }
    }
}

impl SiteFile {
    fn page(&'static self, name: &str) -> StaticAsset {
        let made = self.made.get_or_init(|| self.make(name));
        StaticAsset { bytes: &made.bytes, mime: self.mime(), etag: &made.etag }
    }

    fn make(&self, name: &str) -> RenderedFile {
        let contents = &SITE.contents;
        let bytes: Cow<'static, [u8]> = match &self.what {
            FileSource::Text { file, text } => {
                frame::page(contents, name, &Leaf::read(text, file)).into_bytes().into()
            }
            FileSource::Picture(bytes) => (*bytes).into(),
            FileSource::Titles => contents.titles().into_bytes().into(),
            FileSource::Words => words().into_bytes().into(),
            FileSource::Missing => frame::missing(contents).into_bytes().into(),
        };
        let etag = entity_tag(&bytes);
        RenderedFile { bytes, etag }
    }

    const fn mime(&self) -> &'static str {
        match self.what {
            FileSource::Text { .. } | FileSource::Missing => "text/html; charset=utf-8",
            FileSource::Picture(_) => "image/png",
            FileSource::Titles | FileSource::Words => "application/json",
        }
    }
}

/// Every page's sections as JSON: `address`, `heading`, and `blocks` of words.
fn words() -> String {
    let texts = SITE.files.iter().filter_map(|(name, kept)| match kept.what {
        FileSource::Text { text, .. } => Some((format!("{ROOT}{name}"), text)),
        _ => None,
    });
    let rows = texts.flat_map(|(address, text)| {
        search::sections(text).into_iter().map(move |section| section.json(&address))
    });
    serde_json::json!({ "data": rows.collect::<Vec<_>>() }).to_string()
}
