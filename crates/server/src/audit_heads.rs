//! The key that signs the end of the audit log, and the file to which a server adds a signed statement once an hour. Must
//! not know what the log says.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use headrace_admin::{AdminService, AuditSigner};
use headrace_domain::Clock;
use headrace_identity::SignedAuditHead;
use headrace_store::signing::{SigningKey, VerifyingKey};

/// Interval of the statements.
const SIGN_EVERY: Duration = Duration::from_secs(3600);
/// The purpose for which the key is derived.
const PURPOSE: &str = "audit";

/// The file of statements in a data directory.
pub fn heads_file(dir: &Path) -> PathBuf {
    dir.join("audit-heads.jsonl")
}

/// Whether a key signed a text, as [`SignedAuditHead::check`] asks.
pub fn verifies(key: &[u8; 32], text: &[u8], signature: &[u8; 64]) -> bool {
    VerifyingKey::from_bytes(*key).verifies(text, signature)
}

/// The signer of a server whose secret is `secret`. Gateways with the same stores have the same key.
///
/// # Errors
/// Returns why there is no key.
pub fn signer(secret: &[u8; 32]) -> Result<AuditSigner, String> {
    let key = SigningKey::derive(secret, PURPOSE).map_err(|error| error.to_string())?;
    let public = key.verifying();
    Ok(Box::new(move |at, end| SignedAuditHead::sign(at, end, public.as_bytes(), |text| key.sign(text))))
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
        file.write_all(format!("{line}\n").as_bytes())?;
        file.sync_all()
    });
    written.map_err(|error| format!("{}: {error}", path.display()))
}
