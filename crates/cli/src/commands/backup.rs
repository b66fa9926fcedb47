//! `headrace backup`: copies the data directory of a running or a stopped server, so that a server can start on the
//! copy. Must not decide when copies are made.

use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use headrace_server::datadir::{self, SecretFiles};
use headrace_store::{RECEIPT_KEYS, is_of_series};
use headrace_trace::counted;

use crate::arguments::backup::BackupArgs;
use crate::commands::{CommandError, configuration, print, recent_calls};

/// Makes a copy, checks it, and prints the result.
pub(crate) fn run(args: &BackupArgs) -> ExitCode {
    print(copy(args))
}

fn copy(args: &BackupArgs) -> Result<String, CommandError> {
    let config = configuration(&args.at)?;
    let from = config.data_dir.clone();
    if !datadir::has_keys(&from) {
        let why = "name the server's data directory with --data-dir";
        return Err(CommandError::Other(format!("there is no data directory {}: {why}", from.display())));
    }
    let to = args.to.as_path();
    if std::fs::read_dir(to).is_ok_and(|mut entries| entries.next().is_some()) {
        let why = "is not empty: name a new directory for the copy";
        return Err(CommandError::Other(format!("{} {why}", to.display())));
    }
    // Makes the server store the traces of all ended calls, so that the copy has them.
    recent_calls(&from, 0);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(to).map_err(|error| failed(to, &error))?;
    let copied = datadir::stored(&from).copy_to(to, !args.no_traces);
    let mut files = copied.map_err(|error| CommandError::Other(error.to_string()))?;
    let is_shared = datadir::stored(&from).is_shared();
    if is_shared {
        // Keys and ledger come from the database, with the secrets that all gateways have in common.
        let keys = SecretFiles::of(&config);
        datadir::copy_shared(&from, to, &keys, crate::commands::transfer::progress())
            .map_err(CommandError::DataDir)?;
        files += 2;
    }
    for source in secret_files(&from)? {
        let name = source.strip_prefix(&from).unwrap_or(&source);
        // The keys of the database sign receipts, and a key that the directory had before it joined must not.
        if to.join(name).exists() || (is_shared && is_receipt_key(&source)) {
            continue;
        }
        copy_secret(&source, &to.join(name))?;
        files += 1;
    }
    let report = datadir::stored(to).ledger().verify();
    let report = report.map_err(|error| CommandError::Other(error.to_string()))?;
    if !report.ok() {
        let faults = counted(report.finding_count, "fault");
        let why =
            format!("the copy's ledger has {faults}: headrace ledger verify --data-dir {}", to.display());
        return Err(CommandError::Other(why));
    }
    let needs = datadir::sealed_with(to).map(|key| {
        format!("its secrets are encrypted: a server on it needs storage.secret_file, the file with the key {key}\n")
    });
    Ok(format!(
        "{} copied to {}; its ledger holds every invariant, over {}\na server starts on it: headrace up --data-dir {1}\n{}",
        counted(files, "file"),
        to.display(),
        counted(report.rows, "row"),
        needs.unwrap_or_default(),
    ))
}

/// Returns the files that are not databases: the secrets for hashing keys, and a first key that was not fetched.
fn secret_files(from: &Path) -> Result<Vec<PathBuf>, CommandError> {
    let folder = datadir::secrets_folder(from);
    let mut found = Vec::new();
    if folder.exists() {
        for entry in std::fs::read_dir(&folder).map_err(|error| failed(&folder, &error))? {
            let entry = entry.map_err(|error| failed(&folder, &error))?;
            if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                found.push(entry.path());
            }
        }
    }
    found.extend(Some(datadir::first_key_file(from)).filter(|file| file.exists()));
    Ok(found)
}

fn is_receipt_key(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| is_of_series(name, RECEIPT_KEYS))
}

fn copy_secret(from: &Path, to: &Path) -> Result<(), CommandError> {
    if let Some(folder) = to.parent() {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| failed(folder, &error))?;
    }
    let mut source = std::fs::File::open(from).map_err(|error| failed(from, &error))?;
    let copy = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to);
    let mut copy = copy.map_err(|error| failed(to, &error))?;
    std::io::copy(&mut source, &mut copy).map_err(|error| failed(to, &error))?;
    copy.sync_all().map_err(|error| failed(to, &error))
}

fn failed(at: &Path, error: &std::io::Error) -> CommandError {
    CommandError::Other(format!("{}: {error}", at.display()))
}
