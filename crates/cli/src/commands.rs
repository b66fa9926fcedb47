//! Operators' commands, executed through the control socket of a running server, or on the data directory of a stopped
//! one. Turns replies into text. Contains no decisions.

pub(crate) mod accounts;
pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod budgets;
pub(crate) mod cache;
pub(crate) mod chat;
pub(crate) mod contents;
mod counterfactual;
mod dataset_calls;
pub(crate) mod errors;
pub(crate) mod inspection;
pub(crate) mod invoices;
pub(crate) mod keys;
mod look;
pub(crate) mod lots;
pub(crate) mod margin;
pub(crate) mod models;
pub(crate) mod money;
pub(crate) mod now;
pub(crate) mod operators;
pub(crate) mod ping;
pub(crate) mod places;
pub(crate) mod receipts;
pub(crate) mod refund;
pub(crate) mod requests;
pub(crate) mod routes;
pub(crate) mod secrets;
pub(crate) mod serve;
mod settings;
pub(crate) mod shadow;
pub(crate) mod shells;
pub(crate) mod status;
pub(crate) mod tiers;
pub(crate) mod trace;
pub(crate) mod transfer;
pub(crate) mod upstreams;
pub(crate) mod usage;
pub(crate) mod webhooks;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use headrace_admin::{
    AdminCommand, AdminError, AdminReply, AdminService, ContentAccess, ContentAct, ControlError,
    ServerStatus, control,
};
use headrace_config::{ConfigError, ServerSettings, reference};
use headrace_domain::{Clock, SystemClock, TraceRecord, UnixNanos};
use headrace_identity::Revocation;
use headrace_server::audit_heads;
use headrace_server::datadir;
use headrace_server::datadir::{DataDir, DataDirError, SecretFiles};
use headrace_server::forget::UserForgetter;
use headrace_server::invoices::of_stopped_server;
use headrace_store::{StorageReader, StoreName};
use headrace_terminal::output;
use headrace_trace::{TraceReader, decode_record};

use crate::arguments::{ConfigArgs, ConfigCommand, ServerArgs};

/// The actor of commands on a stopped data directory.
const ACTOR: &str = "command line";

/// `config check`, `config reference` and `config parameters`.
pub(crate) fn config(args: &ConfigArgs) -> ExitCode {
    match &args.command {
        ConfigCommand::Reference => {
            output::say(&reference::markdown());
            ExitCode::SUCCESS
        }
        ConfigCommand::Parameters => {
            output::say(&headrace_relay::parameters_page());
            ExitCode::SUCCESS
        }
        ConfigCommand::Check { config, all, flags } => {
            look::check_configuration(config.as_deref(), *all, flags)
        }
    }
}

/// Why a command failed.
pub(crate) enum CommandError {
    Config(ConfigError),
    DataDir(DataDirError),
    Control(ControlError),
    Refused(AdminError),
    Other(String),
}

impl CommandError {
    /// Prints the error and returns the exit code.
    pub(crate) fn exit(self) -> ExitCode {
        match self {
            Self::Config(error) => output::refuse(&error.to_string()),
            Self::DataDir(error) => output::fail(&error.to_string()),
            Self::Control(error) => output::fail(&error.to_string()),
            Self::Refused(error) => output::fail(&error.to_string()),
            Self::Other(why) => output::fail(&why),
        }
    }
}

/// Reads the configuration for a command.
fn configuration(at: &ServerArgs) -> Result<ServerSettings, CommandError> {
    ServerSettings::of_command(at.config.as_deref(), at.data_dir.as_deref()).map_err(CommandError::Config)
}

/// Reads the configuration of a file, for commands that need no server.
///
/// # Errors
/// All faults of the configuration.
pub(crate) fn configuration_of(file: Option<&Path>) -> Result<ServerSettings, String> {
    ServerSettings::of_command(file, None).map_err(|error| error.to_string())
}

/// Returns the data directory.
pub(crate) fn data_dir(at: &ServerArgs) -> Result<PathBuf, CommandError> {
    Ok(configuration(at)?.data_dir)
}

/// Opens the traces. A running server first stores the traces of all ended calls.
fn traces(at: &ServerArgs) -> Result<Arc<dyn TraceReader>, CommandError> {
    stored_traces(at)?.traces().map_err(|error| CommandError::Other(error.to_string()))
}

/// Returns the stores of a data directory that has traces. A running server first stores the traces of all ended calls.
fn stored_traces(at: &ServerArgs) -> Result<StorageReader, CommandError> {
    let dir = data_dir(at)?;
    recent_calls(&dir, 0);
    let stored = datadir::stored(&dir);
    let place = stored.place(StoreName::Traces);
    if place.exists() {
        return Ok(stored);
    }
    let why = "name the server's data directory with --data-dir";
    Err(CommandError::Other(format!("there are no traces at {place}: {why}")))
}

/// Returns the newest calls in the memory of a running server, newest first. The server first stores the traces of all
/// ended calls. Empty if no server runs, or if the server is an older program.
fn recent_calls(data_dir: &Path, most: usize) -> Vec<TraceRecord> {
    match control::call(data_dir, &AdminCommand::RecentCalls { most }) {
        Ok(AdminReply::RecentCalls(calls)) => {
            calls.iter().filter_map(|call| decode_record(&call.to_string()).ok()).collect()
        }
        _ => Vec::new(),
    }
}

/// Prints the result of a command.
fn print(result: Result<String, CommandError>) -> ExitCode {
    print_with(output::say, result)
}

fn print_with(say: fn(&str), result: Result<String, CommandError>) -> ExitCode {
    match result {
        Ok(text) => {
            say(&text);
            ExitCode::SUCCESS
        }
        Err(error) => error.exit(),
    }
}

/// Executes a command on the running server, or on the stopped one's directory, and prints the reply.
pub(crate) fn execute(
    at: &ServerArgs,
    command: AdminCommand,
    say: impl FnOnce(AdminReply) -> String,
) -> ExitCode {
    match ask(at, command) {
        Ok(reply) if at.json => match serde_json::to_string_pretty(&reply) {
            Ok(text) => {
                output::say(&format!("{text}\n"));
                ExitCode::SUCCESS
            }
            Err(error) => output::fail(&error.to_string()),
        },
        Ok(reply) => {
            output::say(&say(reply));
            ExitCode::SUCCESS
        }
        Err(error) => error.exit(),
    }
}

/// Executes a command on the running server, or on the stopped one's directory.
pub(crate) fn ask(at: &ServerArgs, command: AdminCommand) -> Result<AdminReply, CommandError> {
    let config = configuration(at)?;
    match control::call(&config.data_dir, &command) {
        Ok(reply) => Ok(reply),
        Err(ControlError::NotRunning { .. }) => alone(&config, command),
        Err(ControlError::Refused(error)) => Err(CommandError::Refused(error)),
        Err(error) => Err(CommandError::Control(error)),
    }
}

fn alone(config: &ServerSettings, command: AdminCommand) -> Result<AdminReply, CommandError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let dir = DataDir::open(&config.data_dir, &SecretFiles::of(config)).map_err(CommandError::DataDir)?;
    let (directory, operators) = dir.identities().map_err(CommandError::DataDir)?;
    let opened = dir.ledger("headrace command", &clock, Box::new(|_| ())).map_err(CommandError::DataDir)?;
    let ledger = opened.admin;
    let stopped =
        || ServerStatus { version: env!("CARGO_PKG_VERSION").to_owned(), ..ServerStatus::default() };
    let limits = config.limits;
    let defaults = move || limits;
    let service = AdminService::new(directory, Arc::clone(&ledger), Box::new(defaults), Box::new(stopped))
        .with_operators(operators)
        .with_invoices(of_stopped_server(config))
        .with_contents(contents_alone(config, &dir, &command));
    let service = match audit_heads::signer(&dir.gateway_secret()) {
        Ok(signer) => service.with_audit_signer(signer),
        Err(why) => return Err(CommandError::Other(why)),
    };
    // An emptied ledger must not block the command that repairs it.
    let reconciled = match command {
        AdminCommand::OpenAccounts => Ok(Vec::new()),
        _ => service.reconcile(clock.now()),
    };
    let done = reconciled.and_then(|_| service.execute(command, ACTOR, clock.now()));
    let closed = ledger.close();
    let reply = done.map_err(CommandError::Refused)?;
    closed.map_err(|error| CommandError::DataDir(DataDirError::Ledger(error)))?;
    if let AdminReply::KeyRevoked { id, how: Revocation::InMemory { why } } = &reply {
        // The memory of this process is lost when it ends.
        return Err(CommandError::Other(format!(
            "{id} could not be revoked: {why}\n  try: make room on the disk"
        )));
    }
    Ok(reply)
}

/// The recorded requests and answers in the directory of a stopped server.
fn contents_alone(config: &ServerSettings, dir: &DataDir, command: &AdminCommand) -> ContentAccess {
    let archive = dir.storage().contents(config.contents.max_total_bytes, None);
    let (objects_dir, min_free) = (config.storage.objects_dir.as_deref(), config.storage.min_free_bytes);
    let forgetter = UserForgetter::new(dir.storage(), objects_dir, min_free, Arc::clone(&archive))
        .with_session_file(&config.data_dir);
    let forgetter = match command {
        // Only this command asks the other gateways.
        AdminCommand::Contents { act: ContentAct::Forget { .. } } => {
            let files = SecretFiles::of(config);
            forgetter.with_gateways(&config.data_dir, &files, &config.storage.gateway_name)
        }
        _ => forgetter,
    };
    ContentAccess {
        archive,
        flush: Box::new(|| ()),
        forget: Box::new(move |user, project| forgetter.forget(user, project)),
    }
}

/// Formats a time as `2026-11-21 01:34:08`, or as a dash.
pub(crate) fn time(at: Option<UnixNanos>) -> String {
    let shown = |at| format!("{} {}", headrace_trace::utc_date(at), headrace_trace::utc_time(at));
    at.map_or_else(|| "–".to_owned(), shown)
}

/// The text for a reply that does not match the command, for example from another version of the program.
pub(crate) fn unexpected(reply: &AdminReply) -> String {
    format!("{reply:?}\n")
}
