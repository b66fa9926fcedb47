//! Runs commands, shows the command lines, and explains what to do after a failure. Knows no step.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What failed, and the remedy.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    remedy: String,
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }

    /// Returns the same failure with another remedy.
    pub(crate) fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }

    /// Adds to the remedy how to resume at the step that failed.
    pub(crate) fn while_at(mut self, step: &str) -> Self {
        self.remedy += &format!("\nthen go on with\n  cargo run --release -p xtask -- test --from {step}");
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FAILED: {}\nwhat to do: {}", self.what, self.remedy)
    }
}

/// The result of a step that did not fail.
#[derive(Debug)]
pub(crate) enum Done {
    Passed,
    /// The step passed, except for the parts that could not run on this machine.
    Without(String),
    /// The step could not run on this machine.
    Skipped(String),
}

/// The paths that the steps use.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The repository's root.
    pub(crate) root: PathBuf,
    /// Cargo's target directory.
    pub(crate) target: PathBuf,
    /// The cargo that runs this program.
    pub(crate) cargo: PathBuf,
}

impl Place {
    /// Finds the repository that this program was built from.
    pub(crate) fn find() -> Result<Self, Failure> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let Some(root) = manifest.parent().map(Path::to_path_buf) else {
            return Err(Failure::new("xtask has no parent folder", "build it from a checkout"));
        };
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let target = if target.is_absolute() { target } else { root.join(target) };
        let cargo = std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
        Ok(Self { root, target, cargo })
    }

    /// The release binary.
    pub(crate) fn headrace(&self) -> PathBuf {
        self.target.join("release").join("headrace")
    }

    /// Creates a command that runs in the root, without standard input.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).stdin(Stdio::null());
        command
    }

    /// Runs `cargo` with these arguments and shows its output.
    pub(crate) fn cargo(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), Failure> {
        let mut command = self.command(&self.cargo);
        command.args(arguments);
        for (name, value) in environment {
            command.env(name, value);
        }
        let quote = |value: &str| if value.contains(' ') { format!("'{value}'") } else { value.to_owned() };
        let set: String =
            environment.iter().map(|(name, value)| format!("{name}={} ", quote(value))).collect();
        show(&mut command, &format!("{set}cargo {}", arguments.join(" ")))
    }
}

/// Runs a command and shows its output. A failure contains the line to run the command again.
pub(crate) fn show(command: &mut Command, line: &str) -> Result<(), Failure> {
    println!("$ {line}");
    let again = format!("read the output above; run it alone with\n  {line}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::new(format!("`{line}` ended with {status}"), again)),
        Err(error) => Err(Failure::new(format!("`{line}` could not be started: {error}"), again)),
    }
}

/// Runs a command and returns its output.
pub(crate) fn capture(command: &mut Command, line: &str) -> Result<String, Failure> {
    let again = format!("run it alone with\n  {line}");
    let output = command
        .output()
        .map_err(|error| Failure::new(format!("`{line}` could not be started: {error}"), again.as_str()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format!("`{line}` ended with {}:\n{said}", output.status), again));
    }
    String::from_utf8(output.stdout)
        .map_err(|error| Failure::new(format!("`{line}` printed what is not UTF-8: {error}"), again))
}

/// Reads a text file.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::new(format!("{}: {error}", path.display()), "restore the file"))
}
