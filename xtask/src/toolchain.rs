//! The parts of the Rust toolchain that the steps need, installed if rustup can: components, and the target for 64-bit
//! Arm. Knows no step.

use crate::arm;
use crate::shell::{Failure, Place, capture, show};

/// Installs clippy and rustfmt if they are missing.
pub(crate) fn components(place: &Place) -> Result<(), Failure> {
    for (command, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if place.cargo(&[command, "--version"], &[]).is_err() {
            rustup(place, &["component", "add", component]);
            place.cargo(&[command, "--version"], &[]).map_err(|failure| {
                failure.with_remedy("install the Rust components: rustup component add rustfmt clippy")
            })?;
        }
    }
    Ok(())
}

/// Installs the target for 64-bit Arm. If that fails, the steps that need it say so.
pub(crate) fn arm_target(place: &Place) {
    if matches!(arm::no_target(place), Ok(Some(_))) {
        rustup(place, &["target", "add", arm::TARGET]);
    }
}

/// Runs rustup, if it is installed. The caller checks for the result.
fn rustup(place: &Place, arguments: &[&str]) {
    if capture(place.command("rustup").arg("--version"), "rustup --version").is_ok() {
        let line = format!("rustup {}", arguments.join(" "));
        let _looked_for_later = show(place.command("rustup").args(arguments), &line);
    }
}
