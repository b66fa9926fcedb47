//! The line editor for a person: editing, completion, continuation and history. A separate thread reads lines on
//! request. Knows commands only by name. Must not know the meaning of lines.

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
use super::typed::TypedLine;

/// Maximum number of entries in the history. The newest are kept.
const MAX_HISTORY_ENTRIES: usize = 1_000;
/// Maximum length of a history entry, in bytes.
const MAX_ENTRY_BYTES: usize = 16 << 10;
/// Maximum size of a history file, in bytes. A longer file was not written by this program and is not used.
const MAX_HISTORY_BYTES: u64 = (MAX_HISTORY_ENTRIES * MAX_ENTRY_BYTES) as u64 * 2;

/// A person at a terminal.
pub(super) struct LineEditor {
    wanted: mpsc::Sender<LineRequest>,
    models: Arc<Mutex<Vec<String>>>,
    /// The terminal's settings before the first line.
    before: Option<Termios>,
}

struct LineRequest {
    prompt: String,
    /// Whether the line answers a question of this program. Such a line is not stored, and a single Ctrl-C cancels it.
    asked: bool,
    reply: oneshot::Sender<TypedLine>,
}

impl LineEditor {
    /// Opens an editor on the process's terminal. `history` is the history file, if any.
    ///
    /// # Errors
    /// The terminal's error.
    pub(super) fn open(out_terminal: bool, history: Option<PathBuf>) -> io::Result<Self> {
        // If standard output is redirected, lines are still edited on the terminal.
        let behavior = if out_terminal { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = Config::builder()
            .behavior(behavior)
            .completion_type(rustyline::CompletionType::List)
            .history_ignore_space(true)
            .max_history_size(MAX_HISTORY_ENTRIES);
        let config = config.and_then(|config| config.history_ignore_dups(true)).map_err(plain)?.build();
        let history_kept = FileHistory::with_config(&config);
        let mut editor = rustyline::Editor::<EditorHelper, FileHistory>::with_history(config, history_kept)
            .map_err(plain)?;
        let (models, presses) = (Arc::default(), Arc::new(InterruptPresses::default()));
        editor.set_helper(Some(EditorHelper {
            models: Arc::clone(&models),
            files: FilenameCompleter::new(),
            presses: Arc::clone(&presses),
        }));
        let clears = EventHandler::Conditional(Box::new(ClearOnInterrupt(Arc::clone(&presses))));
        editor.bind_sequence(KeyEvent::ctrl('C'), clears);
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        let history = history.filter(|path| prepared(path));
        if let Some(path) = &history {
            // The first time there is no file.
            let _ = editor.load_history(path);
        }
        let (wanted, asked) = mpsc::channel::<LineRequest>();
        std::thread::spawn(move || {
            for LineRequest { prompt, asked, reply } in asked {
                presses.armed.store(false, Relaxed);
                presses.one_is_enough.store(asked, Relaxed);
                let typed = read(&mut editor, &prompt, !asked, history.as_deref());
                // The requester may be gone. Then there will be no further request.
                if reply.send(typed).is_err() {
                    return;
                }
            }
        });
        Ok(Self { wanted, models, before: tcgetattr(io::stdin()).ok() })
    }

    /// Sets the model names for completion.
    pub(super) fn know(&self, models: Vec<String>) {
        *self.models.lock() = models;
    }

    /// Waits for the next line after `prompt`. `asked` is true if the line answers a question of this program.
    pub(super) async fn next(&self, prompt: &str, asked: bool) -> TypedLine {
        let (reply, typed) = oneshot::channel();
        if self.wanted.send(LineRequest { prompt: prompt.to_owned(), asked, reply }).is_err() {
            return TypedLine::End;
        }
        typed.await.unwrap_or(TypedLine::End)
    }
}

impl Drop for LineEditor {
    fn drop(&mut self) {
        // Restore the terminal. A line that is still being typed stays on the screen.
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn read(
    editor: &mut rustyline::Editor<EditorHelper, FileHistory>,
    prompt: &str,
    remembered: bool,
    history: Option<&Path>,
) -> TypedLine {
    match editor.readline(prompt) {
        Ok(line) => {
            if remembered
                && line.len() <= MAX_ENTRY_BYTES
                && matches!(editor.add_history_entry(line.as_str()), Ok(true))
            {
                // The line counts even if it cannot be stored.
                let _ = history.map(|path| editor.append_history(path));
            }
            TypedLine::Line(joined(&line))
        }
        Err(ReadlineError::Interrupted) => TypedLine::Interrupted,
        Err(ReadlineError::Eof) => TypedLine::End,
        Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
            TypedLine::Unreadable("a line is not UTF-8 and was skipped".to_owned())
        }
        // A failing terminal would fail again.
        Err(_) => TypedLine::End,
    }
}

/// Joins lines that end in a continuing backslash, without these backslashes.
fn joined(line: &str) -> String {
    let lines: Vec<_> = line.split('\n').collect();
    let last = lines.len().saturating_sub(1);
    let cut = |(at, line): (usize, &&str)| match line.strip_suffix('\\') {
        Some(text) if at < last && continues(line) => text.to_owned(),
        _ => (*line).to_owned(),
    };
    lines.iter().enumerate().map(cut).collect::<Vec<_>>().join("\n")
}

/// Returns whether a line ends in a backslash that is not itself escaped.
fn continues(line: &str) -> bool {
    line.chars().rev().take_while(|&c| c == '\\').count() % 2 == 1
}

/// The history file: `$XDG_STATE_HOME/headrace/chat-history`, by default in `~/.local/state`.
pub(super) fn history_file() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("headrace").join("chat-history"))
}

/// Returns whether a history can be stored at `path`. Creates its directory. An existing file must be a plain file of
/// this user, and is made private.
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

/// The state of Ctrl-C presses.
#[derive(Default)]
struct InterruptPresses {
    /// Ctrl-C was pressed once. The next press leaves.
    armed: AtomicBool,
    one_is_enough: AtomicBool,
}

/// The handler of Ctrl-C. Clears the typed line, if any, and announces that the second press leaves.
struct ClearOnInterrupt(Arc<InterruptPresses>);

impl ConditionalEventHandler for ClearOnInterrupt {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext<'_>) -> Option<Cmd> {
        let empty = context.line().is_empty();
        if empty && (self.0.one_is_enough.load(Relaxed) || self.0.armed.load(Relaxed)) {
            return Some(Cmd::Interrupt);
        }
        self.0.armed.store(true, Relaxed);
        Some(if empty { Cmd::Repaint } else { Cmd::Kill(Movement::WholeBuffer) })
    }
}

/// Completion, hints and validation for the editor.
struct EditorHelper {
    models: Arc<Mutex<Vec<String>>>,
    files: FilenameCompleter,
    presses: Arc<InterruptPresses>,
}

impl Helper for EditorHelper {}

impl Validator for EditorHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let more = continues(context.input());
        Ok(if more { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Hinter for EditorHelper {
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

impl Highlighter for EditorHelper {
    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        Cow::Owned(format!("\x1b[2m{hint}\x1b[0m"))
    }
}

impl Completer for EditorHelper {
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
