//! A streaming Markdown parser. Returns decided text at once with its style, and holds undecided text back. Marks that
//! turn out to have no meaning become text, so nothing is lost. Must not know terminals or widths.
//!
//! Blocks: headings, lists, quotes, rules, fenced code, rows of tables (unchanged). Inline: emphasis, strong, code,
//! strikethrough. Within one line, the rules are CommonMark's
//! (<https://spec.commonmark.org/0.31.2/#emphasis-and-strong-emphasis>).

/// The style of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TextStyle {
    pub(super) bold: bool,
    pub(super) italic: bool,
    pub(super) struck: bool,
    pub(super) code: bool,
    pub(super) dim: bool,
}

impl TextStyle {
    pub(super) const DIM: Self = Self { bold: false, italic: false, struck: false, code: false, dim: true };
    const CODE: Self = Self { bold: false, italic: false, struck: false, code: true, dim: false };
}

/// A piece of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MarkdownPart {
    /// Opens a line of words. `lead` precedes the words, and `hang` precedes the lines that they are wrapped to.
    Words {
        lead: String,
        hang: String,
    },
    /// Opens a line that is shown unchanged.
    Verbatim,
    Text(TextStyle, String),
    /// A horizontal rule.
    Rule,
    LineEnd,
}

/// Maximum number of bytes that wait for a closing mark, or for the end of a line that may open a block.
const MAX_HELD_BYTES: usize = 400;
/// Maximum depth of nested quotes.
const MAX_QUOTES: usize = 6;

/// The parser's state.
#[derive(Debug, Default)]
pub(super) struct MarkdownParser {
    line: LineState,
    /// The part of the line that is held back.
    held: String,
    /// The character before `held` in its line.
    before: Option<char>,
    base: TextStyle,
    fence: Option<CodeFence>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum LineState {
    /// The kind of the line is not known yet.
    #[default]
    Opening,
    Words,
    Verbatim,
}

/// An open code fence. It ends with at least as many of the same character.
#[derive(Debug, Clone, Copy)]
struct CodeFence {
    mark: char,
    length: usize,
}

impl MarkdownParser {
    /// Adds a piece, and returns the parts that are decided.
    pub(super) fn push(&mut self, piece: &str) -> Vec<MarkdownPart> {
        let mut parts = Vec::new();
        for line in piece.split_inclusive('\n') {
            let text = line.strip_suffix('\n');
            self.held.push_str(text.unwrap_or(line));
            self.advance(text.is_some(), &mut parts);
            if text.is_some() {
                parts.push(MarkdownPart::LineEnd);
                (self.line, self.before, self.base) = (LineState::Opening, None, TextStyle::default());
            }
        }
        parts
    }

    /// Ends the text, and returns the rest. The next piece begins another text.
    pub(super) fn end(&mut self) -> Vec<MarkdownPart> {
        let mut parts = Vec::new();
        self.advance(true, &mut parts);
        *self = Self::default();
        parts
    }

    fn advance(&mut self, whole: bool, parts: &mut Vec<MarkdownPart>) {
        if self.line == LineState::Opening && !self.open(whole, parts) {
            return;
        }
        if self.line == LineState::Verbatim {
            self.give(parts);
            return;
        }
        let mut spans = SpanParser { text: &self.held, before: self.before, style: self.base, whole };
        spans.give(parts);
        self.before = spans.before;
        self.held = spans.text.to_owned();
    }

    /// Returns the held text unchanged.
    fn give(&mut self, parts: &mut Vec<MarkdownPart>) {
        if !self.held.is_empty() {
            parts.push(MarkdownPart::Text(self.base, std::mem::take(&mut self.held)));
        }
    }

    /// Decides the kind of the line. Returns `false` if more of the line is needed.
    fn open(&mut self, whole: bool, parts: &mut Vec<MarkdownPart>) -> bool {
        if self.fence.is_some() {
            return self.open_code(whole, parts);
        }
        let mut quotes = String::new();
        let mut rest = self.held.as_str();
        for _ in 0..MAX_QUOTES {
            let Some(inner) = rest.trim_start_matches(' ').strip_prefix('>') else { break };
            if inner.is_empty() && !whole {
                return false;
            }
            quotes.push_str("│ ");
            rest = inner.strip_prefix(' ').unwrap_or(inner);
        }
        let whole = whole || self.held.len() > MAX_HELD_BYTES;
        let Some(opened) = LineStart::of(rest, whole) else { return false };
        let rest = rest.get(opened.taken..).unwrap_or_default().to_owned();
        match opened.kind {
            LineKind::Fence(fence) => {
                self.fence = Some(fence);
                (self.line, self.base) = (LineState::Verbatim, TextStyle::DIM);
                parts.push(MarkdownPart::Verbatim);
                return true;
            }
            LineKind::Row => {
                self.line = LineState::Verbatim;
                parts.push(MarkdownPart::Verbatim);
                return true;
            }
            LineKind::Rule => {
                parts.push(MarkdownPart::Rule);
                self.line = LineState::Verbatim;
            }
            LineKind::Words { lead } => {
                let hang = " ".repeat(lead.chars().count());
                self.line = LineState::Words;
                parts.push(MarkdownPart::Words {
                    lead: format!("{quotes}{lead}"),
                    hang: format!("{quotes}{hang}"),
                });
            }
            LineKind::Heading => {
                (self.line, self.base.bold) = (LineState::Words, true);
                parts.push(MarkdownPart::Words { lead: quotes.clone(), hang: quotes });
            }
        }
        self.held = rest;
        true
    }

    /// Opens a line within fenced code, or the line that ends it.
    fn open_code(&mut self, whole: bool, parts: &mut Vec<MarkdownPart>) -> bool {
        let Some(CodeFence { mark, length }) = self.fence else { return true };
        let text = self.held.trim_start_matches(' ');
        let run = text.chars().take_while(|&c| c == mark).count();
        let may_end = text.chars().skip(run).all(|c| c == ' ') && self.held.len() < MAX_HELD_BYTES;
        if may_end && !whole {
            return false;
        }
        self.base = TextStyle::CODE;
        if may_end && run >= length {
            self.fence = None;
            self.base = TextStyle::DIM;
        }
        self.line = LineState::Verbatim;
        parts.push(MarkdownPart::Verbatim);
        true
    }
}

/// The kind of a line.
struct LineStart {
    kind: LineKind,
    /// Number of bytes of the line that are marks.
    taken: usize,
}

enum LineKind {
    Fence(CodeFence),
    Row,
    Rule,
    Heading,
    Words { lead: String },
}

impl LineStart {
    /// Decides the kind of a line. `None` if more of the line is needed.
    fn of(line: &str, whole: bool) -> Option<Self> {
        let text = line.trim_start_matches(' ');
        let indent = line.len() - text.len();
        let words = |lead: String, taken: usize| Some(Self { kind: LineKind::Words { lead }, taken });
        let Some(first) = text.chars().next() else {
            return if whole { words(String::new(), line.len()) } else { None };
        };
        let plain = || words(" ".repeat(indent), indent);
        let run = text.chars().take_while(|&c| c == first).count();
        // Marks are ASCII, so that a count of characters is a length in bytes.
        let after = text.get(run..).unwrap_or_default();
        match first {
            '`' | '~' if run < 3 => {
                if after.is_empty() && !whole {
                    None
                } else {
                    plain()
                }
            }
            '`' | '~' if !whole => None,
            '`' if after.contains('`') => plain(),
            '`' | '~' => {
                let fence = CodeFence { mark: first, length: run };
                Some(Self { kind: LineKind::Fence(fence), taken: 0 })
            }
            '#' if run <= 6 && after.starts_with(' ') => {
                let title = after.trim_start_matches(' ');
                if title.is_empty() && !whole {
                    return None;
                }
                let taken = line.len() - title.len();
                Some(Self { kind: LineKind::Heading, taken })
            }
            '#' if after.is_empty() && !whole => None,
            '|' => Some(Self { kind: LineKind::Row, taken: 0 }),
            '-' | '*' | '+' | '_' => bullet_or_rule(line, indent, first, whole, plain),
            '0'..='9' => {
                let digits = text.chars().take_while(char::is_ascii_digit).count();
                let after = text.get(digits..).unwrap_or_default();
                match after.strip_prefix(['.', ')']) {
                    Some(after) if digits <= 9 && after.starts_with(' ') => {
                        let taken = indent + digits + 2;
                        words(line.get(..taken).unwrap_or_default().to_owned(), taken)
                    }
                    Some("") if !whole => None,
                    None if after.is_empty() && !whole && digits <= 9 => None,
                    _ => plain(),
                }
            }
            _ => plain(),
        }
    }
}

fn bullet_or_rule(
    line: &str,
    indent: usize,
    mark: char,
    whole: bool,
    plain: impl Fn() -> Option<LineStart>,
) -> Option<LineStart> {
    let text = line.get(indent..).unwrap_or_default();
    let marks = text.chars().filter(|&c| c == mark).count();
    if text.chars().all(|c| c == mark || c == ' ') {
        return match (whole, marks) {
            (false, _) => None,
            (true, 3..) if mark != '+' => Some(LineStart { kind: LineKind::Rule, taken: line.len() }),
            (true, _) => plain(),
        };
    }
    match text.get(1..) {
        Some(after) if mark != '_' && after.starts_with(' ') => {
            let taken = line.len() - after.trim_start_matches(' ').len();
            let lead = format!("{}• ", " ".repeat(indent));
            Some(LineStart { kind: LineKind::Words { lead }, taken })
        }
        _ => plain(),
    }
}

/// Words with inline marks.
struct SpanParser<'a> {
    text: &'a str,
    before: Option<char>,
    style: TextStyle,
    /// Whether the line is complete.
    whole: bool,
}

/// The meaning of a mark.
enum SpanMatch {
    /// Text of this many bytes.
    Text(usize),
    /// A backslash that makes the next bytes text.
    Escaped(usize),
    /// Text within marks: its start, its end, the end of its closing mark, and its style.
    Span(usize, usize, usize, TextStyle),
    /// More text is needed.
    Wait,
}

const MARKS: [char; 5] = ['`', '*', '_', '~', '\\'];

impl<'a> SpanParser<'a> {
    /// Returns the parts that are decided. The rest stays in `text`.
    fn give(&mut self, parts: &mut Vec<MarkdownPart>) {
        loop {
            let plain = self.text.find(MARKS).unwrap_or(self.text.len());
            self.take(plain, self.style, parts);
            if self.text.is_empty() {
                return;
            }
            match self.at_mark() {
                SpanMatch::Text(length) => self.take(length, self.style, parts),
                SpanMatch::Escaped(length) => {
                    self.text = self.text.get(1..).unwrap_or_default();
                    self.take(length, self.style, parts);
                }
                SpanMatch::Span(from, to, end, style) => {
                    let inner = self.text.get(from..to).unwrap_or_default();
                    if style.code {
                        parts.push(MarkdownPart::Text(style, unpadded(inner).to_owned()));
                    } else {
                        let before = self.text.chars().next();
                        SpanParser { text: inner, before, style, whole: true }.give(parts);
                    }
                    self.before = self.text.get(..end).and_then(|text| text.chars().next_back());
                    self.text = self.text.get(end..).unwrap_or_default();
                }
                SpanMatch::Wait => return,
            }
        }
    }

    fn take(&mut self, length: usize, style: TextStyle, parts: &mut Vec<MarkdownPart>) {
        let (text, rest) = self.text.split_at_checked(length).unwrap_or((self.text, ""));
        if !text.is_empty() {
            self.before = text.chars().next_back();
            parts.push(MarkdownPart::Text(style, text.to_owned()));
        }
        self.text = rest;
    }

    fn at_mark(&self) -> SpanMatch {
        let Some(mark) = self.text.chars().next() else { return SpanMatch::Text(0) };
        if mark == '\\' {
            return match self.text.chars().nth(1) {
                Some(c) if c.is_ascii_punctuation() => SpanMatch::Escaped(1),
                None if !self.whole => SpanMatch::Wait,
                _ => SpanMatch::Text(1),
            };
        }
        // Both the search for a closing mark and the wait for it end after [`MAX_HELD_BYTES`].
        let ahead = self.text.get(..self.text.floor_char_boundary(MAX_HELD_BYTES)).unwrap_or(self.text);
        let whole = self.whole || ahead.len() < self.text.len();
        let run = ahead.chars().take_while(|&c| c == mark).count();
        if run == ahead.len() && !whole {
            return SpanMatch::Wait;
        }
        let style = match (mark, run) {
            ('`', _) => TextStyle { code: true, ..self.style },
            ('~', 2) => TextStyle { struck: true, ..self.style },
            ('*' | '_', 1) => TextStyle { italic: true, ..self.style },
            ('*' | '_', 2) => TextStyle { bold: true, ..self.style },
            ('*' | '_', 3) => TextStyle { bold: true, italic: true, ..self.style },
            _ => return SpanMatch::Text(run),
        };
        let next = ahead.get(run..).and_then(|after| after.chars().next());
        if mark != '`' && !may_open(mark, self.before, next) {
            return SpanMatch::Text(run);
        }
        match closing(ahead, mark, run, whole) {
            ClosingMark::At(at) => SpanMatch::Span(run, at, at + run, style),
            ClosingMark::Unknown => SpanMatch::Wait,
            ClosingMark::None => SpanMatch::Text(run),
        }
    }
}

enum ClosingMark {
    At(usize),
    None,
    Unknown,
}

/// Finds the closing mark of the span that `text` opens with.
fn closing(text: &str, mark: char, opened: usize, whole: bool) -> ClosingMark {
    let missing = if whole { ClosingMark::None } else { ClosingMark::Unknown };
    let mut at = opened;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let Some(c) = rest.chars().next() else { break };
        if c != mark && !matches!(c, '`' | '\\') {
            at += c.len_utf8();
            continue;
        }
        let run = rest.chars().take_while(|&other| other == c).count();
        let ends = rest.len() == run;
        match c {
            '\\' if mark == '`' => at += 1,
            '\\' => at += 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            '`' if mark == '`' => {
                if run == opened {
                    return if ends && !whole { ClosingMark::Unknown } else { ClosingMark::At(at) };
                }
                at += run;
            }
            '`' => match closing(rest, '`', run, whole) {
                ClosingMark::At(end) => at += end + run,
                ClosingMark::None => at += run,
                ClosingMark::Unknown => return ClosingMark::Unknown,
            },
            _ => {
                if ends && !whole {
                    return ClosingMark::Unknown;
                }
                let before = text.get(..at).and_then(|text| text.chars().next_back());
                let after = rest.chars().nth(run);
                let fits = match (opened, run) {
                    (1, 1 | 3) | (2, 2 | 3) => true,
                    (3, _) => run >= 3,
                    _ => false,
                };
                if fits && may_close(mark, before, after) {
                    return ClosingMark::At(at + run - opened);
                }
                at += run;
            }
        }
    }
    missing
}

fn blank(c: Option<char>) -> bool {
    c.is_none_or(char::is_whitespace)
}

fn punctuation(c: Option<char>) -> bool {
    c.is_some_and(|c| !c.is_alphanumeric() && !c.is_whitespace())
}

fn left_flanking(before: Option<char>, after: Option<char>) -> bool {
    !blank(after) && (!punctuation(after) || blank(before) || punctuation(before))
}

fn may_open(mark: char, before: Option<char>, after: Option<char>) -> bool {
    let (left, right) = (left_flanking(before, after), left_flanking(after, before));
    if mark == '_' { left && (!right || punctuation(before)) } else { left }
}

fn may_close(mark: char, before: Option<char>, after: Option<char>) -> bool {
    let (left, right) = (left_flanking(before, after), left_flanking(after, before));
    if mark == '_' { right && (!left || punctuation(after)) } else { right }
}

/// Code without the single space at both ends that separates it from its marks.
fn unpadded(code: &str) -> &str {
    let inner = code.strip_prefix(' ').and_then(|code| code.strip_suffix(' '));
    inner.filter(|inner| !inner.trim().is_empty()).unwrap_or(code)
}

#[cfg(test)]
mod tests;
