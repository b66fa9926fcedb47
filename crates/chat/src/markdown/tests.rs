//! Compares the parser with another Markdown parser, and splits texts into pieces of every size. Must not know how
//! Markdown is displayed.

use proptest::prelude::*;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::*;

/// Writes parts with their styles as tags. A line is opened by `«lead|hang»` unless both are empty.
fn describe(parts: &[MarkdownPart]) -> String {
    let mut merged: Vec<MarkdownPart> = Vec::new();
    for part in parts {
        match (merged.last_mut(), part) {
            (Some(MarkdownPart::Text(of, text)), MarkdownPart::Text(style, more)) if of == style => {
                text.push_str(more)
            }
            _ => merged.push(part.clone()),
        }
    }
    let part = |part: &MarkdownPart| match part {
        MarkdownPart::Words { lead, hang } if lead.is_empty() && hang.is_empty() => String::new(),
        MarkdownPart::Words { lead, hang } => format!("«{lead}|{hang}»"),
        MarkdownPart::Verbatim => "▌".to_owned(),
        MarkdownPart::Rule => "———".to_owned(),
        MarkdownPart::LineEnd => "\n".to_owned(),
        MarkdownPart::Text(style, text) => {
            let tags = [
                (style.bold, "b"),
                (style.italic, "i"),
                (style.struck, "s"),
                (style.code, "c"),
                (style.dim, "d"),
            ];
            let tags: Vec<_> = tags.iter().filter(|(on, _)| *on).map(|(_, tag)| *tag).collect();
            if tags.is_empty() { text.clone() } else { format!("<{}:{text}>", tags.concat()) }
        }
    };
    merged.iter().map(part).collect()
}

fn whole(text: &str) -> String {
    let mut markdown = MarkdownParser::default();
    let mut parts = markdown.push(text);
    parts.extend(markdown.end());
    describe(&parts)
}

#[test]
fn lines_are_known_for_what_they_are() {
    let rows = [
        ("# Title", "<b:Title>"),
        ("###### deep *and* slow", "<b:deep ><bi:and><b: slow>"),
        ("#hashtag", "#hashtag"),
        ("####### seven", "####### seven"),
        ("- one\n* two\n+ three", "«• |  »one\n«• |  »two\n«• |  »three"),
        ("  - **nested**: x", "«  • |    »<b:nested>: x"),
        ("1. first\n10) tenth", "«1. |   »first\n«10) |    »tenth"),
        ("1.5 is a number", "1.5 is a number"),
        ("12345678901 long", "12345678901 long"),
        ("> quoted\n> > twice", "«│ |│ »quoted\n«│ │ |│ │ »twice"),
        ("---\n***\n_ _ _", "———\n———\n———"),
        ("--", "--"),
        ("+++", "+++"),
        ("    deep", "«    |    »deep"),
        ("| a | *b* |\n|---|---|", "▌| a | *b* |\n▌|---|---|"),
        (
            "```rust\nlet a = *b; // `x`\n\n```\nafter",
            "▌<d:```rust>\n▌<c:let a = *b; // `x`>\n▌\n▌<d:```>\nafter",
        ),
        ("~~~\n```\n~~~~\nx", "▌<d:~~~>\n▌<c:```>\n▌<d:~~~~>\nx"),
        ("````\n```\n````", "▌<d:````>\n▌<c:```>\n▌<d:````>"),
        ("``` not `closed\nx", "``` not `closed\nx"),
        ("a\n\n\nb", "a\n\n\nb"),
        ("", ""),
    ];
    for (text, expected) in rows {
        assert_eq!(whole(text), expected, "{text:?}");
    }
}

/// The parts of one line according to another Markdown parser.
fn oracle(line: &str) -> String {
    // Emphasis may be nested, so count how often it began.
    let (mut italic, mut bold, mut struck, mut parts) = (0, 0, 0, Vec::new());
    for event in Parser::new_ext(line, Options::ENABLE_STRIKETHROUGH) {
        let style =
            TextStyle { bold: bold > 0, italic: italic > 0, struck: struck > 0, ..TextStyle::default() };
        match event {
            Event::Start(Tag::Emphasis) => italic += 1,
            Event::End(TagEnd::Emphasis) => italic -= 1,
            Event::Start(Tag::Strong) => bold += 1,
            Event::End(TagEnd::Strong) => bold -= 1,
            Event::Start(Tag::Strikethrough) => struck += 1,
            Event::End(TagEnd::Strikethrough) => struck -= 1,
            Event::Text(text) => parts.push(MarkdownPart::Text(style, text.to_string())),
            Event::Code(text) => {
                parts.push(MarkdownPart::Text(TextStyle { code: true, ..style }, text.to_string()))
            }
            _ => {}
        }
    }
    describe(&parts)
}

#[test]
fn marks_within_a_line_are_read_as_another_reader_reads_them() {
    let lines = [
        "plain words, nothing else.",
        "**bold** and *italic* and ***both*** and `code`",
        "__bold__ and _italic_ and ~~gone~~",
        "snake_case_name and a_b_c stay",
        "intra*word*emphasis is one, intra_word_ is none",
        "2 * 3 * 4 = 24 and 2**3 = 8",
        "a * b ** c",
        "*open and never closed",
        "**open and never closed",
        "closed and never opened** x",
        "`code with *stars* and \\ backslash` then *em*",
        "``code with ` a tick`` and ` ` ` x",
        "`open code and *em*",
        "`` padded ` ``",
        "escaped \\*not em\\* and \\`not code\\` and \\a",
        "*a **b** c* and **a *b* c**",
        "*a **b*** and **a *b***",
        "**Note:** the *first* `x`, the **second** one.",
        "* * in text",
        "f(*args, **kwargs) calls",
        "\"*quoted*\" (*paren*) *dot*.",
        "**bold**text and text**bold**",
        "_under_score_ and _all of it_",
        "mixed *it_al_ic* and _it*al*ic_",
        "ends in a star *",
        "ends in a backslash \\",
        "Größe **über** 5 µm, 模型*模型*模型",
        "a ~ b ~~ c",
        "**`code` in bold** and *`code`*",
    ];
    for line in lines {
        // Both parsers read this line as a list or a rule, so it has no inline marks.
        if line.starts_with("* *") {
            continue;
        }
        assert_eq!(whole(line), oracle(line), "{line:?}");
    }
}

#[test]
fn what_is_not_decided_waits_and_no_longer_than_it_may() {
    let mut markdown = MarkdownParser::default();
    let rows = [
        ("Some *wor", "Some "),
        ("ds* an", "<i:words> an"),
        ("d `co", "d "),
        ("de", ""),
        ("`", ""),
        (" x", "<c:code> x"),
        ("\n", "\n"),
        ("`", ""),
        ("``py\npr", "▌<d:```py>\n▌<c:pr>"),
        ("int", "<c:int>"),
        ("()\n``", "<c:()>\n"),
        ("`", ""),
        ("\n", "▌<d:```>\n"),
        ("#", ""),
        ("  ", ""),
        (" T", "<b:T>"),
    ];
    for (piece, expected) in rows {
        assert_eq!(describe(&markdown.push(piece)), expected, "{piece:?}");
    }
    let mut markdown = MarkdownParser::default();
    let waits = format!("*{}", "x".repeat(MAX_HELD_BYTES - 2));
    assert_eq!(describe(&markdown.push(&waits)), "");
    assert_eq!(describe(&markdown.push("xx")), format!("{waits}xx"), "then it is text");
}

proptest! {
    #[test]
    fn pieces_make_no_difference_and_words_are_never_lost(
        words in proptest::collection::vec("[a-c`*_~\\\\#>|. 0-9\n-]{0,6}", 0..40), cuts in proptest::collection::vec(0_usize..200, 0..20),
    ) {
        let text = words.concat();
        let mut markdown = MarkdownParser::default();
        let mut parts = Vec::new();
        let mut cuts = cuts;
        cuts.sort_unstable();
        let mut at = 0;
        for cut in cuts {
            let cut = cut.min(text.len()).max(at);
            parts.extend(markdown.push(&text[at..cut]));
            at = cut;
        }
        parts.extend(markdown.push(&text[at..]));
        parts.extend(markdown.end());
        prop_assert_eq!(describe(&parts), whole(&text));
        let letters = |text: &str| text.chars().filter(|c| ('a'..='c').contains(c)).collect::<String>();
        let shown: String = parts.iter().map(|part| if let MarkdownPart::Text(_, text) = part { text.as_str() } else { "" }).collect();
        prop_assert_eq!(letters(&shown), letters(&text));
    }
}
