//! Files in the tree that the program generates, and the check that they are what it generates now.
//! Knows which command makes which file, never what stands in it.

use crate::shell::{Failure, Place, capture, read};

/// File, and the arguments that make the program print it.
const GENERATED: &[(&str, &[&str])] =
    &[("docs/configuration.md", &["config", "reference"]), ("docs/parameters.md", &["config", "parameters"])];

const REMEDY: &str =
    "cargo build --release && cargo run --release -p xtask -- generate, then commit the result";

/// Compares every generated file with what the program prints.
pub(crate) fn check(place: &Place) -> Result<(), Failure> {
    for (file, arguments) in GENERATED {
        let wanted = printed(place, arguments)?;
        let found = read(&place.root.join(file)).map_err(|failure| failure.with_remedy(REMEDY))?;
        if found != wanted {
            let line =
                found.lines().zip(wanted.lines()).take_while(|(found, wanted)| found == wanted).count() + 1;
            return Err(Failure::new(format!("{file} is out of date from line {line} on"), REMEDY));
        }
        println!("{file} is what `headrace {}` prints", arguments.join(" "));
    }
    Ok(())
}

/// Writes every generated file anew.
pub(crate) fn write(place: &Place) -> Result<(), Failure> {
    place.cargo(&["build", "--release"], &[])?;
    for (file, arguments) in GENERATED {
        let text = printed(place, arguments)?;
        std::fs::write(place.root.join(file), text)
            .map_err(|error| Failure::new(format!("{file}: {error}"), "make it writable"))?;
        println!("wrote {file}");
    }
    Ok(())
}

fn printed(place: &Place, arguments: &[&str]) -> Result<String, Failure> {
    let line = format!("target/release/headrace {}", arguments.join(" "));
    capture(place.command(place.headrace()).args(arguments), &line)
}
