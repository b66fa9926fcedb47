//! Installs packages on Debian and its derivatives if this process runs as root. Knows no step.

use std::path::Path;

use crate::shell::{Place, capture, show};

/// Installs packages, if this process is root. The caller checks for the result.
pub(crate) fn install(place: &Place, packages: &[&str]) {
    let root = capture(place.command("id").arg("-u"), "id -u").is_ok_and(|id| id.trim() == "0");
    if !root || !Path::new("/usr/bin/apt-get").exists() {
        return;
    }
    let apt = |arguments: &[&str]| {
        let mut command = place.command("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        show(&mut command, &format!("apt-get {}", arguments.join(" "))).is_ok()
    };
    let wanted = [&["install", "-y", "-q", "--no-install-recommends"][..], packages].concat();
    let _installed = apt(&wanted) || apt(&["update", "-q"]) && apt(&wanted);
}
