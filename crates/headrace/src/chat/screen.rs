//! What the chat writes: answers to standard output, the rest to standard error, dim where there is colour.
//! Nothing that a server sent reaches the terminal as a control sequence. Knows no session.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const RESET: &str = "\x1b[0m";

/// Nobody reads standard output any more.
#[derive(Debug)]
pub(super) struct OutputClosed;

impl From<io::Error> for OutputClosed {
    fn from(_: io::Error) -> Self {
        Self
    }
}

/// Both output streams. Failures of standard error are ignored: there is nowhere to tell of them.
pub(super) struct Screen {
    out: Box<dyn Write>,
    err: Box<dyn Write>,
    /// Standard output is a terminal: a person reads it.
    out_terminal: bool,
    out_colour: bool,
    err_colour: bool,
    /// The last byte of the answer so far is no line end.
    mid_line: bool,
    /// Reasoning was shown and the answer has not begun.
    in_reasoning: bool,
}

impl Screen {
    /// The process's streams, with colour where they are terminals and `NO_COLOR` and `TERM` allow it.
    pub(super) fn of_process() -> Self {
        // https://no-color.org: set and not empty.
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colour = !no_color && !dumb;
        let (out, err) = (io::stdout(), io::stderr());
        let (out_terminal, err_terminal) = (out.is_terminal(), err.is_terminal());
        Self::new(
            (Box::new(out), out_terminal, out_terminal && colour),
            (Box::new(err), err_terminal && colour),
        )
    }

    fn new(out: (Box<dyn Write>, bool, bool), err: (Box<dyn Write>, bool)) -> Self {
        Self {
            out: out.0,
            err: err.0,
            out_terminal: out.1,
            out_colour: out.2,
            err_colour: err.1,
            mid_line: false,
            in_reasoning: false,
        }
    }

    /// A piece of an answer, shown at once.
    pub(super) fn answer(&mut self, piece: &str) -> Result<(), OutputClosed> {
        if std::mem::take(&mut self.in_reasoning) && self.mid_line {
            self.text("\n\n")?;
        }
        self.text(piece)
    }

    /// A piece of reasoning: for a person only, dim. A program that reads the output wants the answer alone.
    pub(super) fn reasoning(&mut self, piece: &str) -> Result<(), OutputClosed> {
        if !self.out_terminal {
            return Ok(());
        }
        self.in_reasoning = true;
        let piece = visible(piece);
        self.mid_line = !piece.ends_with('\n');
        let (dim, reset) = if self.out_colour { (DIM, RESET) } else { ("", "") };
        write!(self.out, "{dim}{piece}{reset}")?;
        Ok(self.out.flush()?)
    }

    /// Text on standard output.
    pub(super) fn text(&mut self, text: &str) -> Result<(), OutputClosed> {
        let text = visible(text);
        if let Some(last) = text.chars().next_back() {
            self.mid_line = last != '\n';
        }
        self.out.write_all(text.as_bytes())?;
        Ok(self.out.flush()?)
    }

    /// Ends the answer's last line where it is open.
    pub(super) fn end_answer(&mut self) -> Result<(), OutputClosed> {
        self.in_reasoning = false;
        if std::mem::take(&mut self.mid_line) {
            self.out.write_all(b"\n")?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// A dim line on standard error.
    pub(super) fn note(&mut self, text: &str) {
        self.side(DIM, "", text);
    }

    /// An error's line on standard error.
    pub(super) fn error(&mut self, text: &str) {
        self.side(RED, "error: ", text);
    }

    /// What stands before what a person types.
    pub(super) fn prompt(&mut self) {
        let _ = self.err.write_all(b"> ").and_then(|()| self.err.flush());
    }

    /// Leaves the line of the prompt.
    pub(super) fn end_line(&mut self) {
        let _ = self.err.write_all(b"\n").and_then(|()| self.err.flush());
    }

    fn side(&mut self, colour: &str, lead: &str, text: &str) {
        let text = visible(text);
        let (colour, reset) = if self.err_colour { (colour, RESET) } else { ("", "") };
        let _ = writeln!(self.err, "{colour}{lead}{text}{reset}").and_then(|()| self.err.flush());
    }
}

/// The text with everything that could steer a terminal made visible: control characters become their pictures
/// (U+2400 and on), those of the upper range and the overrides of writing direction U+FFFD. Carriage returns go:
/// they could write over what is shown. Line feeds and tabs stay.
fn visible(text: &str) -> Cow<'_, str> {
    let steers = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
    };
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
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Paper {
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

    #[test]
    fn colour_only_for_people() {
        for (terminal, out_text, err_text) in [
            (true, "\x1b[2mhm\x1b[0m\n\nyes\n", "\x1b[2mnote\x1b[0m\n\x1b[31merror: ␛\x1b[0m\n"),
            (false, "yes\n", "note\nerror: ␛\n"),
        ] {
            let (out, err) = (Paper::default(), Paper::default());
            let mut screen =
                Screen::new((Box::new(out.clone()), terminal, terminal), (Box::new(err.clone()), terminal));
            screen.reasoning("hm").unwrap();
            screen.answer("ye").unwrap();
            screen.answer("s").unwrap();
            screen.end_answer().unwrap();
            screen.end_answer().unwrap();
            screen.note("note");
            screen.error("\x1b");
            assert_eq!((out.read().as_str(), err.read().as_str()), (out_text, err_text));
        }
    }
}
