//! Generates the page that explains refusals to operators, `docs/admin-errors.md`, and one page per code in
//! `docs/admin-errors`. Must not know who refuses.

use headrace_domain::AdminCode;
use headrace_explain::AdminErrorPage;
use serde_json::json;

use crate::prose::wrapped;

pub(super) const PAGE: &str = "docs/admin-errors.md";

/// The folder of the pages of single codes.
pub(super) const PAGES: &str = "docs/admin-errors";

/// The text before the first chapter.
const HEAD: &str = include_str!("admin_head.md");

/// Chapters: each starts with a code of the table and ends where the next chapter starts.
const CHAPTERS: &[(AdminCode, &str)] = &[
    (AdminCode::NotSignedIn, "Sign-in and roles"),
    (AdminCode::NotFound, "The request"),
    (AdminCode::UnknownOrg, "Organisations, projects, keys, models"),
    (AdminCode::ReferenceUsed, "Money"),
    (AdminCode::NotRunning, "The server and its configuration"),
    (AdminCode::NoWords, "Prompts and the playground"),
    (AdminCode::StoreFailed, "Faults"),
    (AdminCode::TooLong, "Only on the control socket"),
];

/// All pages, by path.
pub(super) fn pages() -> impl Iterator<Item = (String, String)> {
    let of = |code: &AdminCode| (format!("{PAGES}/{code}.md"), AdminErrorPage::of(*code).markdown(body));
    AdminCode::ALL.iter().map(of).chain([(PAGE.to_owned(), page())])
}

/// The body of an example, indented. A test of `admin-http` compares these bodies with the real ones.
fn body(code: AdminCode, message: &str, remedy: &str, field: Option<&str>) -> String {
    let doc = format!("https://github.com/headrace/headrace/blob/main/{PAGES}/{code}.md");
    let error = json!({ "code": code, "message": message, "remedy": remedy, "field": field, "stage": null, "doc": doc });
    format!("{:#}", json!({ "error": error }))
}

pub(super) fn page() -> String {
    let mut page = HEAD.trim_end().to_owned();
    for code in AdminCode::ALL {
        if let Some((_, title)) = CHAPTERS.iter().find(|(first, _)| first == code) {
            page.push_str(&format!("\n\n## {title}"));
        }
        let status = match AdminErrorPage::of(*code).statuses() {
            none if none.is_empty() => String::new(),
            statuses => format!("**{statuses}**. "),
        };
        let text = format!(
            "{status}{} {} [More, with an example.](admin-errors/{code}.md)",
            code.meaning(),
            code.way_out()
        );
        page.push_str(&format!("\n\n### `{code}`\n{}", wrapped(&text)));
    }
    page.push('\n');
    page
}
