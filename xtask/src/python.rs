//! The SDK tests: virtual environments under the target folder, Node's packages under `target/node`, and pytest. Knows
//! where Python is, not what the tests check.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Done, Failure, Place, capture, read, show};

const TESTS: &str = "tests/sdk";
/// For each environment: its folder under the target, its requirements, and the tests that run in it. The second has
/// clients that need older SDKs. The third has the tools that read the admin API's document.
const ENVIRONMENTS: &[(&str, &str, &str)] = &[
    ("venv", "tests/sdk/requirements.txt", TESTS),
    ("venv-other", "tests/sdk/requirements-other.txt", "tests/sdk/test_other_clients.py"),
    ("venv-admin", "tests/admin/requirements.txt", "tests/admin"),
];
/// Environments of a server that tests start, and of the console's tests: their folders, and their requirements.
const OTHERS: &[(&str, &str)] = &[
    ("venv-canaille", "tests/sdk/requirements-canaille.txt"),
    ("venv-console", "tests/console/requirements.txt"),
];
/// Writes docs/compatibility.md from the tests' notes, or compares it with them.
const COMPATIBILITY: &str = "tests/sdk/compatibility.py";
/// The folder of the tests' notes, in the target folder.
const NOTES: &str = "compatibility";
/// The packages that npm installs.
const PACKAGES: &str = "tests/sdk/typescript";
const NEED_NODE: &str = "install Node 20 or later with npm, then run the steps `python` and `sdk`";
const NEED_PYTHON: &str = "install Python 3.10 or later with venv and pip (Debian: python3-venv), or name one with PYTHON=/path/to/python3";

/// Checks that a Python exists that can make the environments.
pub(crate) fn found(place: &Place) -> Result<(), Failure> {
    let mut command = place.command(interpreter());
    command.args([
        "-c",
        "import sys, venv, ensurepip; assert sys.version_info >= (3, 10), sys.version; print(sys.version)",
    ]);
    let version =
        capture(&mut command, "python3 --version").map_err(|failure| failure.with_remedy(NEED_PYTHON))?;
    println!("python {}", version.trim());
    Ok(())
}

/// Installs each environment, unless the same requirements are installed already. Also installs Node's packages if Node
/// exists. All of them at once: pip and npm use one core each.
pub(crate) fn install(place: &Place) -> Result<Done, Failure> {
    let environments = ENVIRONMENTS.iter().map(|(name, requirements, _)| (name, requirements));
    let has_node = std::thread::scope(|scope| {
        let started: Vec<_> = environments
            .chain(OTHERS.iter().map(|(name, of)| (name, of)))
            .map(|(name, requirements)| scope.spawn(move || environment(place, name, requirements)))
            .collect();
        let has_node = packages(place);
        for environment in started {
            environment
                .join()
                .unwrap_or_else(|_| Err(Failure::new("an installation panicked", "run it again")))?;
        }
        has_node
    })?;
    if has_node {
        return Ok(Done::Passed);
    }
    Ok(Done::Without(format!("the TypeScript SDKs: {NEED_NODE}")))
}

/// Makes a virtual environment under the target folder and installs its requirements.
pub(crate) fn environment(place: &Place, name: &str, requirements: &str) -> Result<(), Failure> {
    let wanted = read(&place.root.join(requirements))?;
    let stamp = venv(place, name).join("installed-requirements.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted)
        && interpreter_of(place, name).exists()
    {
        println!("{requirements} is installed");
        return Ok(());
    }
    let mut create = place.command(interpreter());
    create.args(["-m", "venv", "--clear"]).arg(venv(place, name));
    show(&mut create, &format!("python3 -m venv --clear target/{name}"))
        .map_err(|failure| failure.with_remedy(NEED_PYTHON))?;
    let arguments = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements];
    let line = format!("target/{name}/bin/python {}", arguments.join(" "));
    show(place.command(interpreter_of(place, name)).args(arguments), &line).map_err(|failure| {
        failure.with_remedy(format!(
            "pip needs a network, or a mirror set in its configuration; run it alone with\n  {line}"
        ))
    })?;
    write_stamp(&stamp, &wanted)
}

/// Installs Node's packages: the TypeScript SDKs and prettier. Returns `false` if there is no npm. The steps that need
/// the packages then skip their part, and the final report says so.
pub(crate) fn packages(place: &Place) -> Result<bool, Failure> {
    let home = packages_folder(place);
    let from = place.root.join(PACKAGES);
    let wanted = read(&from.join("package-lock.json"))?;
    let stamp = stamp_of_packages(place);
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        println!("{PACKAGES} is installed");
        return Ok(true);
    }
    if capture(place.command("npm").arg("--version"), "npm --version").is_err() {
        return Ok(false);
    }
    std::fs::create_dir_all(&home).map_err(|error| cannot_write(&home, &error))?;
    for file in ["package.json", "package-lock.json"] {
        std::fs::copy(from.join(file), home.join(file)).map_err(|error| cannot_write(&home, &error))?;
    }
    let line = "npm ci --include=dev --ignore-scripts --no-audit --no-fund --prefix target/node";
    let mut install = place.command("npm");
    install
        .args(["ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"])
        .arg(&home);
    show(&mut install, line)?;
    write_stamp(&stamp, &wanted)?;
    Ok(true)
}

/// The folder of Node's packages.
pub(crate) fn packages_folder(place: &Place) -> PathBuf {
    place.target.join("node")
}

fn stamp_of_packages(place: &Place) -> PathBuf {
    packages_folder(place).join("installed-package-lock.json")
}

/// Runs the tests against the release binary, and compares docs/compatibility.md with their notes.
pub(crate) fn test(place: &Place) -> Result<Done, Failure> {
    let binary = place.headrace();
    // Remove the notes of earlier runs, which say nothing about this one.
    let notes = place.target.join(NOTES);
    if notes.exists() {
        std::fs::remove_dir_all(&notes).map_err(|error| cannot_write(&notes, &error))?;
    }
    for (name, _, tests) in ENVIRONMENTS {
        let arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", tests];
        let mut command: Command = place.command(interpreter_of(place, name));
        command.args(arguments).env("HEADRACE_BIN", &binary).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("CARGO_TARGET_DIR", &place.target);
        let line =
            format!("HEADRACE_BIN={} target/{name}/bin/python {}", binary.display(), arguments.join(" "));
        show(&mut command, &line)?;
    }
    let mut page = place.command(python(place));
    page.arg(COMPATIBILITY).env("CARGO_TARGET_DIR", &place.target);
    show(&mut page, &format!("target/venv/bin/python {COMPATIBILITY}"))?;
    if stamp_of_packages(place).exists() {
        return Ok(Done::Passed);
    }
    Ok(Done::Without(format!("the TypeScript SDKs: {NEED_NODE}")))
}

fn interpreter() -> PathBuf {
    std::env::var_os("PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from)
}

fn venv(place: &Place, name: &str) -> PathBuf {
    place.target.join(name)
}

/// The interpreter of the SDKs' environment.
pub(crate) fn python(place: &Place) -> PathBuf {
    interpreter_of(place, "venv")
}

/// The interpreter of an environment.
pub(crate) fn interpreter_of(place: &Place, name: &str) -> PathBuf {
    venv(place, name).join("bin").join("python")
}

fn write_stamp(stamp: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(stamp, text).map_err(|error| cannot_write(stamp, &error))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()), "make the target folder writable")
}
