//! Parses a form (`multipart/form-data`, RFC 7578) as it arrives: one field after the other, never whole in memory.
//! Everything that a client could make endless is bounded: fields, text, and data that is read ahead. Knows no field
//! and keeps nothing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::stream;
use headrace_call_api::{BodyPieces, BodyRefusal};
use headrace_call_state::Rejection;
use headrace_domain::Code;
use multer::{Field, Multipart};

/// The most fields of a form.
const MOST_FIELDS: usize = 16;
/// The most bytes of a text field.
const MOST_TEXT_BYTES: usize = 4 << 10;
/// The most characters of the boundary between two fields (RFC 2046 §5.1.1).
const MOST_BOUNDARY: usize = 70;
/// The most bytes that have been read but belong to no field yet.
const MOST_AHEAD_BYTES: u64 = 2 << 20;
/// The memory that a form reserves while it is read.
pub(crate) const FORM_MEMORY: u64 = 8 << 20;

/// A form whose fields are still arriving.
pub(crate) struct UploadForm<'b> {
    fields: Multipart<'b>,
    ahead: Arc<AtomicU64>,
    seen: usize,
}

/// One field.
pub(crate) struct FormField<'b> {
    field: Field<'b>,
    ahead: Arc<AtomicU64>,
}

/// Why reading a body stopped.
#[derive(Debug)]
enum FormStop {
    Body(BodyRefusal),
    Ahead,
}

impl fmt::Display for FormStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body(refusal) => write!(f, "{refusal:?}"),
            Self::Ahead => write!(f, "more than {MOST_AHEAD_BYTES} bytes of it belong to no field"),
        }
    }
}

impl std::error::Error for FormStop {}

impl<'b> UploadForm<'b> {
    /// Starts to read a form.
    ///
    /// # Errors
    /// The body is not a form.
    pub(crate) fn of(pieces: impl BodyPieces + 'b) -> Result<Self, Rejection> {
        let kind = pieces.content_type().unwrap_or_default();
        let boundary = multer::parse_boundary(kind).ok().filter(|line| line.len() <= MOST_BOUNDARY);
        let boundary = boundary.ok_or_else(|| bad("send it as `multipart/form-data` with a boundary"))?;
        let ahead = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&ahead);
        let body = stream::unfold((pieces, true), move |(mut pieces, first)| {
            let ahead = Arc::clone(&counted);
            async move {
                if !first {
                    // Without this, the parser would gather everything that is available before it looks at any of
                    // it.
                    tokio::task::yield_now().await;
                }
                let piece = match pieces.next().await {
                    Ok(None) => return None,
                    Ok(Some(piece)) => {
                        let waiting = ahead.fetch_add(piece.len() as u64, Ordering::Relaxed);
                        if waiting > MOST_AHEAD_BYTES { Err(FormStop::Ahead) } else { Ok(piece) }
                    }
                    Err(refusal) => Err(FormStop::Body(refusal)),
                };
                Some((piece, (pieces, false)))
            }
        });
        Ok(Self { fields: Multipart::new(body, boundary), ahead, seen: 0 })
    }

    /// The next field and its name. Skips what is left of the previous field.
    ///
    /// # Errors
    /// The body broke off or is not a form.
    pub(crate) async fn next(&mut self) -> Result<Option<(String, FormField<'b>)>, Rejection> {
        let Some(field) = self.fields.next_field().await.map_err(|error| refused(&error))? else {
            return Ok(None);
        };
        self.seen += 1;
        if self.seen > MOST_FIELDS {
            return Err(bad(&format!("it may have at most {MOST_FIELDS} fields")));
        }
        let name = field.name().unwrap_or_default().to_owned();
        Ok(Some((name, FormField { field, ahead: Arc::clone(&self.ahead) })))
    }
}

impl FormField<'_> {
    /// The file name that the client gave to this field.
    pub(crate) fn file_name(&self) -> Option<&str> {
        self.field.file_name()
    }

    /// The next bytes of the field. `None` at its end.
    ///
    /// # Errors
    /// The body broke off or is not a form.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Rejection> {
        let chunk = self.field.chunk().await.map_err(|error| refused(&error))?;
        if let Some(chunk) = &chunk {
            let taken = chunk.len() as u64;
            let less = |ahead: u64| Some(ahead.saturating_sub(taken));
            let _ = self.ahead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
        Ok(chunk)
    }

    /// The whole field as a short text.
    ///
    /// # Errors
    /// The field is too long or not text.
    pub(crate) async fn text(mut self, name: &str) -> Result<String, Rejection> {
        let mut text = Vec::new();
        while let Some(chunk) = self.next().await? {
            text.extend_from_slice(&chunk);
            if text.len() > MOST_TEXT_BYTES {
                let message = format!("`{name}`: it may have at most {MOST_TEXT_BYTES} bytes.");
                return Err(Rejection::new(Code::StringAboveMaxLength, message).with_param(name));
            }
        }
        let no_text =
            |_| Rejection::new(Code::InvalidType, format!("`{name}`: it must be text.")).with_param(name);
        String::from_utf8(text).map_err(no_text)
    }
}

/// The rejection of a field that the form does not have.
pub(crate) fn unknown_field(name: &str, known: &str) -> Rejection {
    let shown: String = name.chars().filter(|c| !c.is_control()).take(80).collect();
    let message = format!("`{shown}`: there is no such field in this form. It may have {known}.");
    Rejection::new(Code::UnknownParameter, message).keeping("The form has a field that is none of it.")
}

/// The rejection of a form without a required field.
pub(crate) fn missing_field(name: &str) -> Rejection {
    Rejection::new(Code::MissingRequiredParameter, format!("`{name}` is missing in the form."))
        .with_param(name)
}

fn refused(error: &multer::Error) -> Rejection {
    if let multer::Error::StreamReadFailed(cause) = error {
        match cause.downcast_ref::<FormStop>() {
            Some(FormStop::Body(BodyRefusal::TooLarge { limit_bytes })) => return too_large(*limit_bytes),
            Some(FormStop::Body(refusal)) => return Rejection::of_body(refusal),
            Some(FormStop::Ahead) => return bad("its headers and the lines between its fields are too long"),
            None => {}
        }
    }
    match error {
        multer::Error::IncompleteFieldData { .. }
        | multer::Error::IncompleteHeaders
        | multer::Error::IncompleteStream => bad("it ends before its last boundary"),
        _ => bad("a field of it cannot be read"),
    }
}

/// The rejection of a file that is too long.
pub(crate) fn too_large(limit_bytes: u64) -> Rejection {
    let message = format!(
        "A file may have {limit_bytes} bytes (`objects.max_file`), with what surrounds it in the form. Split it."
    );
    Rejection::new(Code::FileTooLarge, message).with_limit(
        "max_file_bytes",
        "bytes",
        limit_bytes,
        limit_bytes + 1,
    )
}

fn bad(what: &str) -> Rejection {
    Rejection::new(Code::BadForm, format!("The body is not the form that this path takes: {what}."))
}
