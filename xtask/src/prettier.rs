//! Checks the format of the console's JavaScript with prettier, one of Node's packages. The options are in
//! `crates/admin-assets/.prettierrc.json`.

use crate::python;
use crate::shell::{Done, Failure, Place, show};

/// The folder of the scripts.
const SCRIPTS: &str = "crates/admin-assets/assets/js";
/// The program, below the folder of Node's packages.
const PROGRAM: &str = "node_modules/prettier/bin/prettier.cjs";
const NEED_NODE: &str = "install Node 20 or later with npm, then run the step `format`";

/// Checks the format. Installs Node's packages before, unless they are installed.
pub(crate) fn check(place: &Place) -> Result<Done, Failure> {
    if !python::packages(place)? {
        return Ok(Done::Without(format!("the console's JavaScript: {NEED_NODE}")));
    }
    let program = python::packages_folder(place).join(PROGRAM);
    let line = |option: &str| format!("node {} {option} {SCRIPTS}", program.display());
    let mut command = place.command("node");
    command.arg(&program).args(["--check", SCRIPTS]);
    show(&mut command, &line("--check")).map_err(|failure| failure.with_remedy(line("--write")))?;
    Ok(Done::Passed)
}
