//! Receipts: signed statements about one call, which anyone can verify with the published keys. Made when they are asked
//! for, from the trace and the row of the journal. Must not know who asks.

mod answer_check;
mod document;
mod live;

pub use answer_check::{AnswerFault, check_answer};
pub use document::{RECEIPT_TYPE, receipt_json};
pub use headrace_jwt::TextKeySet as ReceiptKeys;
pub(crate) use live::LiveReceipts;

use std::fmt;

use headrace_domain::{CallOutcome, TraceRecord, UnixNanos};
use headrace_jwt::{SignedTextError, TextKeySet, TextSigningKey};
use headrace_ledger::{JournalError, JournalHistory, find_settlement};
use headrace_store::SecretBytes;
use serde_json::{Map, Value, json};

use crate::datadir::DataDirError;

/// The path of the published keys.
pub const RECEIPT_KEYS_PATH: &str = "/.well-known/headrace-receipts.json";

/// Why a receipt could not be made.
#[derive(Debug)]
pub enum ReceiptError {
    /// The journal cannot be read.
    Journal(JournalError),
    /// The keys cannot be read or used.
    Keys(String),
}

impl fmt::Display for ReceiptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Journal(error) => error.fmt(f),
            Self::Keys(why) => write!(f, "the keys that sign receipts: {why}"),
        }
    }
}

impl std::error::Error for ReceiptError {}

impl From<JournalError> for ReceiptError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl From<DataDirError> for ReceiptError {
    fn from(error: DataDirError) -> Self {
        Self::Keys(error.to_string())
    }
}

/// The keys that sign receipts.
#[derive(Debug)]
pub struct ReceiptSigner {
    /// Signs.
    newest: TextSigningKey,
    /// The public parts of all keys, the newest one first.
    public: TextKeySet,
}

impl ReceiptSigner {
    /// Makes a signer of secrets, oldest first. The newest one signs.
    ///
    /// # Errors
    /// [`ReceiptError::Keys`] if there are no secrets, or one cannot be used.
    pub fn of_secrets(secrets: &[SecretBytes]) -> Result<Self, ReceiptError> {
        let unusable = |error: SignedTextError| ReceiptError::Keys(error.to_string());
        let key = |secret: &SecretBytes| TextSigningKey::of_seed(secret).map_err(unusable);
        let mut keys = secrets.iter().rev().map(key).collect::<Result<Vec<_>, _>>()?.into_iter();
        let newest = keys.next().ok_or_else(|| {
            ReceiptError::Keys("there are none yet: a server makes the first one when it starts".to_owned())
        })?;
        let older = keys.map(|key| key.verification_key());
        let public = TextKeySet::new(std::iter::once(newest.verification_key()).chain(older).collect());
        Ok(Self { newest, public })
    }

    /// The public keys, the one that signs first.
    pub const fn public(&self) -> &TextKeySet {
        &self.public
    }

    /// Makes the receipt of a call. `None` if the call was refused, or the ledger has not settled it.
    ///
    /// # Errors
    /// [`ReceiptError::Journal`] if the journal cannot be read.
    pub fn receipt(
        &self,
        record: &TraceRecord,
        journal: &dyn JournalHistory,
    ) -> Result<Option<CallReceipt>, ReceiptError> {
        if matches!(record.outcome, CallOutcome::Refused(_)) {
            // The journal has no settlement of it, and a search for one would read hours of rows.
            return Ok(None);
        }
        let ended = UnixNanos::new(record.started.get().saturating_add(record.duration_ns));
        let found = find_settlement(journal, record.request_id.hold(), record.started, ended)?;
        Ok(found.map(|settlement| {
            let content = receipt_json(record, &settlement);
            let signed = self.newest.sign(RECEIPT_TYPE, &content);
            CallReceipt { content, signed }
        }))
    }
}

/// The receipt of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallReceipt {
    /// What it says.
    pub content: Value,
    /// The same, signed: a JWS in compact form.
    pub signed: String,
}

impl CallReceipt {
    /// The receipt as the API returns it: `jws` is what counts, and `content` is its payload.
    pub fn json(&self) -> Value {
        json!({ "object": "receipt", "jws": self.signed, "content": self.content })
    }
}

/// Parses the published keys.
///
/// # Errors
/// Returns why the document is no set of keys.
pub fn parse_receipt_keys(document: &[u8]) -> Result<ReceiptKeys, SignedTextError> {
    TextKeySet::parse(document)
}

/// Verifies a receipt, and returns what it says with the id of the key. The text is a JWS in compact form, or JSON with it in `jws`, as the API
/// and the command return it.
///
/// # Errors
/// Returns why the receipt is not accepted.
pub fn verify_receipt<'k>(
    keys: &'k TextKeySet,
    text: &str,
) -> Result<(Map<String, Value>, &'k str), SignedTextError> {
    let text = text.trim();
    let signed = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(mut object)) => match object.remove("jws") {
            Some(Value::String(signed)) => signed,
            _ => return Err(SignedTextError::Malformed("the JSON has no `jws`")),
        },
        _ => text.to_owned(),
    };
    let (content, key) = keys.verify(RECEIPT_TYPE, &signed)?;
    Ok((content, &key.id))
}

#[cfg(test)]
mod tests;
