//! The workspace's test programs. cargo compiles all of them at once. Then they run a few at a time, since some compute
//! and some only wait. Knows where the programs are, not what they test.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::shell::{Failure, Place, capture};
use crate::test_compiler;

/// Number of programs that run at once. Each uses every core if it can. One more than two keeps the cores busy while
/// others wait for disks, timers and child processes.
const AT_ONCE: usize = 3;

/// Programs that start first: tests by their name, unit tests by their package. They take long, and many of them wait for
/// the disk or for timers, so that all others fit beside them.
const FIRST: &[&str] = &[
    "crash",
    "up",
    "oracles",
    "same_bits",
    "simulation",
    "headrace-rollout",
    "generated",
    "path",
    "perplexity",
    "runs",
    "engine",
    "gateway_limits",
    "gateways",
];

/// How cargo selects all test programs.
pub(crate) const ALL: [&str; 4] = ["--workspace", "--lib", "--bins", "--tests"];

/// A compiled test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// The program's package.
    package: String,
    /// How cargo selects it: `--lib`, `--bin NAME` or `--test NAME`.
    target: String,
    /// The package's folder. Tests run there.
    folder: PathBuf,
    executable: PathBuf,
    /// Additional environment variables.
    environment: Vec<(String, String)>,
    /// Arguments of the test harness.
    arguments: Vec<String>,
    /// The command that runs the program, for programs of another machine.
    runner: Vec<String>,
}

impl Program {
    /// The same program with a variable set.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same program with arguments for the test harness.
    pub(crate) fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    /// The same program, run by an emulator.
    pub(crate) fn run_by(mut self, runner: &[&str]) -> Self {
        self.runner = runner.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Returns `true` if this is a program of the package.
    pub(crate) fn is_of(&self, package: &str) -> bool {
        self.package == package
    }

    /// Returns `true` if this is the integration test with this name.
    pub(crate) fn is_test(&self, name: &str) -> bool {
        self.target.strip_prefix("--test ") == Some(name)
    }

    /// Position in the queue: programs of [`FIRST`] in that order, then the others.
    fn turn(&self) -> usize {
        let name = self.target.strip_prefix("--test ").unwrap_or(&self.package);
        FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len())
    }

    fn command(&self) -> Command {
        let mut words = self.runner.iter().map(PathBuf::from).chain([self.executable.clone()]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .args(&self.arguments)
            .current_dir(&self.folder)
            .stdin(std::process::Stdio::null());
        command.env("CARGO_MANIFEST_DIR", &self.folder);
        for (name, value) in &self.environment {
            command.env(name, value);
        }
        command
    }
}

/// The command line that a person would type. An emulated program is run by its path.
impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={value} ")?;
        }
        if self.runner.is_empty() {
            write!(f, "cargo test --release -p {} {}", self.package, self.target)?;
            if !self.arguments.is_empty() {
                f.write_str(" --")?;
            }
        } else {
            write!(f, "{} {}", self.runner.join(" "), self.executable.display())?;
        }
        self.arguments.iter().try_for_each(|argument| write!(f, " {argument}"))
    }
}

/// Compiles the test programs that these arguments of `cargo test` select, and lists them.
pub(crate) fn compile(
    place: &Place,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<Vec<Program>, Failure> {
    let fixed = ["test", "--release", "--no-run", "--message-format", "json-render-diagnostics"];
    let mut command = place.command(&place.cargo);
    command.args(fixed).args(arguments).stderr(std::process::Stdio::inherit());
    command.envs(test_compiler::variables(place)?);
    for (name, value) in environment {
        command.env(name, value);
    }
    let line = format!("cargo test --release --no-run {}", arguments.join(" "));
    println!("$ {line}");
    let printed = capture(&mut command, &line)?;
    let mut programs: Vec<_> = printed.lines().filter_map(program).collect();
    programs.sort_by_key(Program::turn);
    if programs.is_empty() {
        return Err(Failure::new(format!("`{line}` named no test program"), "see xtask/src/programs.rs"));
    }
    Ok(programs)
}

/// Parses a program from one line of cargo's messages.
fn program(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    let executable = message.get("executable")?.as_str()?;
    message.pointer("/profile/test")?.as_bool().filter(|test| *test)?;
    let manifest = PathBuf::from(message.get("manifest_path")?.as_str()?);
    let folder = manifest.parent()?.to_owned();
    let name = message.pointer("/target/name")?.as_str()?;
    let kind = message.pointer("/target/kind/0")?.as_str()?;
    let target = match kind {
        "lib" => "--lib".to_owned(),
        "bin" | "test" => format!("--{kind} {name}"),
        _ => return None,
    };
    // `path+file:///w/crates/store#headrace-store@0.1.0`, or without the name if it equals the folder's name.
    let id = message.get("package_id")?.as_str()?.rsplit('#').next()?;
    let package = match id.split_once('@') {
        Some((package, _)) => package.to_owned(),
        None => folder.file_name()?.to_str()?.to_owned(),
    };
    Some(Program {
        package,
        target,
        folder,
        executable: executable.into(),
        environment: Vec::new(),
        arguments: Vec::new(),
        runner: Vec::new(),
    })
}

/// Runs the programs, a few at a time, and prints each result. After a failure no further program starts.
pub(crate) fn run(programs: &[Program]) -> Result<(), Failure> {
    run_at_once(programs, AT_ONCE)
}

/// Like [`run`], with this number of programs at a time.
pub(crate) fn run_at_once(programs: &[Program], at_once: usize) -> Result<(), Failure> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..at_once.min(programs.len()) {
            scope.spawn(|| {
                while failed.lock().is_ok_and(|failed| failed.is_none())
                    && let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    if let Err(failure) = one(program)
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.get_or_insert(failure);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap_or_default().map_or(Ok(()), Err)
}

fn one(program: &Program) -> Result<(), Failure> {
    let started = Instant::now();
    let output = program.command().output().map_err(|error| {
        Failure::new(format!("`{program}` could not be started: {error}"), "build it again")
    })?;
    let said = String::from_utf8_lossy(&output.stdout);
    tell(program, &said, started.elapsed());
    if output.status.success() {
        return Ok(());
    }
    let what = format!(
        "`{program}` ended with {}:\n{said}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Err(Failure::new(what, format!("run it alone with\n  {program}")))
}

/// Prints the program's command line and the test harness's result line.
fn tell(program: &Program, said: &str, took: Duration) {
    let result = said.lines().rev().find(|line| line.starts_with("test result:")).unwrap_or("no result");
    println!("$ {program}  ({:.1} s)\n{result}", took.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, name: &str, test: bool) -> String {
        serde_json::json!({
            "reason": "compiler-artifact", "manifest_path": "/w/crates/store/Cargo.toml",
            "package_id": "path+file:///w/crates/store#headrace-store@0.1.0",
            "target": { "kind": [kind], "name": name }, "profile": { "test": test },
            "executable": "/w/target/release/deps/it-1",
        })
        .to_string()
    }

    #[test]
    fn programs_are_read_from_cargos_messages() {
        for (kind, name, test, line) in [
            ("test", "crash", true, Some("cargo test --release -p headrace-store --test crash")),
            ("lib", "headrace_store", true, Some("cargo test --release -p headrace-store --lib")),
            ("bin", "x", true, Some("cargo test --release -p headrace-store --bin x")),
            ("bin", "x", false, None),
            ("bench", "x", true, None),
        ] {
            assert_eq!(
                program(&message(kind, name, test)).map(|it| it.to_string()).as_deref(),
                line,
                "{kind}"
            );
        }
        assert!(program("not JSON").is_none());
    }

    #[test]
    fn what_only_waits_starts_first() {
        let [slow, quick] = ["crash", "suite"].map(|name| program(&message("test", name, true)).unwrap());
        assert!(slow.turn() < quick.turn() && slow.is_test("crash"));
    }

    #[test]
    fn a_failure_shows_its_output_and_how_to_repeat_it() {
        let script = |code: &str| Program {
            executable: "/bin/sh".into(),
            folder: "/".into(),
            arguments: vec!["-c".to_owned(), format!("echo said; exit {code}")],
            ..program(&message("test", "it", true)).unwrap()
        };
        assert!(run(&[script("0"), script("0")]).is_ok());
        let error = run(&[script("0"), script("3")]).unwrap_err().to_string();
        assert!(
            error.contains("exit status: 3") && error.contains("said") && error.contains("-p headrace-store")
        );
    }
}
