//! Input of the chat: lines that a person types, or lines of a pipe. Must not know their meaning.

use std::io::{self, BufRead, IsTerminal, Read};
use std::path::PathBuf;
use std::sync::mpsc;

use tokio::sync::oneshot;

use super::editor::LineEditor;
use super::typed::TypedLine;

/// Maximum length of a line, in bytes.
const MAX_LINE_BYTES: usize = 1 << 20;

/// The source of lines.
pub(super) enum ChatInput {
    Person(LineEditor),
    Pipe(PipeLines),
}

impl ChatInput {
    /// Opens the process's standard input. `history` is the file that stores what a person types.
    pub(super) fn of_process(history: Option<PathBuf>) -> Self {
        if !io::stdin().is_terminal() {
            return Self::Pipe(PipeLines::of_stdin());
        }
        // If the terminal cannot be used for editing, its lines can still be read.
        match LineEditor::open(io::stdout().is_terminal(), history) {
            Ok(editor) => Self::Person(editor),
            Err(_) => Self::Pipe(PipeLines::of_stdin()),
        }
    }

    /// Returns whether a person types the lines.
    pub(super) const fn is_person(&self) -> bool {
        matches!(self, Self::Person(_))
    }

    /// Sets the model names for completion.
    pub(super) fn know(&self, models: Vec<String>) {
        if let Self::Person(editor) = self {
            editor.know(models);
        }
    }

    /// Waits for the next line. Shows `prompt` to a person.
    pub(super) async fn next(&self, prompt: &str) -> TypedLine {
        self.line(prompt, false).await
    }

    /// Waits for the answer to a question of this program.
    pub(super) async fn answer(&self, question: &str) -> TypedLine {
        self.line(question, true).await
    }

    async fn line(&self, prompt: &str, asked: bool) -> TypedLine {
        match self {
            Self::Person(editor) => editor.next(prompt, asked).await,
            Self::Pipe(lines) => match lines.next().await {
                Some(Ok(line)) => TypedLine::Line(line),
                Some(Err(error)) => TypedLine::Unreadable(error.to_string()),
                None => TypedLine::End,
            },
        }
    }
}

type Line = Option<io::Result<String>>;

/// Standard input, line by line. Its thread lives until the process ends, because it may wait for bytes that never
/// come.
#[derive(Debug)]
pub(super) struct PipeLines {
    wanted: mpsc::Sender<oneshot::Sender<Line>>,
}

impl PipeLines {
    fn of_stdin() -> Self {
        let (wanted, asked) = mpsc::channel::<oneshot::Sender<Line>>();
        std::thread::spawn(move || {
            let mut stdin = io::stdin().lock();
            for reply in asked {
                // The requester may be gone. Then there will be no further request.
                if reply.send(read_line(&mut stdin)).is_err() {
                    return;
                }
            }
        });
        Self { wanted }
    }

    /// Waits for the next line, without its line end. `None` at the end of the input.
    async fn next(&self) -> Line {
        let (reply, line) = oneshot::channel();
        self.wanted.send(reply).ok()?;
        line.await.ok().flatten()
    }
}

/// Reads one line. A line that is too long or not UTF-8 is skipped whole and returned as an error. A failing input
/// counts as ended, because it would fail again.
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
