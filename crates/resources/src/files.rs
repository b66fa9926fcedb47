//! Files: upload by form, list, download and delete. Foreign and missing ids answer alike. Knows nothing of their
//! contents.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use headrace_call_api::{BodyPieces, BodyRefusal, BodySource, MemoryReservation};
use headrace_call_state::{Answer, AnswerBody, Rejection, delivery, keep_memory};
use headrace_domain::{Code, Stage};
use headrace_identity::Principal;
use headrace_objects::{FileDraft, FileRecord, ItemPage, ItemRecord, fresh_id};
use headrace_wire::openai::{file_name, file_purpose, kept_for};
use serde_json::{Value, json};

use crate::draft_writer::DraftWriter;
use crate::form::{FORM_MEMORY, FormField, UploadForm, missing_field, too_large, unknown_field};
use crate::object_query::{ListParameters, ObjectQuery};
use crate::reads::ROW_BYTES;
use crate::requests::{ObjectAnswer, owned};
use crate::resources::StoredResources;
use crate::upload_claim::UploadClaim;

/// Bytes of a file that may wait for a reader before reading pauses, and the memory that a download reserves.
const READER_BYTES: usize = 256 << 10;
const READER_MEMORY: u64 = 1 << 20;
/// The most bytes of the form around a file.
const FORM_AROUND_BYTES: u64 = 64 << 10;
/// The fields of the upload form.
const FIELDS: &str = "`purpose`, `file`, `expires_after[anchor]` and `expires_after[seconds]`";

/// The text fields of an upload form.
#[derive(Default)]
struct FileFields {
    purpose: Option<String>,
    anchor: Option<String>,
    seconds: Option<String>,
}

impl StoredResources {
    /// `POST /v1/files`
    pub(crate) async fn create_file(
        &self,
        principal: &Principal,
        body: impl BodySource,
        claim: Option<&dyn UploadClaim>,
    ) -> ObjectAnswer {
        let (_memory, pieces) = self.open_form(principal, body)?;
        let (mut form, mut said, mut written) = (UploadForm::of(pieces)?, FileFields::default(), None);
        while let Some((name, field)) = form.next().await? {
            match name.as_str() {
                "purpose" => said.purpose = Some(checked_purpose(field).await?),
                "expires_after[anchor]" => said.anchor = Some(field.text(&name).await?),
                "expires_after[seconds]" => said.seconds = Some(field.text(&name).await?),
                "file" if written.is_none() => {
                    written = Some(self.take_file(principal, field, claim.is_some()).await?)
                }
                _ => return Err(unknown_field(&name, FIELDS)),
            }
        }
        let purpose = said.purpose.ok_or_else(|| missing_field("purpose"))?;
        let writing = written.ok_or_else(|| missing_field("file"))?;
        let kept = kept_for(said.anchor.as_deref(), said.seconds.as_deref())?;
        // Files of batch requests are kept as long as their results.
        let usual = (purpose == "batch").then_some(self.config().retention);
        let kept = kept.map(Duration::from_secs).or(usual);
        if let Some(claim) = claim {
            let seconds = kept.map_or(0, |kept| kept.as_secs()).to_le_bytes();
            claim.claim(writing.content(&[purpose.as_bytes(), &seconds])).await?;
        }
        let finished = writing.finish(|draft| {
            if let FileDraft::File(file) = draft {
                file.expires = kept.map(|kept| file.created.after(kept));
                file.purpose = purpose;
            }
        });
        match finished.await? {
            Some(FileDraft::File(file)) => Ok(Answer::json(200, shown(&file).to_string())),
            _ => Err(not_found()),
        }
    }

    /// Opens a body as a form. Returns its pieces and the memory that reading it takes.
    pub(crate) fn open_form(
        &self,
        principal: &Principal,
        body: impl BodySource,
    ) -> Result<(MemoryReservation, impl BodyPieces), Rejection> {
        let most = self.file_limits()?.max_file_bytes;
        let memory = self.memory().reserve(&principal.key, FORM_MEMORY);
        let memory = memory.map_err(|full| full.at(Stage::Receive))?;
        let pieces = body.open(most.saturating_add(FORM_AROUND_BYTES)).map_err(|refusal| match refusal {
            BodyRefusal::TooLarge { .. } => too_large(most),
            other => Rejection::of_body(&other),
        })?;
        Ok((memory, pieces))
    }

    async fn take_file<'g>(
        &'g self,
        principal: &Principal,
        mut field: FormField<'_>,
        is_hashed: bool,
    ) -> Result<DraftWriter<'g>, Rejection> {
        let name = field.file_name().ok_or_else(|| {
            let message = "`file`: the form must give it a file name.";
            Rejection::new(Code::BadForm, message).with_param("file")
        })?;
        let created = self.now();
        let draft = FileDraft::File(FileRecord {
            id: fresh_id("file", created).replacen('_', "-", 1),
            project: principal.project.clone(),
            created,
            expires: None,
            bytes: 0,
            name: file_name(name)?,
            purpose: String::new(),
        });
        let mut writing = DraftWriter::begin(self, draft, is_hashed).await?;
        while let Some(chunk) = field.next().await? {
            writing.add(&chunk).await?;
        }
        Ok(writing)
    }

    /// `GET /v1/files`
    pub(crate) async fn list_files(&self, principal: &Principal, query: &[(String, String)]) -> ObjectAnswer {
        let ObjectQuery { page, purpose, .. } = ObjectQuery::read_of(query, &ListParameters::FILES)?;
        let memory = self.reserve_page(principal, &page, ROW_BYTES)?;
        let (project, now) = (principal.project.clone(), self.now());
        let listed = move |store: &dyn headrace_objects::BatchStore| {
            store.files(&project, purpose.as_deref(), &page, now)
        };
        let (files, has_more) = self.objects().ask_files(listed).await?;
        let item = |file: FileRecord| ItemRecord { json: shown(&file).to_string(), id: file.id };
        let page = ItemPage { items: files.into_iter().map(item).collect(), has_more };
        Ok(keep_memory(memory, Answer::json(200, page.json())))
    }

    /// `GET /v1/files/ID`
    pub(crate) async fn show_file(&self, principal: &Principal, id: &str) -> ObjectAnswer {
        Ok(Answer::json(200, shown(&self.file_of(principal, id).await?).to_string()))
    }

    pub(crate) async fn file_of(&self, principal: &Principal, id: &str) -> Result<FileRecord, Rejection> {
        let ((project, id), now) = (owned(principal, id), self.now());
        let found = self.objects().ask_files(move |store| store.file(&project, &id, now)).await?;
        found.ok_or_else(not_found)
    }

    /// `DELETE /v1/files/ID`
    pub(crate) async fn delete_file(&self, principal: &Principal, id: &str) -> ObjectAnswer {
        let ((project, own), now) = (owned(principal, id), self.now());
        if !self.objects().ask_files(move |store| store.delete_file(&project, &own, now)).await? {
            return Err(not_found());
        }
        Ok(Answer::json(200, json!({"id": id, "object": "file", "deleted": true}).to_string()))
    }

    /// `GET /v1/files/ID/content`
    pub(crate) async fn file_content(self: &Arc<Self>, principal: &Principal, id: &str) -> ObjectAnswer {
        let file = self.file_of(principal, id).await?;
        let memory = self.memory().reserve(&principal.key, READER_MEMORY);
        let memory = memory.map_err(|full| full.at(Stage::Deliver))?;
        let (sender, body) = delivery::channel(READER_BYTES, Arc::new(memory));
        let (resources, bytes) = (Arc::clone(self), file.bytes);
        tokio::spawn(async move {
            let mut at = 0;
            while at < bytes {
                if sender.abort_reason().is_some() {
                    return;
                }
                if sender.is_full() {
                    sender.reader_moved().await;
                    continue;
                }
                let id = file.id.clone();
                match resources.objects().ask_files(move |store| store.read(&id, at)).await {
                    // The file was removed meanwhile.
                    Ok(some) if some.is_empty() => return sender.break_off(),
                    Ok(some) => {
                        at += some.len() as u64;
                        sender.push(&mut BytesMut::from(&some[..]), 0);
                    }
                    Err(_) => return sender.break_off(),
                }
            }
            sender.finish();
        });
        let body = AnswerBody::Long { body, bytes };
        Ok(Answer { status: 200, content_type: "application/octet-stream", headers: Vec::new(), body })
    }
}

async fn checked_purpose(field: FormField<'_>) -> Result<String, Rejection> {
    let purpose = field.text("purpose").await?;
    file_purpose(&purpose)?;
    Ok(purpose)
}

/// A file as JSON.
pub(crate) fn shown(file: &FileRecord) -> Value {
    let mut shown = json!({
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created.seconds(),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": null,
    });
    if let Some(expires) = file.expires {
        shown["expires_at"] = json!(expires.seconds());
    }
    shown
}

fn not_found() -> Rejection {
    Rejection::new(Code::FileNotFound, "There is no such file for your project.")
}
