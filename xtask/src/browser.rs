//! The console's tests: Debian's Chromium, Playwright in its own virtual environment, and pytest. Knows where the
//! browser is, not what the tests check.

use std::path::PathBuf;

use crate::shell::{Done, Failure, Place, show};
use crate::{debian, python};

const TESTS: &str = "tests/console";
const ENVIRONMENT: &str = "venv-console";
const REQUIREMENTS: &str = "tests/console/requirements.txt";
/// The variable that names another browser.
const VARIABLE: &str = "CHROMIUM";
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// The browser, and fonts for it.
const PACKAGES: [&str; 2] = ["chromium", "fonts-dejavu-core"];

/// Runs the console's tests against the release binary.
pub(crate) fn test(place: &Place) -> Result<Done, Failure> {
    if found().is_none() {
        debian::install(place, &PACKAGES);
    }
    let Some(browser) = found() else {
        return Ok(Done::Skipped(format!(
            "no Chromium (Debian: apt-get install {}), and {VARIABLE} names none",
            PACKAGES.join(" ")
        )));
    };
    python::environment(place, ENVIRONMENT, REQUIREMENTS)?;
    let binary = place.headrace();
    let arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS];
    let mut command = place.command(python::interpreter_of(place, ENVIRONMENT));
    command.args(arguments).env("HEADRACE_BIN", &binary).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env(VARIABLE, browser);
    let line =
        format!("HEADRACE_BIN={} target/{ENVIRONMENT}/bin/python {}", binary.display(), arguments.join(" "));
    show(&mut command, &line)?;
    Ok(Done::Passed)
}

fn found() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return Some(PathBuf::from(named)).filter(|path| path.exists());
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .flat_map(|folder| NAMES.map(|name| folder.join(name)))
        .find(|path| path.exists())
}
