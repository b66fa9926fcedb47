//! What is said to the chat: lines that a person types, or those of a pipe. Knows not what they mean.

use std::io::{self, BufRead, IsTerminal, Read};
use std::path::PathBuf;
use std::sync::mpsc;

use tokio::sync::oneshot;

use super::editor::Editor;
use super::typed::Typed;

/// Longest line, in bytes.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Where lines come from.
pub(super) enum Input {
    Person(Editor),
    Pipe(Lines),
}

impl Input {
    /// The process's standard input; `history` is the file that remembers what a person types.
    pub(super) fn of_process(history: Option<PathBuf>) -> Self {
        if !io::stdin().is_terminal() {
            return Self::Pipe(Lines::of_stdin());
        }
        // A terminal that cannot be edited on can be read from.
        match Editor::open(io::stdout().is_terminal(), history) {
            Ok(editor) => Self::Person(editor),
            Err(_) => Self::Pipe(Lines::of_stdin()),
        }
    }

    /// Whether a person types.
    pub(super) const fn is_person(&self) -> bool {
        matches!(self, Self::Person(_))
    }

    /// The models that are completed.
    pub(super) fn know(&self, models: Vec<String>) {
        if let Self::Person(editor) = self {
            editor.know(models);
        }
    }

    /// The next line; a person is shown `prompt` before it.
    pub(super) async fn next(&self, prompt: &str) -> Typed {
        self.line(prompt, false).await
    }

    /// What a question of ours is answered with.
    pub(super) async fn answer(&self, question: &str) -> Typed {
        self.line(question, true).await
    }

    async fn line(&self, prompt: &str, asked: bool) -> Typed {
        match self {
            Self::Person(editor) => editor.next(prompt, asked).await,
            Self::Pipe(lines) => match lines.next().await {
                Some(Ok(line)) => Typed::Line(line),
                Some(Err(error)) => Typed::Unreadable(error.to_string()),
                None => Typed::End,
            },
        }
    }
}

type Line = Option<io::Result<String>>;

/// Standard input, line by line. The thread behind it ends with the process: it may wait for bytes that never come.
#[derive(Debug)]
pub(super) struct Lines {
    wanted: mpsc::Sender<oneshot::Sender<Line>>,
}

impl Lines {
    fn of_stdin() -> Self {
        let (wanted, asked) = mpsc::channel::<oneshot::Sender<Line>>();
        std::thread::spawn(move || {
            let mut stdin = io::stdin().lock();
            for reply in asked {
                // Whoever asked may have left by now: then nobody asks again.
                if reply.send(read_line(&mut stdin)).is_err() {
                    return;
                }
            }
        });
        Self { wanted }
    }

    /// The next line without its end; `None` at the end of the input.
    async fn next(&self) -> Line {
        let (reply, line) = oneshot::channel();
        self.wanted.send(reply).ok()?;
        line.await.ok().flatten()
    }
}

/// Reads one line. One that is too long or not UTF-8 is an error and skipped whole; a failing input counts as ended,
/// since it would fail again.
fn read_line(input: &mut impl BufRead) -> Line {
    let mut bytes = Vec::new();
    let mut limited = input.by_ref().take(MAX_LINE_BYTES as u64);
    if limited.read_until(b'\n', &mut bytes).ok()? == 0 {
        return None;
    }
    if bytes.len() == MAX_LINE_BYTES && bytes.last() != Some(&b'\n') {
        input.skip_until(b'\n').ok()?;
        let what = format!("a line has more than {MAX_LINE_BYTES} bytes and was skipped");
        return Some(Err(io::Error::new(io::ErrorKind::InvalidData, what)));
    }
    while matches!(bytes.last(), Some(b'\n' | b'\r')) {
        bytes.pop();
    }
    let text = String::from_utf8(bytes);
    Some(text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a line is not UTF-8 and was skipped")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_every_kind() {
        let long = "x".repeat(MAX_LINE_BYTES);
        let mut bytes = b"a\r\n\nb\xff\n".to_vec();
        bytes.extend_from_slice(long.as_bytes());
        bytes.extend_from_slice("yz\nlast é".as_bytes());
        let mut input = io::Cursor::new(bytes);
        let mut next = || read_line(&mut input).map(|line| line.map_err(|error| error.to_string()));
        assert_eq!(next(), Some(Ok("a".into())));
        assert_eq!(next(), Some(Ok(String::new())));
        assert_eq!(next(), Some(Err("a line is not UTF-8 and was skipped".into())));
        assert!(next().unwrap().unwrap_err().starts_with("a line has more than"));
        assert_eq!(next(), Some(Ok("last é".into())));
        assert_eq!(next(), None);
    }
}
