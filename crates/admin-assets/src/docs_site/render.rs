//! Renders Markdown to HTML. Raw HTML in a text stays text: no markup, no style and no script address passes through.

use pulldown_cmark::{CodeBlockKind, CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};
use pulldown_cmark_escape::escape_html;

use super::links;
use super::slug::Slugs;

/// A rendered page without its frame.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// The text of the first heading.
    pub(crate) title: String,
    /// The HTML of the page.
    pub(crate) html: String,
    /// The other headings, in order.
    pub(crate) headings: Vec<Heading>,
}

/// A heading after the first one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Heading {
    /// The level: 1 to 6.
    pub(crate) level: u8,
    /// The anchor.
    pub(crate) slug: String,
    /// The heading's text.
    pub(crate) text: String,
}

/// Returns a text's title, which is its first heading.
pub(crate) fn title(text: &str) -> String {
    let mut events = Parser::new_ext(text, options());
    events.by_ref().find(|event| matches!(event, Event::Start(Tag::Heading { .. })));
    words(events.take_while(|event| !matches!(event, Event::End(TagEnd::Heading(_)))))
}

/// Concatenates the text and code of the events.
pub(crate) fn words<'t>(events: impl Iterator<Item = Event<'t>>) -> String {
    events.fold(String::new(), |mut all, event| {
        match event {
            Event::Text(text) | Event::Code(text) => all.push_str(&text),
            Event::SoftBreak | Event::HardBreak => all.push(' '),
            _ => {}
        }
        all
    })
}

pub(crate) const fn options() -> Options {
    Options::ENABLE_TABLES.union(Options::ENABLE_STRIKETHROUGH)
}

impl Leaf {
    /// Renders the text of a file. `file` is its path, to resolve relative links.
    pub(crate) fn read(text: &str, file: &str) -> Self {
        let mut reading = Reading { file, leaf: Self::default(), slugs: Slugs::default(), out: Vec::new() };
        let mut events = Parser::new_ext(text, options());
        while let Some(event) = events.next() {
            reading.take(event, &mut events);
        }
        let Reading { mut leaf, out, .. } = reading;
        html::push_html(&mut leaf.html, out.into_iter());
        leaf
    }
}

struct Reading<'t> {
    file: &'t str,
    leaf: Leaf,
    slugs: Slugs,
    out: Vec<Event<'t>>,
}

impl<'t> Reading<'t> {
    fn take(&mut self, event: Event<'t>, rest: &mut impl Iterator<Item = Event<'t>>) {
        match event {
            Event::Start(Tag::Heading { level, .. }) => self.heading(level, rest),
            Event::Start(Tag::Table(_)) => self.table(rest),
            Event::Start(Tag::CodeBlock(kind)) => self.code(&kind, rest),
            Event::Start(Tag::HtmlBlock) => self.foreign(rest),
            Event::InlineHtml(text) | Event::Html(text) => self.as_text(text),
            Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
                let dest_url = links::target(self.file, &dest_url).into();
                self.out.push(Event::Start(Tag::Link { link_type, dest_url, title, id }));
            }
            Event::Start(Tag::Image { link_type, dest_url, title, id }) => {
                let dest_url = links::target(self.file, &dest_url).into();
                self.out.push(Event::Start(Tag::Image { link_type, dest_url, title, id }));
            }
            other => self.out.push(other),
        }
    }

    fn heading(&mut self, level: HeadingLevel, rest: &mut impl Iterator<Item = Event<'t>>) {
        let inner: Vec<_> =
            rest.by_ref().take_while(|event| !matches!(event, Event::End(TagEnd::Heading(_)))).collect();
        let text = words(inner.iter().cloned());
        let slug = self.slugs.next(&text);
        self.html(format!("<{level} id=\"{}\">", escaped(&slug)));
        let mut inner = inner.into_iter();
        while let Some(event) = inner.next() {
            self.take(event, &mut inner);
        }
        self.html(format!("</{level}>\n"));
        if level == HeadingLevel::H1 && self.leaf.title.is_empty() {
            self.leaf.title = text;
        } else {
            self.leaf.headings.push(Heading { level: level as u8, slug, text });
        }
    }

    /// Renders a table. The library's own output has `style` attributes for alignment, and header cells even without
    /// words.
    fn table(&mut self, rest: &mut impl Iterator<Item = Event<'t>>) {
        self.html(
            "<div class=\"table-wrap\" role=\"group\" aria-label=\"Table\" tabindex=\"0\"><table class=\"table\">",
        );
        let mut is_head = false;
        while let Some(event) = rest.next() {
            match event {
                Event::End(TagEnd::Table) => break,
                Event::Start(Tag::TableHead) => {
                    is_head = true;
                    self.html("<thead><tr>");
                }
                Event::End(TagEnd::TableHead) => {
                    is_head = false;
                    self.html("</tr></thead><tbody>\n");
                }
                Event::Start(Tag::TableRow) => self.html("<tr>"),
                Event::End(TagEnd::TableRow) => self.html("</tr>\n"),
                Event::Start(Tag::TableCell) => {
                    let cell: Vec<_> = rest
                        .by_ref()
                        .take_while(|event| !matches!(event, Event::End(TagEnd::TableCell)))
                        .collect();
                    let tag = if is_head && !cell.is_empty() { "th" } else { "td" };
                    self.html(if tag == "th" { "<th scope=\"col\">" } else { "<td>" });
                    let mut cell = cell.into_iter();
                    while let Some(event) = cell.next() {
                        self.take(event, &mut cell);
                    }
                    self.html(if tag == "th" { "</th>" } else { "</td>" });
                }
                other => self.out.push(other),
            }
        }
        self.html("</tbody></table></div>\n");
    }

    fn code(&mut self, kind: &CodeBlockKind<'t>, rest: &mut impl Iterator<Item = Event<'t>>) {
        let language = match kind {
            CodeBlockKind::Fenced(named) => named.split_whitespace().next().unwrap_or_default().to_owned(),
            CodeBlockKind::Indented => String::new(),
        };
        let text = words(rest.by_ref().take_while(|event| !matches!(event, Event::End(TagEnd::CodeBlock))));
        let (language, text) = (escaped(&language), escaped(&text));
        self.html(format!(
            "<div class=\"with-copy\"><pre class=\"code\" tabindex=\"0\" data-language=\"{language}\"><code>{text}</code></pre></div>\n"
        ));
    }

    /// Renders a block of raw HTML. Comments are dropped, everything else is shown as text.
    fn foreign(&mut self, rest: &mut impl Iterator<Item = Event<'t>>) {
        let inner = rest.by_ref().take_while(|event| !matches!(event, Event::End(TagEnd::HtmlBlock)));
        let text = inner.fold(String::new(), |mut all, event| {
            if let Event::Html(text) | Event::Text(text) = event {
                all.push_str(&text);
            }
            all
        });
        self.as_text(text.into());
    }

    fn as_text(&mut self, text: CowStr<'t>) {
        let bare = text.trim();
        if !(bare.starts_with("<!--") && bare.find("-->") == bare.len().checked_sub(3)) {
            self.out.push(Event::Text(text));
        }
    }

    /// Adds markup that this module generates.
    fn html(&mut self, markup: impl Into<CowStr<'t>>) {
        self.out.push(Event::Html(markup.into()));
    }
}

/// Escapes a text for HTML content and attributes.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Writing to a string cannot fail.
    let _ = escape_html(&mut out, text);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn html(text: &str) -> String {
        Leaf::read(text, "docs/x.md").html
    }

    #[test]
    fn no_markup_of_a_source_passes() {
        for text in [
            "<script>alert(1)</script>",
            "a <img src=x onerror=alert(1)> b",
            "<!-- x --><b onclick=\"x\">b</b>",
            "# <script>x</script>",
            "| <i>a</i> |\n|---|\n| <script>b</script> |",
            "```\"><script>x</script>\n</code><script>y</script>\n```",
            "![\"><script>x</script>](\"><script>)",
            "[x](<\"onmouseover=alert(1) x=\">)",
        ] {
            let html = html(text);
            for banned in ["<script", "<img src=x", "<b ", "<i>", "\"onmouseover", "<b onclick"] {
                assert!(!html.contains(banned), "{text} → {html}");
            }
        }
    }

    #[test]
    fn comments_are_not_shown_and_other_markup_is() {
        assert_eq!(html("<!-- not run: x -->\n").trim(), "");
        assert_eq!(html("a <!-- b --> c").trim(), "<p>a  c</p>");
        assert!(html("<KEY>").contains("&lt;KEY&gt;"));
    }

    #[test]
    fn links_of_scripts_lead_nowhere() {
        assert!(html("[x](javascript:alert(1))").contains("href=\"#\""));
        assert!(html("<javascript:alert(1)>").contains("href=\"#\""));
        assert!(html("![x](data:text/html,y)").contains("src=\"#\""));
    }

    #[test]
    fn headings_have_names_and_tables_no_style() {
        let leaf = Leaf::read("# A `b`\n\n## One\n\n### Two [x](tour.md)\n\n## One\n", "docs/x.md");
        assert_eq!(leaf.title, "A b");
        let names: Vec<_> =
            leaf.headings.iter().map(|of| (of.level, of.slug.as_str(), of.text.as_str())).collect();
        assert_eq!(names, [(2, "one", "One"), (3, "two-x", "Two x"), (2, "one-1", "One")]);
        assert!(leaf.html.contains("<h1 id=\"a-b\">A <code>b</code></h1>"), "{}", leaf.html);
        let table = html("| | b |\n|---:|:--|\n| 1 | `2` |\n");
        assert!(
            table.contains("<tr><td></td><th scope=\"col\">b</th></tr>")
                && table.contains("<tr><td>1</td><td><code>2</code></td></tr>"),
            "{table}"
        );
        assert!(!table.contains("style"), "{table}");
    }
}
