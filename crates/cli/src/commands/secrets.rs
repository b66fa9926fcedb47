//! `headrace secrets`: changes the key that encrypts the stored secrets. Must not know how they are encrypted.

use std::process::ExitCode;

use headrace_server::datadir;
use headrace_trace::counted;

use crate::arguments::secrets::{SecretsArgs, SecretsCommand};
use crate::commands::{CommandError, configuration, print};

/// Executes the command, and prints the result.
pub(crate) fn run(args: &SecretsArgs) -> ExitCode {
    let SecretsCommand::Rewrap { file } = &args.command;
    print(rewrap(args, file))
}

fn rewrap(args: &SecretsArgs, file: &std::path::Path) -> Result<String, CommandError> {
    let config = configuration(&args.at)?;
    let report = datadir::reseal(&config.data_dir, config.storage.secret_file.as_deref(), file);
    let report = report.map_err(CommandError::DataDir)?;
    let done = match (report.rows, report.files) {
        (0, 0) => format!("the secrets were encrypted with the key {} already", report.key),
        (0, files) => {
            format!("{} of secrets are encrypted with the key {}", counted(files as u64, "file"), report.key)
        }
        (rows, 0) => format!(
            "{} in the database are encrypted with the key {}",
            counted(rows as u64, "secret"),
            report.key
        ),
        (rows, files) => format!(
            "{} in the database and {} are encrypted with the key {}",
            counted(rows as u64, "secret"),
            counted(files as u64, "file"),
            report.key
        ),
    };
    Ok(format!(
        "{done}\nset storage.secret_file to {} for all servers with these stores, before the next start of one\n",
        file.display()
    ))
}
