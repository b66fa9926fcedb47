//! The key that signs the end of the audit log, the check of signed statements, and the file to which a server adds one once
//! an hour. Must not know what the log says.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use headrace_admin::{AdminService, AuditSigner, SignedAuditHead};
use headrace_domain::Clock;
use headrace_domain::rfc3339::Rfc3339;
use headrace_identity::{AuditHash, AuditSummary};
pub use headrace_jwt::TextKeySet as AuditKeys;
use headrace_jwt::{SignedTextError, TextSigningKey};
use serde_json::{Value, json};

/// Interval of the statements.
const SIGN_EVERY: Duration = Duration::from_secs(3600);
/// The purpose for which the key is derived.
const PURPOSE: &str = "audit";
/// The type of the signed text (`typ` of its header).
const AUDIT_HEAD_TYPE: &str = "headrace-audit-head+jwt";

/// Why a signed statement does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditHeadFault {
    /// Its signed text, or a set of keys, is not accepted.
    Text(SignedTextError),
    /// A signed value is missing, or not of its form.
    Value(&'static str),
    /// A value beside the signed text is another one than in it.
    Differs(&'static str),
}

impl fmt::Display for AuditHeadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(SignedTextError::UnknownKey(id)) => {
                write!(f, "another key signed it: the set has no key `{id}`")
            }
            Self::Text(error) => error.fmt(f),
            Self::Value(name) => write!(f, "`{name}` in its signed text is missing or malformed"),
            Self::Differs(name) => write!(f, "its `{name}` is not the one that was signed"),
        }
    }
}

impl std::error::Error for AuditHeadFault {}

/// The file of statements in a data directory.
pub fn heads_file(dir: &Path) -> PathBuf {
    dir.join("audit-heads.jsonl")
}

/// Parses the set of public keys that `headrace audit key` prints.
///
/// # Errors
/// [`AuditHeadFault::Text`] if it is no set of keys.
pub fn parse_keys(document: &[u8]) -> Result<AuditKeys, AuditHeadFault> {
    AuditKeys::parse(document).map_err(AuditHeadFault::Text)
}

/// Checks a statement, and returns the end of the log that it states. `keys` are the expected public keys, or `None` for
/// those that the statement names.
///
/// # Errors
/// Returns why the statement does not hold.
pub fn check_head(head: &SignedAuditHead, keys: Option<&AuditKeys>) -> Result<AuditSummary, AuditHeadFault> {
    let named;
    let keys = match keys {
        Some(keys) => keys,
        None => {
            named = parse_keys(head.keys.to_string().as_bytes())?;
            &named
        }
    };
    let (signed, _) = keys.verify(AUDIT_HEAD_TYPE, &head.jws).map_err(AuditHeadFault::Text)?;
    let text =
        |name: &'static str| signed.get(name).and_then(Value::as_str).ok_or(AuditHeadFault::Value(name));
    let rows = signed.get("rows").and_then(Value::as_u64).ok_or(AuditHeadFault::Value("rows"))?;
    let hash: AuditHash = text("head")?.parse().map_err(|_| AuditHeadFault::Value("head"))?;
    for (name, is_signed) in [
        ("at", text("at")? == Rfc3339(head.at).to_string()),
        ("rows", rows == head.rows),
        ("head", text("head")? == head.head),
    ] {
        if !is_signed {
            return Err(AuditHeadFault::Differs(name));
        }
    }
    Ok(AuditSummary { rows, head: hash })
}

/// The signer of a server whose secret is `secret`. Gateways with the same stores have the same key.
///
/// # Errors
/// Returns why there is no key.
pub fn signer(secret: &[u8; 32]) -> Result<AuditSigner, String> {
    let key = TextSigningKey::derive(secret, PURPOSE).map_err(|error| error.to_string())?;
    let keys = AuditKeys::new(vec![key.verification_key()]).json();
    Ok(Box::new(move |at, end| {
        let (rows, head) = (end.rows, end.head.to_string());
        let signed = json!({ "at": Rfc3339(at).to_string(), "rows": rows, "head": head });
        let jws = key.sign(AUDIT_HEAD_TYPE, &signed);
        SignedAuditHead { at, rows, head, jws, keys: keys.clone() }
    }))
}

/// Adds a statement to the file of a directory now and once an hour, until the future is dropped.
pub(crate) async fn sign_hourly(dir: PathBuf, service: Arc<AdminService>, clock: Arc<dyn Clock>) {
    let mut last = None;
    loop {
        let (service, now, path) = (Arc::clone(&service), clock.now(), heads_file(&dir));
        let before = last.take();
        let signed = tokio::task::spawn_blocking(move || {
            let head = service.sign_audit_head(now).map_err(|error| error.to_string())?;
            if before.as_ref() != Some(&head.head) {
                append(&path, &head)?;
            }
            Ok::<_, String>(head.head)
        });
        match signed.await {
            Ok(Ok(head)) => last = Some(head),
            Ok(Err(why)) => tracing::warn!(why, "the end of the audit log could not be signed"),
            Err(_) => return,
        }
        tokio::time::sleep(SIGN_EVERY).await;
    }
}

/// Appends a statement. It is on the disk when this returns.
fn append(path: &Path, head: &SignedAuditHead) -> Result<(), String> {
    let line = serde_json::to_string(head).map_err(|error| error.to_string())?;
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| {
        append_whole(&mut file, |file| {
            file.write_all(format!("{line}\n").as_bytes())?;
            file.sync_all()
        })
    });
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// Appends to a file with `write`. If that fails, the file gets its former length, because half a line would make all later
/// checks of the file fail.
fn append_whole(file: &mut File, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let before = file.metadata()?.len();
    let written = write(file);
    if written.is_err() {
        file.set_len(before)?;
    }
    written
}

#[cfg(test)]
mod tests {
    use headrace_domain::UnixNanos;

    use super::*;

    const END: AuditSummary = AuditSummary { rows: 7, head: AuditHash::from_bytes([5; 32]) };

    fn head(secret: u8, at: u64) -> SignedAuditHead {
        signer(&[secret; 32]).unwrap()(UnixNanos::new(at), &END)
    }

    fn keys(secret: u8) -> AuditKeys {
        parse_keys(head(secret, 1).keys.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_statement_holds_with_its_key_and_no_changed_one_does() {
        let good = head(7, 1_795_132_800_000_000_001);
        assert_eq!(check_head(&good, Some(&keys(7))), Ok(END));
        assert_eq!(check_head(&good, None), Ok(END));
        let line = serde_json::to_string(&good).unwrap();
        assert_eq!(serde_json::from_str::<SignedAuditHead>(&line).unwrap(), good, "it is one line of JSON");
        let other = check_head(&good, Some(&keys(8))).unwrap_err();
        assert!(other.to_string().contains("another key signed it"), "{other}");
        let resigned = |kind: &str, signed: Value| SignedAuditHead {
            jws: TextSigningKey::derive(&[7; 32], PURPOSE).unwrap().sign(kind, &signed),
            ..good.clone()
        };
        let (signature, kind) = (good.jws.rsplit_once('.').unwrap().0, "`typ` is of another kind of text");
        for (changed, fault) in [
            (SignedAuditHead { rows: 8, ..good.clone() }, AuditHeadFault::Differs("rows")),
            (SignedAuditHead { at: UnixNanos::new(2_000), ..good.clone() }, AuditHeadFault::Differs("at")),
            (SignedAuditHead { head: "06".repeat(32), ..good.clone() }, AuditHeadFault::Differs("head")),
            (
                SignedAuditHead { jws: format!("{signature}.AAAA"), ..good.clone() },
                AuditHeadFault::Text(SignedTextError::Signature),
            ),
            (
                SignedAuditHead { jws: String::new(), ..good.clone() },
                AuditHeadFault::Text(SignedTextError::Malformed("it has no dots")),
            ),
            (resigned("other+jwt", json!({})), AuditHeadFault::Text(SignedTextError::Header(kind))),
            (resigned(AUDIT_HEAD_TYPE, json!({ "head": END.head })), AuditHeadFault::Value("rows")),
            (resigned(AUDIT_HEAD_TYPE, json!({ "rows": 7, "head": "05" })), AuditHeadFault::Value("head")),
        ] {
            assert_eq!(check_head(&changed, Some(&keys(7))), Err(fault));
        }
        let unnamed = SignedAuditHead { keys: Value::Null, ..good };
        assert!(matches!(check_head(&unnamed, None), Err(AuditHeadFault::Text(SignedTextError::KeySet(_)))));
    }

    #[test]
    fn an_append_that_fails_leaves_no_half_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = heads_file(dir.path());
        append(&path, &head(7, 1)).unwrap();
        let before = std::fs::read_to_string(&path).unwrap();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        let failed = append_whole(&mut file, |file| {
            file.write_all(b"{\"at\":")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
        append(&path, &head(7, 2)).unwrap();
        let lines = std::fs::read_to_string(&path).unwrap();
        assert_eq!(lines.lines().count(), 2);
        for line in lines.lines() {
            let head: SignedAuditHead = serde_json::from_str(line).unwrap();
            assert_eq!(check_head(&head, None), Ok(END));
        }
    }
}
