//! Generated files in the tree, and the check that they are up to date. Knows which command generates each file, not
//! its content.

use crate::admin_api;
use crate::shell::{Failure, Place, capture, read};

/// Each file, and the arguments that make the program print it.
const GENERATED: &[(&str, &[&str])] = &[
    ("docs/configuration.md", &["config", "reference"]),
    ("docs/parameters.md", &["config", "parameters"]),
    ("docs/models.md", &["models", "families"]),
];

const REMEDY: &str =
    "cargo build --release && cargo run --release -p xtask -- generate, then commit the result";

/// Compares every generated file with the program's output.
pub(crate) fn check(place: &Place) -> Result<(), Failure> {
    compare(place, admin_api::PAGE, &admin_api::page(&place.root)?)?;
    println!("{} is what the OpenAPI document says", admin_api::PAGE);
    for (file, arguments) in GENERATED {
        compare(place, file, &printed(place, arguments)?)?;
        println!("{file} is what `headrace {}` prints", arguments.join(" "));
    }
    Ok(())
}

fn compare(place: &Place, file: &str, wanted: &str) -> Result<(), Failure> {
    let found = read(&place.root.join(file)).map_err(|failure| failure.with_remedy(REMEDY))?;
    if found == wanted {
        return Ok(());
    }
    let same = found.lines().zip(wanted.lines()).take_while(|(found, wanted)| found == wanted);
    Err(Failure::new(format!("{file} is out of date from line {} on", same.count() + 1), REMEDY))
}

/// Regenerates every generated file.
pub(crate) fn write(place: &Place) -> Result<(), Failure> {
    put(place, admin_api::PAGE, &admin_api::page(&place.root)?)?;
    place.cargo(&["build", "--release"], &[])?;
    for (file, arguments) in GENERATED {
        put(place, file, &printed(place, arguments)?)?;
    }
    Ok(())
}

fn put(place: &Place, file: &str, text: &str) -> Result<(), Failure> {
    std::fs::write(place.root.join(file), text)
        .map_err(|error| Failure::new(format!("{file}: {error}"), "make it writable"))?;
    println!("wrote {file}");
    Ok(())
}

fn printed(place: &Place, arguments: &[&str]) -> Result<String, Failure> {
    let line = format!("target/release/headrace {}", arguments.join(" "));
    capture(place.command(place.headrace()).args(arguments), &line)
}
