//! The line that a person types: edited, completed, continued and remembered. A thread of its own reads it when asked. Knows
//! commands only by their names, and nothing of what a line means.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};

use parking_lot::Mutex;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Behavior, Cmd, ConditionalEventHandler, Config, Context, Event, EventContext, EventHandler, Helper,
    KeyCode, KeyEvent, Modifiers, Movement, RepeatCount,
};
use tokio::sync::oneshot;

use super::command::NAMES;
use super::typed::Typed;

/// Entries that the history keeps: the newest.
const MAX_HISTORY_ENTRIES: usize = 1_000;
/// Longest entry that it keeps, in bytes.
const MAX_ENTRY_BYTES: usize = 16 << 10;
/// Longest file of a history that is read, in bytes: longer, it is none of ours.
const MAX_HISTORY_BYTES: u64 = (MAX_HISTORY_ENTRIES * MAX_ENTRY_BYTES) as u64 * 2;

/// A person at a terminal.
pub(super) struct Editor {
    wanted: mpsc::Sender<Wanted>,
    models: Arc<Mutex<Vec<String>>>,
    /// How the terminal was before the first line.
    before: Option<Termios>,
}

struct Wanted {
    prompt: String,
    /// It is an answer to a question of ours: not remembered, and one Ctrl-C is enough.
    asked: bool,
    reply: oneshot::Sender<Typed>,
}

impl Editor {
    /// Over the process's terminal; `history` is the file that remembers, if any is to.
    ///
    /// # Errors
    /// What the terminal says.
    pub(super) fn open(out_terminal: bool, history: Option<PathBuf>) -> io::Result<Self> {
        // Where the answers go elsewhere, lines are edited on the terminal all the same.
        let behavior = if out_terminal { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = Config::builder()
            .behavior(behavior)
            .completion_type(rustyline::CompletionType::List)
            .history_ignore_space(true)
            .max_history_size(MAX_HISTORY_ENTRIES);
        let config = config.and_then(|config| config.history_ignore_dups(true)).map_err(plain)?.build();
        let history_kept = FileHistory::with_config(&config);
        let mut editor =
            rustyline::Editor::<Words, FileHistory>::with_history(config, history_kept).map_err(plain)?;
        let (models, presses) = (Arc::default(), Arc::new(Presses::default()));
        editor.set_helper(Some(Words {
            models: Arc::clone(&models),
            files: FilenameCompleter::new(),
            presses: Arc::clone(&presses),
        }));
        let clears = EventHandler::Conditional(Box::new(Clears(Arc::clone(&presses))));
        editor.bind_sequence(KeyEvent::ctrl('C'), clears);
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        let history = history.filter(|path| prepared(path));
        if let Some(path) = &history {
            // The first time there is none.
            let _ = editor.load_history(path);
        }
        let (wanted, asked) = mpsc::channel::<Wanted>();
        std::thread::spawn(move || {
            for Wanted { prompt, asked, reply } in asked {
                presses.armed.store(false, Relaxed);
                presses.one_is_enough.store(asked, Relaxed);
                let typed = read(&mut editor, &prompt, !asked, history.as_deref());
                // Whoever asked may have left by now: then nobody asks again.
                if reply.send(typed).is_err() {
                    return;
                }
            }
        });
        Ok(Self { wanted, models, before: tcgetattr(io::stdin()).ok() })
    }

    /// The models that are completed.
    pub(super) fn know(&self, models: Vec<String>) {
        *self.models.lock() = models;
    }

    /// The next line, after `prompt`; `asked` is one that a question of ours is answered with.
    pub(super) async fn next(&self, prompt: &str, asked: bool) -> Typed {
        let (reply, typed) = oneshot::channel();
        if self.wanted.send(Wanted { prompt: prompt.to_owned(), asked, reply }).is_err() {
            return Typed::End;
        }
        typed.await.unwrap_or(Typed::End)
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        // A line that is still being typed is left as it is, but not the terminal.
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn read(
    editor: &mut rustyline::Editor<Words, FileHistory>,
    prompt: &str,
    remembered: bool,
    history: Option<&Path>,
) -> Typed {
    match editor.readline(prompt) {
        Ok(line) => {
            if remembered
                && line.len() <= MAX_ENTRY_BYTES
                && matches!(editor.add_history_entry(line.as_str()), Ok(true))
            {
                // What cannot be remembered is said all the same.
                let _ = history.map(|path| editor.append_history(path));
            }
            Typed::Line(joined(&line))
        }
        Err(ReadlineError::Interrupted) => Typed::Interrupted,
        Err(ReadlineError::Eof) => Typed::End,
        Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
            Typed::Unreadable("a line is not UTF-8 and was skipped".to_owned())
        }
        // A terminal that fails would fail again.
        Err(_) => Typed::End,
    }
}

/// Lines that were continued by a backslash at their end, without it.
fn joined(line: &str) -> String {
    let lines: Vec<_> = line.split('\n').collect();
    let last = lines.len().saturating_sub(1);
    let cut = |(at, line): (usize, &&str)| match line.strip_suffix('\\') {
        Some(text) if at < last && continues(line) => text.to_owned(),
        _ => (*line).to_owned(),
    };
    lines.iter().enumerate().map(cut).collect::<Vec<_>>().join("\n")
}

/// Whether a line ends in a backslash that is not itself escaped.
fn continues(line: &str) -> bool {
    line.chars().rev().take_while(|&c| c == '\\').count() % 2 == 1
}

/// Where the history stands: `$XDG_STATE_HOME/headrace/chat-history`, or in `~/.local/state`.
pub(super) fn history_file() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("headrace").join("chat-history"))
}

/// Whether a history can stand there: its directory is there now, and what is there is a plain file of ours that nobody else reads.
fn prepared(path: &Path) -> bool {
    let Some(directory) = path.parent() else { return false };
    if fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).is_err() {
        return false;
    }
    match fs::symlink_metadata(path) {
        Ok(found) => {
            let own = found.is_file() && found.uid() == rustix::process::geteuid().as_raw();
            let private = || {
                use std::os::unix::fs::PermissionsExt;
                found.mode() & 0o077 == 0
                    || fs::set_permissions(path, fs::Permissions::from_mode(0o600)).is_ok()
            };
            own && found.len() <= MAX_HISTORY_BYTES && private()
        }
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn plain(error: ReadlineError) -> io::Error {
    match error {
        ReadlineError::Io(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

/// How often Ctrl-C was pressed.
#[derive(Default)]
struct Presses {
    /// Once: the next time leaves.
    armed: AtomicBool,
    one_is_enough: AtomicBool,
}

/// Ctrl-C: takes back what was typed, if anything, and says that it leaves the second time.
struct Clears(Arc<Presses>);

impl ConditionalEventHandler for Clears {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext<'_>) -> Option<Cmd> {
        let empty = context.line().is_empty();
        if empty && (self.0.one_is_enough.load(Relaxed) || self.0.armed.load(Relaxed)) {
            return Some(Cmd::Interrupt);
        }
        self.0.armed.store(true, Relaxed);
        Some(if empty { Cmd::Repaint } else { Cmd::Kill(Movement::WholeBuffer) })
    }
}

/// What the editor is told of lines.
struct Words {
    models: Arc<Mutex<Vec<String>>>,
    files: FilenameCompleter,
    presses: Arc<Presses>,
}

impl Helper for Words {}

impl Validator for Words {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let more = continues(context.input());
        Ok(if more { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Hinter for Words {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        if !line.is_empty() {
            self.presses.armed.store(false, Relaxed);
            return None;
        }
        let shown = self.presses.armed.load(Relaxed) && !self.presses.one_is_enough.load(Relaxed);
        shown.then(|| "Ctrl-C again leaves".to_owned())
    }
}

impl Highlighter for Words {
    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        Cow::Owned(format!("\x1b[2m{hint}\x1b[0m"))
    }
}

impl Completer for Words {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = line.get(..at).unwrap_or_default();
        let Some((command, argument)) = typed.split_once(' ') else {
            let known = NAMES.iter().filter(|name| typed.starts_with('/') && name.starts_with(typed));
            return Ok((0, known.map(|name| pair(name)).collect()));
        };
        match command {
            "/model" => {
                let start = at - argument.trim_start().len();
                let models = self.models.lock();
                let known = models.iter().filter(|name| name.starts_with(argument.trim_start()));
                Ok((start, known.map(|name| pair(name)).collect()))
            }
            "/save" | "/tools" => self.files.complete(line, at, context),
            _ => Ok((at, Vec::new())),
        }
    }
}

fn pair(text: &str) -> Pair {
    Pair { display: text.to_owned(), replacement: text.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_backslash_continues_a_line_and_is_not_said() {
        let rows = [
            ("one", "one", false),
            ("one\\", "one\\", true),
            ("one\\\ntwo", "one\ntwo", false),
            ("path C:\\\\", "path C:\\\\", false),
            ("a\\\\\nb", "a\\\\\nb", false),
            ("pasted\nlines", "pasted\nlines", false),
        ];
        for (typed, said, more) in rows {
            assert_eq!((joined(typed).as_str(), continues(typed)), (said, more), "{typed:?}");
        }
    }

    #[test]
    fn a_history_is_its_owner_s_alone_or_there_is_none() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b/chat-history");
        assert!(prepared(&path));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(prepared(&path));
        assert_eq!(mode(&path), 0o600);
        let link = home.path().join("a/b/link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert!(!prepared(&link), "nothing is written through a link");
        fs::File::create(&path).unwrap().set_len(MAX_HISTORY_BYTES + 1).unwrap();
        assert!(!prepared(&path), "that is no history of ours");
    }
}
