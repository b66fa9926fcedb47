//! The console's files, embedded in the program, and the content security policy that they need. There is no build
//! step: browsers get the files under `assets` unchanged. Must not know HTTP, operators, or what the pages show.

use std::sync::LazyLock;

use crate::asset::{StaticAsset, entity_tag};

/// The Content Security Policy (level 3) that the pages comply with. It forbids resources from elsewhere, inline
/// scripts and styles, forms that the browser sends, and embedding in frames.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self' data:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// Returns the file at a path without its leading slash. The empty path is the page. Views within the page are named
/// after `#`, so there are no other paths.
pub fn asset(path: &str) -> Option<StaticAsset> {
    let path = if path.is_empty() { PAGE } else { path };
    let (file, etag) = FILES.iter().zip(TAGS.iter()).find(|(file, _)| file.path == path)?;
    Some(StaticAsset { bytes: file.bytes, mime: mime(path), etag })
}

/// Every path that [`asset`] knows.
pub fn paths() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|file| file.path)
}

const PAGE: &str = "index.html";

struct File {
    path: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        &[$(File { path: $path, bytes: include_bytes!(concat!("../assets/", $path)) }),*]
    };
}

/// All files. A test compares the list with the folder.
static FILES: &[File] = files![
    "icon.svg",
    "index.html",
    "js/api.js",
    "js/audit-acts.js",
    "js/book-search.js",
    "js/book-titles.js",
    "js/book.js",
    "js/budgets/webhooks.js",
    "js/cache-misses.js",
    "js/call-names.js",
    "js/dom.js",
    "js/format.js",
    "js/keys/operators.js",
    "js/keys/records.js",
    "js/last-used.js",
    "js/live.js",
    "js/main.js",
    "js/money/balances.js",
    "js/money/lots.js",
    "js/money/statement.js",
    "js/moderation-verdicts.js",
    "js/pages/audit.js",
    "js/pages/budgets.js",
    "js/pages/cache.js",
    "js/pages/gateways.js",
    "js/pages/invoices.js",
    "js/pages/keys.js",
    "js/pages/models.js",
    "js/pages/moderation.js",
    "js/pages/money.js",
    "js/pages/now.js",
    "js/pages/playground.js",
    "js/pages/prompt.js",
    "js/pages/requests.js",
    "js/pages/settings.js",
    "js/pages/sign-in.js",
    "js/pages/tiers.js",
    "js/pages/users.js",
    "js/palette.js",
    "js/playground/call.js",
    "js/playground/code.js",
    "js/playground/draft.js",
    "js/playground/markdown.js",
    "js/playground/rendered-prompt.js",
    "js/playground/settings.js",
    "js/playground/tokens.js",
    "js/playground/turn.js",
    "js/request-contents.js",
    "js/request-views.js",
    "js/router.js",
    "js/session.js",
    "js/settings.js",
    "js/shell.js",
    "js/shell/choices.js",
    "js/shell/typing.js",
    "js/stages.js",
    "js/ui/chart.js",
    "js/ui/dialog.js",
    "js/ui/parts.js",
    "js/ui/spend.js",
    "js/ui/table.js",
    "js/ui/waterfall.js",
    "style/base.css",
    "style/book.css",
    "style/pages.css",
    "style/parts.css",
    "vendor/uplot.LICENSE",
    "vendor/uplot.css",
    "vendor/uplot.js",
];

static TAGS: LazyLock<Vec<String>> =
    LazyLock::new(|| FILES.iter().map(|file| entity_tag(file.bytes)).collect());

fn mime(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_its_file_and_nothing_else_does() {
        assert_eq!(asset(""), asset("index.html"));
        assert_eq!(asset("js/main.js").map(|file| file.mime), Some("text/javascript; charset=utf-8"));
        for path in ["/", "../Cargo.toml", "js", "index.html/", "INDEX.HTML", "%69ndex.html"] {
            assert_eq!(asset(path), None, "{path}");
        }
    }
}
