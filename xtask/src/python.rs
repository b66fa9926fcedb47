//! The SDK tests: a virtual environment of their own under `target/venv`, and pytest in it.
//! Knows where Python is, never what the tests test.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Done, Failure, Place, capture, read, show};

const TESTS: &str = "tests/sdk";
const REQUIREMENTS: &str = "tests/sdk/requirements.txt";
const NEED_PYTHON: &str = "install Python 3.9 or later with venv and pip (Debian: python3-venv), or name one with PYTHON=/path/to/python3";

/// Whether there is a Python that can make the environment.
pub(crate) fn found(place: &Place) -> Result<(), Failure> {
    let mut command = place.command(interpreter());
    command.args([
        "-c",
        "import sys, venv, ensurepip; assert sys.version_info >= (3, 9), sys.version; print(sys.version)",
    ]);
    let version =
        capture(&mut command, "python3 --version").map_err(|failure| failure.with_remedy(NEED_PYTHON))?;
    println!("python {}", version.trim());
    Ok(())
}

/// Installs `requirements.txt` into the environment, unless that very list was installed before.
pub(crate) fn install(place: &Place) -> Result<Done, Failure> {
    let wanted = read(&place.root.join(REQUIREMENTS))?;
    let stamp = venv(place).join("installed-requirements.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) && python(place).exists() {
        println!("{REQUIREMENTS} is installed");
        return Ok(Done::Passed);
    }
    let mut create = place.command(interpreter());
    create.args(["-m", "venv", "--clear"]).arg(venv(place));
    show(&mut create, "python3 -m venv --clear target/venv")
        .map_err(|failure| failure.with_remedy(NEED_PYTHON))?;
    let arguments = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS];
    let line = format!("target/venv/bin/python {}", arguments.join(" "));
    show(place.command(python(place)).args(arguments), &line).map_err(|failure| {
        failure.with_remedy(format!(
            "pip needs a network, or a mirror set in its configuration; run it alone with\n  {line}"
        ))
    })?;
    write_stamp(&stamp, &wanted)?;
    Ok(Done::Passed)
}

/// Runs them against the release binary.
pub(crate) fn test(place: &Place) -> Result<Done, Failure> {
    let binary = place.headrace();
    let arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS];
    let mut command: Command = place.command(python(place));
    command.args(arguments).env("HEADRACE_BIN", &binary).env("PYTHONDONTWRITEBYTECODE", "1");
    let line = format!("HEADRACE_BIN={} target/venv/bin/python {}", binary.display(), arguments.join(" "));
    show(&mut command, &line)?;
    Ok(Done::Passed)
}

fn interpreter() -> PathBuf {
    std::env::var_os("PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from)
}

fn venv(place: &Place) -> PathBuf {
    place.target.join("venv")
}

/// The environment's interpreter.
pub(crate) fn python(place: &Place) -> PathBuf {
    venv(place).join("bin").join("python")
}

fn write_stamp(stamp: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(stamp, text).map_err(|error| {
        Failure::new(format!("{}: {error}", stamp.display()), "make the target folder writable")
    })
}
