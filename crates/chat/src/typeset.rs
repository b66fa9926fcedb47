//! Formats an answer for a person at a terminal: wraps words and renders Markdown. The result does not depend on how
//! the text is split into pieces. Knows the terminal's width. Must not know answers.

use unicode_width::UnicodeWidthChar;

use super::markdown::{MarkdownParser, MarkdownPart, TextStyle};

/// How text is formatted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TypesetOptions {
    /// Columns of the terminal. 0 leaves wrapping to the terminal.
    pub(super) width: usize,
    /// Whether the terminal supports colours and font weights.
    pub(super) colour: bool,
    /// Whether the text is Markdown. It is rendered only with `colour`.
    pub(super) markdown: bool,
    /// The style of text that is not Markdown.
    pub(super) base: TextStyle,
}

/// Minimum width for wrapping words. In a narrower terminal, wrapping would break many words.
const MIN_WIDTH: usize = 20;
/// Maximum length of a drawn rule.
const MAX_RULE: usize = 60;

/// A text that is being formatted.
#[derive(Debug)]
pub(super) struct TextTypesetter {
    manner: TypesetOptions,
    markdown: MarkdownParser,
    /// The style that the terminal is set to.
    shown: TextStyle,
    /// Used cells of the current line.
    used: usize,
    /// The prefix of continuation lines.
    hang: String,
    verbatim: bool,
    /// Whether the line was opened.
    open: bool,
    /// The current word, which may continue. The next fields are its cells, and the spaces before it.
    word: Vec<(TextStyle, String)>,
    word_cells: usize,
    spaces: usize,
}

impl TextTypesetter {
    pub(super) fn new(manner: TypesetOptions) -> Self {
        Self {
            manner: TypesetOptions {
                width: if manner.width < MIN_WIDTH { 0 } else { manner.width },
                ..manner
            },
            markdown: MarkdownParser::default(),
            shown: TextStyle::default(),
            used: 0,
            hang: String::new(),
            verbatim: false,
            open: false,
            word: Vec::new(),
            word_cells: 0,
            spaces: 0,
        }
    }

    /// Adds a piece, and returns the text that can be shown now.
    pub(super) fn push(&mut self, piece: &str) -> String {
        let parts = if self.marks() { self.markdown.push(piece) } else { plain(piece, self.manner.base) };
        self.set(parts, false)
    }

    /// Returns the rest.
    pub(super) fn end(&mut self) -> String {
        let parts = if self.marks() { self.markdown.end() } else { Vec::new() };
        let rest = self.set(parts, true);
        *self = Self::new(self.manner);
        rest
    }

    const fn marks(&self) -> bool {
        self.manner.markdown && self.manner.colour
    }

    fn set(&mut self, parts: Vec<MarkdownPart>, ends: bool) -> String {
        let mut out = String::new();
        for part in parts {
            match part {
                MarkdownPart::Words { lead, hang } => self.open(&lead, hang, false, &mut out),
                MarkdownPart::Verbatim => self.open("", String::new(), true, &mut out),
                MarkdownPart::Rule => {
                    let width =
                        if self.manner.width == 0 { MAX_RULE } else { self.manner.width.min(MAX_RULE) };
                    self.put(TextStyle::DIM, &"─".repeat(width), &mut out);
                }
                MarkdownPart::Text(style, text) => self.text(style, &text, &mut out),
                MarkdownPart::LineEnd => {
                    self.flush(&mut out);
                    // Spaces at the end of a line are invisible.
                    (self.spaces, self.used, self.open) = (0, 0, false);
                    self.show(TextStyle::default(), &mut out);
                    out.push('\n');
                }
            }
        }
        if ends || self.verbatim {
            self.flush(&mut out);
        }
        // The next output on the terminal may not belong to this text.
        self.show(TextStyle::default(), &mut out);
        out
    }

    fn open(&mut self, lead: &str, hang: String, verbatim: bool, out: &mut String) {
        (self.hang, self.verbatim, self.open) = (hang, verbatim, true);
        if !lead.is_empty() {
            self.put(TextStyle::DIM, lead, out);
        }
    }

    fn text(&mut self, style: TextStyle, text: &str, out: &mut String) {
        if !self.open {
            self.open("", String::new(), false, out);
        }
        if self.verbatim {
            self.put(style, text, out);
            return;
        }
        for c in text.chars() {
            match c.width().unwrap_or(0) {
                _ if c == ' ' || c == '\t' => {
                    self.flush(out);
                    self.spaces += 1;
                }
                // Scripts with wide characters have no spaces, so a line may break between any two characters.
                2 => {
                    self.flush(out);
                    self.letter(style, c, 2);
                    self.flush(out);
                }
                cells => self.letter(style, c, cells),
            }
        }
    }

    fn letter(&mut self, style: TextStyle, c: char, cells: usize) {
        self.word_cells += cells;
        match self.word.last_mut() {
            Some((of, text)) if *of == style => text.push(c),
            _ => self.word.push((style, c.to_string())),
        }
    }

    /// Writes the word, on the next line if it does not fit on this one.
    fn flush(&mut self, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let (width, indent) = (self.manner.width, cells(&self.hang));
        let spaces = std::mem::take(&mut self.spaces);
        if width > 0 && self.used > indent && self.used + spaces + self.word_cells > width {
            self.show(TextStyle::default(), out);
            out.push('\n');
            self.used = 0;
            let hang = std::mem::take(&mut self.hang);
            self.put(TextStyle::DIM, &hang, out);
            self.hang = hang;
        } else {
            self.put(TextStyle::default(), &" ".repeat(spaces), out);
        }
        for (style, text) in std::mem::take(&mut self.word) {
            self.put(style, &text, out);
        }
        self.word_cells = 0;
        // The terminal breaks a word that is longer than a line, so that it can be copied whole.
        if width > 0 && self.used > width {
            self.used = (self.used - 1) % width + 1;
        }
    }

    fn put(&mut self, style: TextStyle, text: &str, out: &mut String) {
        if text.is_empty() {
            return;
        }
        // The style of a space is invisible.
        if !text.trim().is_empty() {
            self.show(style, out);
        }
        out.push_str(text);
        self.used += cells(text);
    }

    /// Switches the terminal to `style`.
    fn show(&mut self, style: TextStyle, out: &mut String) {
        if !self.manner.colour || style == self.shown {
            return;
        }
        if self.shown != TextStyle::default() {
            out.push_str("\x1b[0m");
        }
        let codes = [
            (style.bold, "1"),
            (style.dim, "2"),
            (style.italic, "3"),
            (style.struck, "9"),
            (style.code, "36"),
        ];
        let codes: Vec<_> = codes.iter().filter(|(on, _)| *on).map(|(_, code)| *code).collect();
        if !codes.is_empty() {
            out.push_str(&format!("\x1b[{}m", codes.join(";")));
        }
        self.shown = style;
    }
}

/// Splits a text without marks into parts.
fn plain(piece: &str, style: TextStyle) -> Vec<MarkdownPart> {
    let mut parts = Vec::new();
    for line in piece.split_inclusive('\n') {
        let text = line.strip_suffix('\n');
        parts.push(MarkdownPart::Text(style, text.unwrap_or(line).to_owned()));
        parts.extend(text.map(|_| MarkdownPart::LineEnd));
    }
    parts
}

fn cells(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Wraps a short text of this program.
pub(super) fn wrapped(text: &str, width: usize) -> String {
    let mut typesetter = TextTypesetter::new(TypesetOptions {
        width,
        colour: false,
        markdown: false,
        base: TextStyle::default(),
    });
    let text = typesetter.push(text);
    text + &typesetter.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats `text` in pieces of `step` characters, with its colours.
    fn set(text: &str, width: usize, step: usize) -> String {
        let manner = TypesetOptions { width, colour: true, markdown: true, base: TextStyle::default() };
        let mut typesetter = TextTypesetter::new(manner);
        let letters: Vec<char> = text.chars().collect();
        let mut out: String =
            letters.chunks(step).map(|piece| typesetter.push(&piece.iter().collect::<String>())).collect();
        out.push_str(&typesetter.end());
        out
    }

    fn bare(text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('\x1b') {
            out.push_str(before);
            rest = after.split_once('m').map_or("", |(_, rest)| rest);
        }
        out + rest
    }

    const ANSWER: &str = "\
# A heading of several words
A paragraph with **bold words that go on for longer than a line** and `code`, so that it has to be wrapped.

- a point that is long enough to be wrapped under itself
1. and a *numbered* one that is long enough, too

```rust
fn main() { println!(\"a line of code is longer than the terminal and is left alone\"); }
```
https://example.com/a/very/long/address/that/no/terminal/is/wide/enough/for
模型模型模型模型模型模型模型模型 is wide.";

    #[test]
    fn words_fit_the_width_and_code_is_left_alone() {
        let shown = bare(&set(ANSWER, 30, 7));
        assert_eq!(
            shown,
            "\
A heading of several words
A paragraph with bold words
that go on for longer than a
line and code, so that it has
to be wrapped.

• a point that is long enough
  to be wrapped under itself
1. and a numbered one that is
   long enough, too

```rust
fn main() { println!(\"a line of code is longer than the terminal and is left alone\"); }
```
https://example.com/a/very/long/address/that/no/terminal/is/wide/enough/for
模型模型模型模型模型模型模型模
型 is wide."
        );
    }

    #[test]
    fn pieces_make_no_difference_at_any_width() {
        for width in [0, 20, 33, 60, 80, 200] {
            let whole = bare(&set(ANSWER, width, 10_000));
            for step in [1, 2, 3, 5, 64] {
                assert_eq!(bare(&set(ANSWER, width, step)), whole, "{width} {step}");
            }
            let code = |line: &&str| line.starts_with("fn main") || line.starts_with("https:");
            for line in whole.lines().filter(|line| !code(line)) {
                assert!(width == 0 || cells(line) <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn the_terminal_is_never_left_in_a_style() {
        let manner = TypesetOptions { width: 80, colour: true, markdown: true, base: TextStyle::default() };
        let mut typesetter = TextTypesetter::new(manner);
        for piece in ["# Heading half", " way\n```\ncode ", "goes"] {
            let shown = typesetter.push(piece);
            assert!(
                !shown.contains('\x1b') || shown.trim_end_matches('\n').ends_with("\x1b[0m"),
                "{shown:?}"
            );
        }
        let plain = TypesetOptions { colour: false, ..manner };
        let mut typesetter = TextTypesetter::new(plain);
        let shown = typesetter.push("**as it is** `x`\n# y\n") + &typesetter.end();
        assert_eq!(shown, "**as it is** `x`\n# y\n", "without colour, marks are all there is");
    }
}
