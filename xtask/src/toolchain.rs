//! What the steps need of the Rust toolchain, installed where rustup can: components, and the target for 64-bit Arm.
//! Knows no step.

use crate::arm;
use crate::shell::{Failure, Place, capture, show};

/// clippy and rustfmt.
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

/// The target for 64-bit Arm. Where it cannot be had, the steps that need it say so.
pub(crate) fn arm_target(place: &Place) {
    if matches!(arm::no_target(place), Ok(Some(_))) {
        rustup(place, &["target", "add", arm::TARGET]);
    }
}

/// Asks rustup, if this toolchain is one of its own. What comes of it shows when it is looked for.
fn rustup(place: &Place, arguments: &[&str]) {
    if capture(place.command("rustup").arg("--version"), "rustup --version").is_ok() {
        let line = format!("rustup {}", arguments.join(" "));
        let _looked_for_later = show(place.command("rustup").args(arguments), &line);
    }
}
