//! Uploads: files that arrive in parts, in any order and concurrently, and are completed into one file. Knows nothing
//! of their contents.

use std::time::Duration;

use headrace_call_api::BodySource;
use headrace_call_state::{Answer, Rejection};
use headrace_domain::{Code, UnixNanos};
use headrace_identity::Principal;
use headrace_objects::{
    FileDraft, FileRecord, PartRecord, UploadFault, UploadRecord, UploadStatus, fresh_id,
};
use headrace_wire::openai::{CompleteBody, complete_body, upload_body};
use md5::{Digest, Md5};
use serde_json::{Value, json};

use crate::draft_writer::DraftWriter;
use crate::files;
use crate::form::{UploadForm, missing_field, unknown_field};
use crate::requests::{ObjectAnswer, owned};
use crate::resources::StoredResources;
use crate::upload_claim::UploadClaim;

/// How long an upload accepts parts, as in OpenAI's API.
const LIFETIME: Duration = Duration::from_secs(3600);

impl StoredResources {
    /// `POST /v1/uploads`
    pub(crate) async fn create_upload(&self, principal: &Principal, body: impl BodySource) -> ObjectAnswer {
        let body = body.read().await.map_err(|refusal| Rejection::of_body(&refusal))?;
        let said = upload_body(&body, &self.config().wire)?;
        let created = self.now();
        let upload = UploadRecord {
            id: fresh_id("upload", created),
            project: principal.project.clone(),
            created,
            expires: created.after(LIFETIME),
            status: UploadStatus::Pending,
            bytes: said.bytes,
            name: said.name,
            purpose: said.purpose,
            mime: said.mime,
            kept_seconds: said.kept_seconds,
            file: None,
        };
        let json = shown(&upload, None, created);
        self.objects().ask_files(move |store| store.create_upload(&upload)).await?;
        Ok(json)
    }

    /// `POST /v1/uploads/ID/parts`
    pub(crate) async fn add_part(
        &self,
        principal: &Principal,
        id: &str,
        body: impl BodySource,
        claim: Option<&dyn UploadClaim>,
    ) -> ObjectAnswer {
        // Before the body is read: check the owner and whether the upload accepts parts.
        let upload = self.upload_of(principal, id).await?;
        let created = self.now();
        if upload.status != UploadStatus::Pending || upload.expires <= created {
            return Err(not_pending());
        }
        let (_memory, pieces) = self.open_form(principal, body)?;
        let part = PartRecord { id: fresh_id("part", created), upload: upload.id, created, bytes: 0 };
        let project = principal.project.clone();
        let (mut form, mut written) = (UploadForm::of(pieces)?, None);
        while let Some((name, mut field)) = form.next().await? {
            if name != "data" || written.is_some() {
                return Err(unknown_field(&name, "`data`, once"));
            }
            let draft = FileDraft::Part { project: project.clone(), part: part.clone() };
            let mut writing = DraftWriter::begin(self, draft, claim.is_some()).await?;
            while let Some(chunk) = field.next().await? {
                writing.add(&chunk).await?;
            }
            written = Some(writing);
        }
        let writing = written.ok_or_else(|| missing_field("data"))?;
        if let Some(claim) = claim {
            claim.claim(writing.content(&[])).await?;
        }
        let Some(FileDraft::Part { part, .. }) = writing.finish(|_| {}).await? else {
            return Err(not_pending());
        };
        let json = json!({
            "id": part.id,
            "object": "upload.part",
            "created_at": part.created.seconds(),
            "upload_id": part.upload,
        });
        Ok(Answer::json(200, json.to_string()))
    }

    /// `POST /v1/uploads/ID/complete`
    pub(crate) async fn complete_upload(
        &self,
        principal: &Principal,
        id: &str,
        body: impl BodySource,
    ) -> ObjectAnswer {
        let body = body.read().await.map_err(|refusal| Rejection::of_body(&refusal))?;
        let CompleteBody { parts, md5 } = complete_body(&body, &self.config().wire)?;
        let upload = self.upload_of(principal, id).await?;
        if let Some(expected) = md5 {
            let found = self.sum(&upload.id, &parts).await?;
            if found != expected {
                let message = format!("`md5`: the parts, in this order, have the MD5 sum {found}.");
                return Err(Rejection::new(Code::UploadMismatch, message).with_param("md5"));
            }
        }
        let ((project, own), now) = (owned(principal, id), self.now());
        let file = fresh_id("file", now).replacen('_', "-", 1);
        let completing =
            self.objects().ask_files(move |store| store.complete_upload(&project, &own, &parts, &file, now));
        match completing.await? {
            Ok((upload, file)) => Ok(shown(&upload, Some(&file), now)),
            Err(UploadFault::Missing) => Err(not_found()),
            Err(UploadFault::NotPending) => Err(not_pending()),
            Err(UploadFault::Part(part)) => {
                let shown: String = part.chars().filter(|c| !c.is_control()).take(80).collect();
                let message = format!("`part_ids`: `{shown}` is no part of this upload, or is listed twice.");
                Err(Rejection::new(Code::UploadMismatch, message).with_param("part_ids"))
            }
            Err(UploadFault::Bytes(bytes)) => {
                let message = format!(
                    "`part_ids`: the parts have {bytes} bytes, and the upload was created for {}.",
                    upload.bytes
                );
                Err(Rejection::new(Code::UploadMismatch, message).with_param("part_ids"))
            }
        }
    }

    /// The MD5 sum of the concatenated parts, in hexadecimal.
    async fn sum(&self, upload: &str, parts: &[String]) -> Result<String, Rejection> {
        let (upload, parts) = (upload.to_owned(), parts.to_vec());
        let summing = self.objects().ask_files(move |store| {
            let mut sum = Md5::new();
            for part in &parts {
                let mut at = 0;
                loop {
                    let some = store.read_part(&upload, part, at)?;
                    if some.is_empty() {
                        break;
                    }
                    at += some.len() as u64;
                    sum.update(&some);
                }
            }
            Ok(sum.finalize())
        });
        Ok(summing.await?.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// `POST /v1/uploads/ID/cancel`
    pub(crate) async fn cancel_upload(&self, principal: &Principal, id: &str) -> ObjectAnswer {
        let ((project, own), now) = (owned(principal, id), self.now());
        match self.objects().ask_files(move |store| store.cancel_upload(&project, &own, now)).await? {
            None => Err(not_found()),
            Some(Ok(upload)) => Ok(shown(&upload, None, now)),
            Some(Err(_)) => Err(not_pending()),
        }
    }

    async fn upload_of(&self, principal: &Principal, id: &str) -> Result<UploadRecord, Rejection> {
        let (project, id) = owned(principal, id);
        let found = self.objects().ask_files(move |store| store.upload(&project, &id)).await?;
        found.ok_or_else(not_found)
    }
}

fn shown(upload: &UploadRecord, file: Option<&FileRecord>, now: UnixNanos) -> Answer {
    let status = match upload.status {
        UploadStatus::Pending if upload.expires <= now => "expired",
        UploadStatus::Pending => "pending",
        UploadStatus::Completed => "completed",
        UploadStatus::Cancelled => "cancelled",
    };
    let body = json!({
        "id": upload.id,
        "object": "upload",
        "bytes": upload.bytes,
        "created_at": upload.created.seconds(),
        "filename": upload.name,
        "purpose": upload.purpose,
        "status": status,
        "expires_at": upload.expires.seconds(),
        "file": file.map_or(Value::Null, files::shown),
    });
    Answer::json(200, body.to_string())
}

fn not_found() -> Rejection {
    Rejection::new(Code::UploadNotFound, "There is no such upload for your project.")
}

fn not_pending() -> Rejection {
    let message = "The upload was completed or cancelled, or its hour is over. Create another one.";
    Rejection::new(Code::UploadNotPending, message)
}
