//! A streaming Markdown parser. Returns decided text at once with its style, and holds undecided text back. Marks that
//! turn out to have no meaning become text, so nothing is lost. Must not know terminals or widths.
//!
//! Blocks: headings, lists, quotes, rules, fenced code, rows of tables (unchanged). Inline: emphasis, strong, code,
//! strikethrough. Within one line, the rules are CommonMark's
//! (<https://spec.commonmark.org/0.31.2/#emphasis-and-strong-emphasis>).

/// The style of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Style {
    pub(super) bold: bool,
    pub(super) italic: bool,
    pub(super) struck: bool,
    pub(super) code: bool,
    pub(super) dim: bool,
}

impl Style {
    pub(super) const DIM: Self = Self { bold: false, italic: false, struck: false, code: false, dim: true };
    const CODE: Self = Self { bold: false, italic: false, struck: false, code: true, dim: false };
}

/// A piece of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// Opens a line of words. `lead` precedes the words, and `hang` precedes the lines that they are wrapped to.
    Words {
        lead: String,
        hang: String,
    },
    /// Opens a line that is shown unchanged.
    Verbatim,
    Text(Style, String),
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
pub(super) struct Markdown {
    line: Line,
    /// The part of the line that is held back.
    held: String,
    /// The character before `held` in its line.
    before: Option<char>,
    base: Style,
    fence: Option<Fence>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Line {
    /// The kind of the line is not known yet.
    #[default]
    Opening,
    Words,
    Verbatim,
}

/// An open code fence. It ends with at least as many of the same character.
#[derive(Debug, Clone, Copy)]
struct Fence {
    mark: char,
    length: usize,
}

impl Markdown {
    /// Adds a piece, and returns the parts that are decided.
    pub(super) fn push(&mut self, piece: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        for line in piece.split_inclusive('\n') {
            let text = line.strip_suffix('\n');
            self.held.push_str(text.unwrap_or(line));
            self.advance(text.is_some(), &mut parts);
            if text.is_some() {
                parts.push(Part::LineEnd);
                (self.line, self.before, self.base) = (Line::Opening, None, Style::default());
            }
        }
        parts
    }

    /// Ends the text, and returns the rest. The next piece begins another text.
    pub(super) fn end(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        self.advance(true, &mut parts);
        *self = Self::default();
        parts
    }

    fn advance(&mut self, whole: bool, parts: &mut Vec<Part>) {
        if self.line == Line::Opening && !self.open(whole, parts) {
            return;
        }
        if self.line == Line::Verbatim {
            self.give(parts);
            return;
        }
        let mut spans = Spans { text: &self.held, before: self.before, style: self.base, whole };
        spans.give(parts);
        self.before = spans.before;
        self.held = spans.text.to_owned();
    }

    /// Returns the held text unchanged.
    fn give(&mut self, parts: &mut Vec<Part>) {
        if !self.held.is_empty() {
            parts.push(Part::Text(self.base, std::mem::take(&mut self.held)));
        }
    }

    /// Decides the kind of the line. Returns `false` if more of the line is needed.
    fn open(&mut self, whole: bool, parts: &mut Vec<Part>) -> bool {
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
        let Some(opened) = Opened::of(rest, whole) else { return false };
        let rest = rest.get(opened.taken..).unwrap_or_default().to_owned();
        match opened.kind {
            Kind::Fence(fence) => {
                self.fence = Some(fence);
                (self.line, self.base) = (Line::Verbatim, Style::DIM);
                parts.push(Part::Verbatim);
                return true;
            }
            Kind::Row => {
                self.line = Line::Verbatim;
                parts.push(Part::Verbatim);
                return true;
            }
            Kind::Rule => {
                parts.push(Part::Rule);
                self.line = Line::Verbatim;
            }
            Kind::Words { lead } => {
                let hang = " ".repeat(lead.chars().count());
                self.line = Line::Words;
                parts.push(Part::Words { lead: format!("{quotes}{lead}"), hang: format!("{quotes}{hang}") });
            }
            Kind::Heading => {
                (self.line, self.base.bold) = (Line::Words, true);
                parts.push(Part::Words { lead: quotes.clone(), hang: quotes });
            }
        }
        self.held = rest;
        true
    }

    /// Opens a line within fenced code, or the line that ends it.
    fn open_code(&mut self, whole: bool, parts: &mut Vec<Part>) -> bool {
        let Some(Fence { mark, length }) = self.fence else { return true };
        let text = self.held.trim_start_matches(' ');
        let run = text.chars().take_while(|&c| c == mark).count();
        let may_end = text.chars().skip(run).all(|c| c == ' ') && self.held.len() < MAX_HELD_BYTES;
        if may_end && !whole {
            return false;
        }
        self.base = Style::CODE;
        if may_end && run >= length {
            self.fence = None;
            self.base = Style::DIM;
        }
        self.line = Line::Verbatim;
        parts.push(Part::Verbatim);
        true
    }
}

/// The kind of a line.
struct Opened {
    kind: Kind,
    /// Number of bytes of the line that are marks.
    taken: usize,
}

enum Kind {
    Fence(Fence),
    Row,
    Rule,
    Heading,
    Words { lead: String },
}

impl Opened {
    /// Decides the kind of a line. `None` if more of the line is needed.
    fn of(line: &str, whole: bool) -> Option<Self> {
        let text = line.trim_start_matches(' ');
        let indent = line.len() - text.len();
        let words = |lead: String, taken: usize| Some(Self { kind: Kind::Words { lead }, taken });
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
                let fence = Fence { mark: first, length: run };
                Some(Self { kind: Kind::Fence(fence), taken: 0 })
            }
            '#' if run <= 6 && after.starts_with(' ') => {
                let title = after.trim_start_matches(' ');
                if title.is_empty() && !whole {
                    return None;
                }
                let taken = line.len() - title.len();
                Some(Self { kind: Kind::Heading, taken })
            }
            '#' if after.is_empty() && !whole => None,
            '|' => Some(Self { kind: Kind::Row, taken: 0 }),
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
    plain: impl Fn() -> Option<Opened>,
) -> Option<Opened> {
    let text = line.get(indent..).unwrap_or_default();
    let marks = text.chars().filter(|&c| c == mark).count();
    if text.chars().all(|c| c == mark || c == ' ') {
        return match (whole, marks) {
            (false, _) => None,
            (true, 3..) if mark != '+' => Some(Opened { kind: Kind::Rule, taken: line.len() }),
            (true, _) => plain(),
        };
    }
    match text.get(1..) {
        Some(after) if mark != '_' && after.starts_with(' ') => {
            let taken = line.len() - after.trim_start_matches(' ').len();
            let lead = format!("{}• ", " ".repeat(indent));
            Some(Opened { kind: Kind::Words { lead }, taken })
        }
        _ => plain(),
    }
}

/// Words with inline marks.
struct Spans<'a> {
    text: &'a str,
    before: Option<char>,
    style: Style,
    /// Whether the line is complete.
    whole: bool,
}

/// The meaning of a mark.
enum Found {
    /// Text of this many bytes.
    Text(usize),
    /// A backslash that makes the next bytes text.
    Escaped(usize),
    /// Text within marks: its start, its end, the end of its closing mark, and its style.
    Span(usize, usize, usize, Style),
    /// More text is needed.
    Wait,
}

const MARKS: [char; 5] = ['`', '*', '_', '~', '\\'];

impl<'a> Spans<'a> {
    /// Returns the parts that are decided. The rest stays in `text`.
    fn give(&mut self, parts: &mut Vec<Part>) {
        loop {
            let plain = self.text.find(MARKS).unwrap_or(self.text.len());
            self.take(plain, self.style, parts);
            if self.text.is_empty() {
                return;
            }
            match self.at_mark() {
                Found::Text(length) => self.take(length, self.style, parts),
                Found::Escaped(length) => {
                    self.text = self.text.get(1..).unwrap_or_default();
                    self.take(length, self.style, parts);
                }
                Found::Span(from, to, end, style) => {
                    let inner = self.text.get(from..to).unwrap_or_default();
                    if style.code {
                        parts.push(Part::Text(style, unpadded(inner).to_owned()));
                    } else {
                        let before = self.text.chars().next();
                        Spans { text: inner, before, style, whole: true }.give(parts);
                    }
                    self.before = self.text.get(..end).and_then(|text| text.chars().next_back());
                    self.text = self.text.get(end..).unwrap_or_default();
                }
                Found::Wait => return,
            }
        }
    }

    fn take(&mut self, length: usize, style: Style, parts: &mut Vec<Part>) {
        let (text, rest) = self.text.split_at_checked(length).unwrap_or((self.text, ""));
        if !text.is_empty() {
            self.before = text.chars().next_back();
            parts.push(Part::Text(style, text.to_owned()));
        }
        self.text = rest;
    }

    fn at_mark(&self) -> Found {
        let Some(mark) = self.text.chars().next() else { return Found::Text(0) };
        if mark == '\\' {
            return match self.text.chars().nth(1) {
                Some(c) if c.is_ascii_punctuation() => Found::Escaped(1),
                None if !self.whole => Found::Wait,
                _ => Found::Text(1),
            };
        }
        // Both the search for a closing mark and the wait for it end after [`MAX_HELD_BYTES`].
        let ahead = self.text.get(..self.text.floor_char_boundary(MAX_HELD_BYTES)).unwrap_or(self.text);
        let whole = self.whole || ahead.len() < self.text.len();
        let run = ahead.chars().take_while(|&c| c == mark).count();
        if run == ahead.len() && !whole {
            return Found::Wait;
        }
        let style = match (mark, run) {
            ('`', _) => Style { code: true, ..self.style },
            ('~', 2) => Style { struck: true, ..self.style },
            ('*' | '_', 1) => Style { italic: true, ..self.style },
            ('*' | '_', 2) => Style { bold: true, ..self.style },
            ('*' | '_', 3) => Style { bold: true, italic: true, ..self.style },
            _ => return Found::Text(run),
        };
        let next = ahead.get(run..).and_then(|after| after.chars().next());
        if mark != '`' && !may_open(mark, self.before, next) {
            return Found::Text(run);
        }
        match closing(ahead, mark, run, whole) {
            Closing::At(at) => Found::Span(run, at, at + run, style),
            Closing::Unknown => Found::Wait,
            Closing::None => Found::Text(run),
        }
    }
}

enum Closing {
    At(usize),
    None,
    Unknown,
}

/// Finds the closing mark of the span that `text` opens with.
fn closing(text: &str, mark: char, opened: usize, whole: bool) -> Closing {
    let missing = if whole { Closing::None } else { Closing::Unknown };
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
                    return if ends && !whole { Closing::Unknown } else { Closing::At(at) };
                }
                at += run;
            }
            '`' => match closing(rest, '`', run, whole) {
                Closing::At(end) => at += end + run,
                Closing::None => at += run,
                Closing::Unknown => return Closing::Unknown,
            },
            _ => {
                if ends && !whole {
                    return Closing::Unknown;
                }
                let before = text.get(..at).and_then(|text| text.chars().next_back());
                let after = rest.chars().nth(run);
                let fits = match (opened, run) {
                    (1, 1 | 3) | (2, 2 | 3) => true,
                    (3, _) => run >= 3,
                    _ => false,
                };
                if fits && may_close(mark, before, after) {
                    return Closing::At(at + run - opened);
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
