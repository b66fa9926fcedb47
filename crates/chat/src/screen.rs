//! Output of the chat: answers on standard output, the rest on standard error, dim if there is colour. For a person,
//! words are wrapped and Markdown is formatted. A program gets the answer unchanged. No text from a server reaches the
//! terminal as a control sequence. Must not know sessions.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use headrace_domain::steers_terminals;

use super::markdown::TextStyle;
use super::typeset::{TextTypesetter, TypesetOptions, wrapped};

const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const RESET: &str = "\x1b[0m";

/// Standard output cannot be written any more.
#[derive(Debug)]
pub(super) struct OutputClosed;

impl From<io::Error> for OutputClosed {
    fn from(_: io::Error) -> Self {
        Self
    }
}

/// One output stream.
struct OutputStream {
    to: Box<dyn Write>,
    /// Whether a person reads it.
    terminal: bool,
    colour: bool,
}

/// Both output streams. Errors on standard error are ignored, because there is nowhere to report them.
pub(super) struct ChatScreen {
    out: OutputStream,
    err: OutputStream,
    /// Returns the columns of the terminal, which change with its window. 0 leaves wrapping to the terminal.
    width: fn() -> usize,
    /// Whether the output so far ends within a line.
    mid_line: bool,
    /// Whether reasoning was shown and the answer has not begun.
    in_reasoning: bool,
    answer: Option<TextTypesetter>,
    reasoning: Option<TextTypesetter>,
}

impl ChatScreen {
    /// Opens the process's streams, with colour if they are terminals and `NO_COLOR` and `TERM` allow it.
    pub(super) fn of_process() -> Self {
        // <https://no-color.org>: set and not empty.
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let stream = |to: Box<dyn Write>, terminal: bool| OutputStream {
            to,
            terminal,
            colour: terminal && !no_color && !dumb,
        };
        let (out, err) = (io::stdout(), io::stderr());
        let (out_terminal, err_terminal) = (out.is_terminal(), err.is_terminal());
        let width = if dumb { || 0 } else { columns };
        Self::new(stream(Box::new(out), out_terminal), stream(Box::new(err), err_terminal), width)
    }

    fn new(out: OutputStream, err: OutputStream, width: fn() -> usize) -> Self {
        Self { out, err, width, mid_line: false, in_reasoning: false, answer: None, reasoning: None }
    }

    /// Columns of the terminal. 0 if unknown.
    pub(super) fn columns(&self) -> usize {
        (self.width)()
    }

    /// Prepares for the first piece of an answer.
    pub(super) fn begin_answer(&mut self) {
        if !self.out.terminal {
            return;
        }
        let (width, colour) = ((self.width)(), self.out.colour);
        self.answer = Some(TextTypesetter::new(TypesetOptions {
            width,
            colour,
            markdown: true,
            base: TextStyle::default(),
        }));
        self.reasoning = Some(TextTypesetter::new(TypesetOptions {
            width,
            colour,
            markdown: false,
            base: TextStyle::DIM,
        }));
    }

    /// Shows a piece of an answer, as soon as it can be formatted.
    pub(super) fn answer(&mut self, piece: &str) -> Result<(), OutputClosed> {
        if std::mem::take(&mut self.in_reasoning) {
            let rest = self.reasoning.as_mut().map(TextTypesetter::end).unwrap_or_default();
            let gap = if self.mid_line { "\n\n" } else { "" };
            self.write(&format!("{rest}{gap}"))?;
        }
        let piece = self.seen(piece);
        let shown = match &mut self.answer {
            Some(typesetter) => typesetter.push(&piece),
            None => piece,
        };
        self.write(&shown)
    }

    /// Shows a piece of reasoning, dim and only to a person. A program wants only the answer.
    pub(super) fn reasoning(&mut self, piece: &str) -> Result<(), OutputClosed> {
        if !self.out.terminal {
            return Ok(());
        }
        self.in_reasoning = true;
        let piece = self.seen(piece);
        let shown = self.reasoning.as_mut().map(|typesetter| typesetter.push(&piece)).unwrap_or_default();
        self.write(&shown)
    }

    /// Returns the piece with control characters made visible. Records whether it ends within a line.
    fn seen(&mut self, piece: &str) -> String {
        let piece = visible(piece).into_owned();
        if let Some(last) = piece.chars().next_back() {
            self.mid_line = last != '\n';
        }
        piece
    }

    fn write(&mut self, text: &str) -> Result<(), OutputClosed> {
        self.out.to.write_all(text.as_bytes())?;
        Ok(self.out.to.flush()?)
    }

    /// Writes text to standard output.
    pub(super) fn text(&mut self, text: &str) -> Result<(), OutputClosed> {
        let text = self.seen(text);
        self.write(&text)
    }

    /// Shows the rest of the answer, and ends an open last line.
    pub(super) fn end_answer(&mut self) -> Result<(), OutputClosed> {
        let mut rest = String::new();
        for mut typesetter in [self.reasoning.take(), self.answer.take()].into_iter().flatten() {
            rest.push_str(&typesetter.end());
        }
        self.in_reasoning = false;
        if std::mem::take(&mut self.mid_line) {
            rest.push('\n');
        }
        if rest.is_empty() { Ok(()) } else { self.write(&rest) }
    }

    /// Writes a dim line to standard error.
    pub(super) fn note(&mut self, text: &str) {
        self.side(DIM, "", text);
    }

    /// Writes an error to standard error.
    pub(super) fn error(&mut self, text: &str) {
        self.side(RED, "headrace: ", text);
    }

    fn side(&mut self, colour: &str, lead: &str, text: &str) {
        let text = visible(text);
        let text = format!("{lead}{text}");
        let text = if self.err.terminal { wrapped(&text, (self.width)()) } else { text };
        let (colour, reset) = if self.err.colour { (colour, RESET) } else { ("", "") };
        let _ = writeln!(self.err.to, "{colour}{text}{reset}").and_then(|()| self.err.to.flush());
    }
}

/// Columns of the terminal. 0 if unknown.
fn columns() -> usize {
    let size =
        rustix::termios::tcgetwinsize(io::stdout()).or_else(|_| rustix::termios::tcgetwinsize(io::stderr()));
    size.map_or(0, |size| usize::from(size.ws_col))
}

/// Puts foreign text on one short line, for a prompt.
pub(super) fn line_of(text: &str) -> String {
    const MOST: usize = 64;
    visible(text).chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST).collect()
}

/// Makes everything visible that could control a terminal. Control characters become their pictures (U+2400 and on).
/// Those of the upper range, and overrides of the writing direction, become U+FFFD. Carriage returns are removed,
/// because they could overwrite shown text. Line feeds and tabs stay.
fn visible(text: &str) -> Cow<'_, str> {
    // Joiners and direction marks are legitimate in prose.
    let steers =
        |c: char| steers_terminals(c) && !matches!(c, '\n' | '\t' | '\u{ad}' | '\u{200c}'..='\u{200f}');
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let shown = text.chars().filter(|&c| c != '\r').map(|c| match c {
        '\x7f' => '\u{2421}',
        '\0'..='\x1f' if steers(c) => char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{fffd}'),
        _ if steers(c) => '\u{fffd}',
        _ => c,
    });
    Cow::Owned(shown.collect())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct CapturedOutput(Arc<Mutex<Vec<u8>>>);

    impl Write for CapturedOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl CapturedOutput {
        fn read(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    #[test]
    fn nothing_steers_the_terminal() {
        let rows = [
            ("plain é😀\n\ttext", "plain é😀\n\ttext"),
            ("\x1b[2J\x1b]0;title\x07", "␛[2J␛]0;title␇"),
            ("a\r\nb\rc\0\x08\x7f", "a\nbc␀␈␡"),
            ("\u{9b}31m\u{85}", "\u{fffd}31m\u{fffd}"),
            ("\u{202e}evil\u{2066}\u{2028}", "\u{fffd}evil\u{fffd}\u{fffd}"),
        ];
        for (text, shown) in rows {
            assert_eq!(visible(text), shown, "{text:?}");
        }
        for c in '\0'..='\u{3000}' {
            let text = c.to_string();
            let shown = visible(&text);
            assert!(shown.chars().all(|c| matches!(c, '\n' | '\t') || !c.is_control()), "{c:?}");
        }
    }

    fn screen(terminal: bool, width: fn() -> usize) -> (ChatScreen, CapturedOutput, CapturedOutput) {
        let (out, err) = (CapturedOutput::default(), CapturedOutput::default());
        let stream =
            |paper: &CapturedOutput| OutputStream { to: Box::new(paper.clone()), terminal, colour: terminal };
        (ChatScreen::new(stream(&out), stream(&err), width), out, err)
    }

    #[test]
    fn colour_only_for_people() {
        for (terminal, out_text, err_text) in [
            (
                true,
                "\x1b[2mhm\x1b[0m\n\n\x1b[1myes\x1b[0m\n",
                "\x1b[2mnote\x1b[0m\n\x1b[31mheadrace: ␛\x1b[0m\n",
            ),
            (false, "**yes**\n", "note\nheadrace: ␛\n"),
        ] {
            let (mut screen, out, err) = screen(terminal, || 80);
            screen.begin_answer();
            screen.reasoning("hm").unwrap();
            screen.answer("**ye").unwrap();
            screen.answer("s**").unwrap();
            screen.end_answer().unwrap();
            screen.end_answer().unwrap();
            screen.note("note");
            screen.error("\x1b");
            assert_eq!((out.read().as_str(), err.read().as_str()), (out_text, err_text));
        }
    }

    #[test]
    fn words_are_wrapped_for_people_alone() {
        let words = "one two three four five six seven eight nine ten";
        for (terminal, shown) in [(true, "one two three four\nfive six seven eight\nnine ten\n"), (false, "")]
        {
            let (mut screen, out, err) = screen(terminal, || 20);
            screen.begin_answer();
            for piece in words.split_inclusive(' ') {
                screen.answer(piece).unwrap();
            }
            screen.end_answer().unwrap();
            screen.note(words);
            let expected = if terminal { shown.to_owned() } else { format!("{words}\n") };
            assert_eq!(out.read(), expected);
            assert_eq!(err.read().replace(DIM, "").replace(RESET, ""), expected);
        }
    }

    #[test]
    fn a_name_in_a_prompt_is_one_short_line() {
        assert_eq!(line_of("get\nweather\x1b"), "get weather␛");
        assert_eq!(line_of(&"x".repeat(500)).len(), 64);
    }
}
