//! `headrace up` and `headrace serve`: start a server with the settings of the command line. Must not know the server.

use std::path::Path;
use std::process::ExitCode;

use headrace_server::StartManner;

use super::settings::settings;
use crate::arguments::{ServeArgs, SettingFlags, UpArgs};

/// `headrace up`
pub(crate) fn up(args: &UpArgs) -> ExitCode {
    run(None, &args.flags, StartManner::Up)
}

/// `headrace serve`
pub(crate) fn serve(args: &ServeArgs) -> ExitCode {
    run(Some(&args.config), &args.flags, StartManner::Serve)
}

fn run(file: Option<&Path>, flags: &SettingFlags, manner: StartManner) -> ExitCode {
    let (file, flags) = (file.map(Path::to_owned), flags.clone());
    let source = {
        let file = file.clone();
        move || settings(file.as_deref(), &flags)
    };
    headrace_server::run(Box::new(source), file, manner)
}
