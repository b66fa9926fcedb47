//! Compares a saved answer with its receipt. Must not know keys or signatures.

use std::fmt;
use std::io::{self, Read};

use headrace_call_state::sent_by;
use headrace_domain::SentAnswer;
use serde_json::{Map, Value};

/// Why a saved answer does not count as the one of a receipt.
#[derive(Debug)]
pub enum AnswerFault {
    /// The answer cannot be read.
    Unreadable(io::Error),
    /// The receipt has no hash of the answer.
    NoHash,
    /// The receipt is of another answer.
    Differs {
        /// What the receipt says.
        receipt: SentAnswer,
        /// What was read.
        answer: SentAnswer,
    },
}

impl fmt::Display for AnswerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => error.fmt(f),
            Self::NoHash => f.write_str(
                "the receipt has no hash of the answer: the server had receipts.answer_hash off, or the call came by a \
                 batch, in the background or on a WebSocket",
            ),
            Self::Differs { receipt, answer } => write!(
                f,
                "this is not the answer that was sent\n  receipt: SHA-256 {}, {} bytes\n  answer:  SHA-256 {}, {} bytes",
                receipt.sha256, receipt.bytes, answer.sha256, answer.bytes
            ),
        }
    }
}

impl std::error::Error for AnswerFault {}

/// Checks that a receipt's `content` has the hash and the length of `answer`, and returns both.
///
/// # Errors
/// Returns why the answer does not count as the one of the receipt.
pub fn check_answer(content: &Map<String, Value>, answer: impl Read) -> Result<SentAnswer, AnswerFault> {
    let sent = content.get("sent").filter(|sent| !sent.is_null()).ok_or(AnswerFault::NoHash)?;
    let receipt: SentAnswer = serde_json::from_value(sent.clone()).map_err(|_| AnswerFault::NoHash)?;
    let answer = sent_by(answer).map_err(AnswerFault::Unreadable)?;
    if answer == receipt { Ok(answer) } else { Err(AnswerFault::Differs { receipt, answer }) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(sent: &Value, answer: &str) -> String {
        let content = json!({ "request": "req_1", "sent": sent });
        let content = content.as_object().unwrap();
        check_answer(content, answer.as_bytes()).map_or_else(|fault| fault.to_string(), |_| String::new())
    }

    #[test]
    fn an_answer_counts_if_hash_and_length_are_those_of_the_receipt() {
        const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let sent = json!({ "sha256": ABC, "bytes": 3 });
        assert_eq!(check(&sent, "abc"), "");
        let differs = check(&sent, "");
        for part in [ABC, "3 bytes", EMPTY, "0 bytes"] {
            assert!(differs.contains(part), "{differs}");
        }
        assert!(check(&json!({ "sha256": ABC, "bytes": 4 }), "abc").contains("4 bytes"));
        for none in [Value::Null, json!({ "bytes": 3 }), json!({ "sha256": "ba78", "bytes": 3 })] {
            assert!(check(&none, "abc").contains("no hash"), "{none}");
        }
    }
}
