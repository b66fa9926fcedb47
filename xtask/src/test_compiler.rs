//! Compiles test programs without optimization, except those that compute a lot. The program itself and all libraries stay as
//! they are. Cargo has no setting for it: a profile applies to a package's library and to its tests alike. So cargo calls
//! this program instead of rustc. Cargo does not notice which of them compiled a program: a changed list counts for programs
//! whose sources change, and `cargo test --release` runs what is there. Knows arguments of rustc, not what is compiled.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::shell::{Failure, Place};

/// The variable that makes this program a compiler.
const VARIABLE: &str = "HEADRACE_TEST_COMPILER";
/// The variable that names the program that cargo calls instead of rustc.
const WRAPPER: &str = "RUSTC_WRAPPER";
/// Packages whose tests compute, so that they would take longer to run than they are quicker to compile. Those of `upstream`
/// read deeply nested values, which take more of the stack without optimization.
const COMPUTING: [&str; 18] = [
    "headrace-checkpoint",
    "headrace-cuda",
    "headrace-embedder",
    "headrace-engine",
    "headrace-fleet",
    "headrace-grammar",
    "headrace-kernels",
    "headrace-kv-layout",
    "headrace-ledger",
    "headrace-limits",
    "headrace-model",
    "headrace-moderation",
    "headrace-quant",
    "headrace-rollout",
    "headrace-scheduler",
    "headrace-sim",
    "headrace-tokenizer",
    "headrace-upstream",
];

/// Returns the variables with which cargo compiles test programs. None if the environment has a wrapper of its own.
///
/// # Errors
/// This program cannot be copied.
pub(crate) fn variables(place: &Place) -> Result<Vec<(&'static str, String)>, Failure> {
    if std::env::var_os(WRAPPER).is_some() {
        return Ok(Vec::new());
    }
    // A copy, because cargo replaces this program when it compiles the whole workspace.
    let copy = place.target.join("xtask-test-compiler");
    let copied = std::env::current_exe().and_then(|own| std::fs::copy(own, &copy));
    copied.map_err(|error| Failure::new(format!("{}: {error}", copy.display()), "make it writable"))?;
    Ok(vec![(VARIABLE, "1".to_owned()), (WRAPPER, copy.display().to_string())])
}

/// Runs as a compiler if cargo called this program as one. Returns `None` if it did not.
pub(crate) fn run() -> Option<ExitCode> {
    std::env::var_os(VARIABLE)?;
    let mut words = std::env::args_os().skip(1);
    let rustc = PathBuf::from(words.next()?);
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let status = Command::new(&rustc).args(arguments(&package, words)).status();
    Some(match status.map(|status| status.code()) {
        Ok(Some(0)) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{}: {error}", rustc.display());
            ExitCode::FAILURE
        }
    })
}

/// The arguments for rustc. Those of a test program ask for no optimization.
fn arguments(package: &str, mut words: Vec<String>) -> Vec<String> {
    let is_test = words.iter().any(|word| word == "--test");
    if !is_test || !package.starts_with("headrace") || COMPUTING.contains(&package) {
        return words;
    }
    for word in &mut words {
        if word.starts_with("opt-level=") {
            "opt-level=0".clone_into(word);
        } else if word.starts_with("codegen-units=") {
            "codegen-units=16".clone_into(word);
        }
    }
    // Without optimization, rustc would turn them on.
    words.extend(["-C", "debug-assertions=off"].map(str::to_owned));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_that_do_not_compute_are_compiled_without_optimization() {
        let words = |test: bool| {
            let mut words = vec!["-C", "opt-level=3", "-C", "codegen-units=1"];
            words.extend(test.then_some("--test"));
            words.into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        for (package, test, changes) in [
            ("headrace-gateway", true, true),
            ("headrace", true, true),
            ("headrace-gateway", false, false),
            ("headrace-kernels", true, false),
            ("serde", true, false),
        ] {
            let made = arguments(package, words(test));
            assert_eq!(made != words(test), changes, "{package} {test}");
            assert_eq!(made.contains(&"opt-level=0".to_owned()), changes, "{package} {test}");
        }
    }

    #[test]
    fn the_computing_packages_exist() {
        let root = Place::find().unwrap().root;
        for package in COMPUTING {
            let name = package.strip_prefix("headrace-").unwrap();
            assert!(root.join("crates").join(name).is_dir(), "{package}");
        }
    }
}
