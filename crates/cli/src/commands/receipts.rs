//! `headrace receipt`: makes the receipt of a call, verifies receipts, and manages the keys that sign them.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply};
use headrace_client::{Client, ClientConfig};
use headrace_config::ca::read_ca;
use headrace_domain::SentAnswer;
use headrace_server::datadir::{self, ReceiptKeyAct, SecretFiles};
use headrace_server::receipts::{
    AnswerFault, RECEIPT_KEYS_PATH, ReceiptKeys, ReceiptSigner, check_answer, parse_receipt_keys,
    verify_receipt,
};
use headrace_terminal::output;
use serde_json::{Map, Value};

use crate::arguments::receipts::{ReceiptArgs, ReceiptCommand};
use crate::arguments::{NamedCall, ServerArgs};
use crate::commands::trace::TraceSource;
use crate::commands::{CommandError, configuration, execute, print, unexpected};

/// Maximum length of a file with a receipt or with keys, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Makes or verifies a receipt, prints the keys, or makes another key.
pub(crate) fn run(args: ReceiptArgs) -> ExitCode {
    let ReceiptArgs { at, call, command } = args;
    match (command, call) {
        (Some(ReceiptCommand::Verify { file, keys, ca, answer }), _) => {
            let verified = verify(&at, &file, keys.as_deref(), ca.as_deref());
            print(verified.and_then(|content| shown(&at, content, answer.as_deref())))
        }
        (Some(ReceiptCommand::Keys), _) => print(own_keys(&at).map(|keys| format!("{:#}\n", keys.json()))),
        (Some(ReceiptCommand::Rotate), _) => execute(&at, AdminCommand::RotateReceiptKey, describe),
        (None, Some(call)) => print(make(&at, &call)),
        (None, None) => output::refuse("name a call: headrace receipt REQUEST"),
    }
}

fn describe(reply: AdminReply) -> String {
    match reply {
        AdminReply::ReceiptKeyRotated { id } => {
            format!("key {id} signs receipts from now on; other gateways follow within a minute\n")
        }
        other => unexpected(&other),
    }
}

/// Returns the receipt of a call as JSON.
fn make(at: &ServerArgs, call: &NamedCall) -> Result<String, CommandError> {
    let config = configuration(at)?;
    let record = TraceSource::open(at)?.one(call)?;
    let journal = datadir::stored(&config.data_dir).ledger();
    let receipt = signer(at)?.receipt(&record, journal.as_ref());
    let receipt = receipt.map_err(|error| CommandError::Other(error.to_string()))?.ok_or_else(|| {
        CommandError::Other(format!(
            "{} has no receipt: it was refused, failed before any work, or is not settled yet",
            record.request_id
        ))
    })?;
    Ok(format!("{:#}\n", receipt.json()))
}

/// The keys of the data directory.
fn signer(at: &ServerArgs) -> Result<ReceiptSigner, CommandError> {
    let config = configuration(at)?;
    let files = SecretFiles::of(&config);
    let secrets = datadir::receipt_keys(&config.data_dir, &files, ReceiptKeyAct::Read);
    let secrets = secrets.map_err(CommandError::DataDir)?;
    ReceiptSigner::of_secrets(&secrets).map_err(|error| CommandError::Other(error.to_string()))
}

fn own_keys(at: &ServerArgs) -> Result<ReceiptKeys, CommandError> {
    Ok(signer(at)?.public().clone())
}

/// A receipt that was verified: its content, and the id of the key.
type VerifiedReceipt = (Map<String, Value>, String);

/// Verifies a receipt.
fn verify(
    at: &ServerArgs,
    file: &Path,
    keys: Option<&str>,
    ca: Option<&Path>,
) -> Result<VerifiedReceipt, CommandError> {
    let keys = match keys {
        None => own_keys(at)?,
        Some(from) => {
            let document =
                if from.contains("://") { fetched(from, ca)? } else { read(Path::new(from))?.into_bytes() };
            parse_receipt_keys(&document).map_err(|error| CommandError::Other(format!("{from}: {error}")))?
        }
    };
    let text = read(file)?;
    let (content, key) = verify_receipt(&keys, &text).map_err(|error| {
        CommandError::Other(format!("{} is not a valid receipt: {error}", file.display()))
    })?;
    Ok((content, key.to_owned()))
}

/// Checks `answer` against a receipt, and returns the receipt's content as text.
fn shown(
    at: &ServerArgs,
    (content, key): VerifiedReceipt,
    answer: Option<&Path>,
) -> Result<String, CommandError> {
    let checked = answer.map(|file| checked_answer(&content, file)).transpose()?;
    let content = Value::Object(content);
    if at.json {
        return Ok(format!("{content:#}\n"));
    }
    let text = |pointer: &str| {
        let found = content.pointer(pointer).and_then(Value::as_str);
        output::shown_line(found.unwrap_or("–")).into_owned()
    };
    let number = |pointer: &str| content.pointer(pointer).map_or_else(String::new, Value::to_string);
    let answer = checked.map_or_else(String::new, |sent| {
        format!("the answer is the one that was sent: SHA-256 {}, {} bytes\n", sent.sha256, sent.bytes)
    });
    Ok(format!(
        "valid: signed with the key {key}\n{answer}request {} of key {}, project {}, organisation {}\nmodel {}, settled {}\n\
         charged ${}\njournal row {}, checksum {}\n",
        text("/request"),
        text("/key"),
        text("/project"),
        text("/org"),
        text("/model/served"),
        text("/settled"),
        text("/charged/dollars"),
        number("/journal/sequence"),
        text("/journal/checksum"),
    ))
}

/// Checks that the receipt is of the answer in this file.
fn checked_answer(content: &Map<String, Value>, file: &Path) -> Result<SentAnswer, CommandError> {
    let checked = File::open(file).map_err(AnswerFault::Unreadable);
    let checked = checked.and_then(|opened| check_answer(content, opened));
    checked.map_err(|fault| CommandError::Other(format!("{}: {fault}", file.display())))
}

/// Reads a file, or standard input for `-`.
fn read(file: &Path) -> Result<String, CommandError> {
    let failed = |error: std::io::Error| CommandError::Other(format!("{}: {error}", file.display()));
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(failed)?;
    } else {
        let opened = File::open(file).map_err(failed)?;
        opened.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(failed)?;
    }
    Ok(text)
}

/// Reads the keys that a server publishes.
fn fetched(url: &str, ca: Option<&Path>) -> Result<Vec<u8>, CommandError> {
    let base = url.strip_suffix(RECEIPT_KEYS_PATH).unwrap_or(url);
    let failed = |error: headrace_client::ClientError| CommandError::Other(error.to_string());
    let ca_pem = ca.map(read_ca).transpose().map_err(CommandError::Other)?;
    let client = Client::new(ClientConfig { ca_pem, ..ClientConfig::new(base) }).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CommandError::Other(error.to_string()))?;
    runtime.block_on(client.document(RECEIPT_KEYS_PATH)).map_err(failed)
}
