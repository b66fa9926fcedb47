//! The test command, the crate-graph check and the generated files: `cargo run --release -p xtask -- test`. Must not
//! know how any crate works. Runs the same commands that a person would, and prints them.

mod admin_api;
mod arm;
mod artefacts;
mod browser;
mod circles;
mod cuda;
mod deb;
mod debian;
mod dist;
mod downloads;
mod errors_page;
mod files;
mod graph;
mod imports;
mod licences;
mod metadata;
mod peers;
mod postgres;
mod prettier;
mod programs;
mod prose;
mod python;
mod sbom;
mod server;
mod shell;
mod smoke;
mod source_rules;
mod steps;
mod test_compiler;
mod tokens;
mod toolchain;
mod wording;

use std::process::ExitCode;

use shell::{Failure, Place};

const HELP: &str = "\
cargo run --release -p xtask -- COMMAND

  test                 install what the tests need, then run everything, in order; stops at the first failure
  test --from STEP     the same from one step on
  test --only STEP     one step alone
  steps                the steps of `test`, by name
  rules                the source rules alone: crate graph, file sizes, forbidden constructs (a second)
  errors               write docs/errors.md, docs/admin-errors.md and their pages anew from the tables of codes (a second)
  generate             write all generated files anew: docs/admin-api.md, and with the release program docs/configuration.md and the like
  wording              lower the wording budgets to what the tree has (a second)
  peers NAME           other people's servers, installed under target/peers and run beside ours (minutes, on demand)
";

fn main() -> ExitCode {
    if let Some(code) = test_compiler::run() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\n{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<(), Failure> {
    let place = Place::find()?;
    match arguments {
        ["test"] => steps::run(&place, steps::Which::All),
        ["test", "--from", step] => steps::run(&place, steps::Which::From(step)),
        ["test", "--only", step] => steps::run(&place, steps::Which::Only(step)),
        ["peers"] => {
            print!("{}", peers::list());
            Ok(())
        }
        ["peers", name, more @ ..] => peers::run(&place, name, more),
        ["steps"] => {
            steps::list();
            Ok(())
        }
        ["rules"] => steps::rules(&place),
        ["wording"] => wording::lower(&place.root),
        ["dist", words @ ..] => release(&place, words),
        ["errors"] => errors_page::write(&place.root),
        ["generate"] => errors_page::write(&place.root).and_then(|()| artefacts::write(&place)),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}{}", dist::USAGE);
            Ok(())
        }
        other => Err(Failure::new(format!("xtask does not know `{}`", other.join(" ")), HELP)),
    }
}

/// Makes the files of a release page, or the checksums of a folder's files.
fn release(place: &Place, words: &[&str]) -> Result<(), Failure> {
    let options = dist::Options::parse(words)?;
    if let Some(folder) = &options.checksums {
        let folder = place.root.join(folder);
        dist::checksums(place, &folder)?;
        return options.key.map_or(Ok(()), |key| dist::sign(place, &folder, &place.root.join(key)));
    }
    let made = dist::make(place, &options)?;
    if options.try_it { downloads::try_out(place, &made) } else { Ok(()) }
}
