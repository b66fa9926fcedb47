//! `headrace move`: moves keys and ledger of a stopped server to another place.

use std::process::ExitCode;
use std::sync::Arc;

use headrace_domain::{Clock, SystemClock};
use headrace_server::datadir::{DataDir, SecretFiles};
use headrace_store::StorageUrl;
use headrace_terminal::output;
use headrace_trace::counted;

use crate::arguments::transfer::MoveArgs;
use crate::commands::{CommandError, configuration, print};

/// Rows of the ledger between two lines of progress.
const PROGRESS_ROWS: u64 = 100_000;

/// Moves keys and ledger, and prints the result.
pub(crate) fn run(args: &MoveArgs) -> ExitCode {
    print(move_stores(args))
}

fn move_stores(args: &MoveArgs) -> Result<String, CommandError> {
    let config = configuration(&args.at)?;
    let to = StorageUrl::parse_in(&args.to, &config.data_dir);
    let to = to.map_err(|error| CommandError::Other(format!("--to: {error}")))?;
    let files = SecretFiles::of(&config);
    let dir = DataDir::open(&config.data_dir, &files).map_err(CommandError::DataDir)?;
    let objects_dir = config.storage.objects_dir.as_deref();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let report =
        dir.move_stores(&to, objects_dir, &files, &clock, progress()).map_err(CommandError::DataDir)?;
    Ok(format!(
        "{}, {} of the ledger and {} of the audit log are in {to} now; the ledger holds every invariant\n",
        counted(report.keys as u64, "key"),
        counted(report.rows, "row"),
        counted(report.audit.rows, "row"),
    ))
}

/// Returns a function that shows the progress of a long copy.
pub(crate) fn progress() -> impl FnMut(u64) {
    let mut shown = 0;
    move |rows| {
        if rows / PROGRESS_ROWS > shown {
            shown = rows / PROGRESS_ROWS;
            output::note(&format!("{rows} rows of the ledger are copied"));
        }
    }
}
