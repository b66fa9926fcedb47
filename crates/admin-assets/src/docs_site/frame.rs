//! The frame around a page: HTML head, table of contents, list of the page's headings, and links to the neighbouring
//! pages. The console's style sheets define the look. The module `book.js` is optional.

use std::fmt::Write as _;

use super::contents::Contents;
use super::links::ROOT;
use super::render::{Leaf, escaped};

/// Maximum number of headings for a list of two levels. Longer pages list only their top level.
const MAX_LISTED_WITH_PARTS: usize = 30;

const HEAD: &str = r#"<!doctype html>
<html lang="en" data-theme="auto">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/style/base.css">
<link rel="stylesheet" href="/style/parts.css">
<link rel="stylesheet" href="/style/book.css">
<script type="module" src="/js/book.js"></script>
"#;

/// Returns a page as HTML.
pub(crate) fn page(contents: &Contents, name: &str, leaf: &Leaf) -> String {
    let title = match name {
        "" => leaf.title.clone(),
        _ => format!("{} · Headrace", leaf.title),
    };
    let mut body = format!("<article class=\"leaf\">\n{}</article>\n", leaf.html);
    body.push_str(&beside(contents, name));
    whole(contents, name, &title, &(body + &on_page(leaf)))
}

/// Returns the HTML to show if there is no page at an address.
pub(crate) fn missing(contents: &Contents) -> String {
    let body = format!(
        "<article class=\"leaf\">\n<h1>There is no such page</h1>\n<p>This book has no page at this address. \
         <a href=\"{ROOT}\">Its contents</a> list every page; a page about a refusal has the refusal’s code as its name, \
         such as <a href=\"{ROOT}errors/out_of_money\">{ROOT}errors/out_of_money</a>.</p>\n</article>\n"
    );
    whole(contents, "-", "There is no such page · Headrace", &body)
}

fn whole(contents: &Contents, name: &str, title: &str, body: &str) -> String {
    let mut out = String::from(HEAD);
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<title>{}</title>\n</head>\n<body>\n<div class=\"shell book\">\n<a class=\"skip\" href=\"#main\">Skip to the page</a>\n{}\
         <div class=\"column\">\n<header class=\"top\" id=\"top\"><a class=\"book-home\" href=\"{ROOT}\">The Headrace book</a></header>\n\
         <main id=\"main\" tabindex=\"-1\"><div class=\"leaf-page\">\n{body}</div></main>\n</div>\n</div>\n</body>\n</html>\n",
        escaped(title),
        side(contents, name),
    );
    out
}

/// The table of contents in the side bar.
fn side(contents: &Contents, name: &str) -> String {
    let mut out = String::from(
        "<nav class=\"side\" id=\"side\" aria-label=\"Contents\">\n<a class=\"brand\" href=\"/docs/\"><span class=\"brand-mark\" \
         aria-hidden=\"true\"><img src=\"/icon.svg\" alt=\"\" width=\"22\" height=\"22\"></span><span>Headrace book</span></a>\n",
    );
    for chapter in &contents.chapters {
        let _ = write!(out, "<p class=\"side-group\">{}</p>\n<ul>\n", escaped(&chapter.name));
        for (one, words) in &chapter.pages {
            let current = match name {
                _ if one == name => " aria-current=\"page\"",
                _ if one.ends_with("errors") && name.split_once('/').is_some_and(|(of, _)| of == one) => {
                    " aria-current=\"true\""
                }
                _ => "",
            };
            let _ =
                writeln!(out, "<li><a href=\"{ROOT}{}\"{current}>{}</a></li>", escaped(one), escaped(words));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("<p class=\"side-group\">Elsewhere</p>\n<ul>\n<li><a href=\"/\">The console</a></li>\n</ul>\n</nav>\n");
    out
}

/// The list of the page's headings.
fn on_page(leaf: &Leaf) -> String {
    let deepest = if leaf.headings.len() <= MAX_LISTED_WITH_PARTS { 3 } else { 2 };
    let listed: Vec<_> = leaf.headings.iter().filter(|heading| heading.level <= deepest).collect();
    if listed.len() < 2 {
        return String::new();
    }
    let mut out = String::from(
        "<nav class=\"on-page\" aria-label=\"On this page\">\n<p class=\"side-group\">On this page</p>\n<ul>\n",
    );
    for heading in listed {
        let _ = writeln!(
            out,
            "<li class=\"level-{}\"><a href=\"#{}\">{}</a></li>",
            heading.level,
            escaped(&heading.slug),
            escaped(&heading.text)
        );
    }
    out.push_str("</ul>\n</nav>\n");
    out
}

/// Links to the previous and the next page.
fn beside(contents: &Contents, name: &str) -> String {
    let [before, behind] = contents.beside(name);
    if before.is_none() && behind.is_none() {
        return String::new();
    }
    let mut out = String::from("<nav class=\"beside\" aria-label=\"Before and behind\">");
    for (of, rel, word) in [(before, "prev", "Before"), (behind, "next", "Next")] {
        if let Some((name, words)) = of {
            let _ = write!(
                out,
                "<a rel=\"{rel}\" href=\"{ROOT}{}\"><span class=\"muted small\">{word}</span> {}</a>",
                escaped(name),
                escaped(words)
            );
        }
    }
    out.push_str("</nav>\n");
    out
}
