//! Parses bodies about files and uploads, in OpenAI's dialect. Knows no store, no multipart form and no contents of
//! files.
//!
//! Source: <https://platform.openai.com/docs/api-reference/files>, <https://platform.openai.com/docs/api-reference/uploads>.

use headrace_domain::Code;

use crate::fault::{BadRequest, FieldFault, Read};
use crate::json::JsonReader;
use crate::limits::WireLimits;

/// The allowed purposes of files. The server reads only files for batches. It stores and returns all others.
const PURPOSES: [&str; 6] = ["assistants", "batch", "evals", "fine-tune", "user_data", "vision"];
/// The allowed lifetimes of a file after its creation, in seconds. OpenAI's bounds.
const KEPT_SECONDS: std::ops::RangeInclusive<u64> = 3_600..=2_592_000;
/// The longest name of a file, in bytes. Common file systems have the same limit.
pub const MAX_FILE_NAME_BYTES: usize = 255;
/// Limit for the parts of an upload.
const MAX_PARTS: usize = 10_000;

/// The body that creates an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadBody {
    /// The name of the future file.
    pub name: String,
    /// The purpose of the future file.
    pub purpose: String,
    /// The size of the future file, in bytes.
    pub bytes: u64,
    /// The media type as the client sent it.
    pub mime: String,
    /// Seconds for which the file will be kept. `None` if the client set no lifetime.
    pub kept_seconds: Option<u64>,
}

/// The body that completes an upload.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CompleteBody {
    /// The ids of its parts, in order.
    pub parts: Vec<String>,
    /// The MD5 digest that the file must have, in hexadecimal.
    pub md5: Option<String>,
}

/// Checks the purpose of a file.
///
/// # Errors
/// [`BadRequest`] lists the allowed purposes.
pub fn file_purpose(purpose: &str) -> Result<(), BadRequest> {
    Ok(check_purpose(purpose).map_err(|fault| fault.under_key("purpose"))?)
}

fn check_purpose(purpose: &str) -> Read<()> {
    if PURPOSES.contains(&purpose) {
        return Ok(());
    }
    Err(FieldFault::new(Code::InvalidValue, format!("it must be one of: {}", PURPOSES.join(", "))))
}

/// Returns the name of a file without its path and without control characters. The name is only shown, and never used
/// to open a file.
///
/// # Errors
/// [`BadRequest`] if no name is left, or if the name is too long.
pub fn file_name(name: &str) -> Result<String, BadRequest> {
    Ok(check_name(name).map_err(|fault| fault.under_key("filename"))?)
}

fn check_name(name: &str) -> Read<String> {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let plain: String = last.chars().filter(|c| !c.is_control()).collect();
    if plain.is_empty() || plain == "." || plain == ".." {
        return Err(FieldFault::new(Code::EmptyString, "it must name a file"));
    }
    if plain.len() > MAX_FILE_NAME_BYTES {
        let message = format!("it may have at most {MAX_FILE_NAME_BYTES} bytes");
        return Err(FieldFault::new(Code::StringAboveMaxLength, message));
    }
    Ok(plain)
}

/// Returns the lifetime of a file in seconds, from the form fields `expires_after[anchor]` and
/// `expires_after[seconds]`. `None` if both are absent.
///
/// # Errors
/// [`BadRequest`] names the field.
pub fn kept_for(anchor: Option<&str>, seconds: Option<&str>) -> Result<Option<u64>, BadRequest> {
    Ok(check_kept(anchor, seconds).map_err(|fault| fault.under_key("expires_after"))?)
}

fn check_kept(anchor: Option<&str>, seconds: Option<&str>) -> Read<Option<u64>> {
    if anchor.is_none() && seconds.is_none() {
        return Ok(None);
    }
    if anchor != Some("created_at") {
        return Err(FieldFault::at("anchor", Code::InvalidValue, "it must be `created_at`"));
    }
    let seconds = seconds.ok_or_else(|| FieldFault::missing("seconds"))?;
    let seconds = seconds.parse().ok().filter(|seconds| KEPT_SECONDS.contains(seconds));
    let (least, most) = (KEPT_SECONDS.start(), KEPT_SECONDS.end());
    let message = || format!("it must be a whole number from {least} to {most}");
    seconds.map(Some).ok_or_else(|| FieldFault::at("seconds", Code::InvalidValue, message()))
}

/// Reads `{"anchor": "created_at", "seconds": …}`.
pub(crate) fn expires_after(r: &mut JsonReader<'_>) -> Read<Option<u64>> {
    let (mut anchor, mut seconds) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "anchor" => anchor = Some(r.string()?.into_owned()),
            "seconds" => seconds = Some(r.number()?.to_owned()),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    check_kept(anchor.as_deref(), seconds.as_deref())
}

/// Reads the body that creates an upload.
///
/// # Errors
/// [`BadRequest`] names the first field that is wrong or missing.
pub fn upload_body(body: &[u8], limits: &WireLimits) -> Result<UploadBody, BadRequest> {
    let mut reader = JsonReader::new(body, limits.max_json_depth, limits.max_free_form_values)?;
    Ok(read_upload(&mut reader)?)
}

fn read_upload(r: &mut JsonReader<'_>) -> Read<UploadBody> {
    let (mut name, mut purpose, mut bytes, mut mime, mut kept_seconds) = (None, None, None, None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "filename" => name = Some(check_name(&r.string()?)?),
            "purpose" => {
                let text = r.string()?.into_owned();
                check_purpose(&text)?;
                purpose = Some(text);
            }
            "bytes" => {
                let whole = r.number()?.parse::<u64>().ok().filter(|bytes| *bytes > 0);
                let fault = || {
                    FieldFault::new(Code::InvalidValue, "it must be a whole number of bytes, one at least")
                };
                bytes = Some(whole.ok_or_else(fault)?);
            }
            "mime_type" => {
                let text = r.string()?.into_owned();
                if text.len() > MAX_FILE_NAME_BYTES {
                    let message = format!("it may have at most {MAX_FILE_NAME_BYTES} bytes");
                    return Err(FieldFault::new(Code::StringAboveMaxLength, message));
                }
                mime = Some(text);
            }
            "expires_after" => kept_seconds = r.optional(expires_after)?.flatten(),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    r.end()?;
    Ok(UploadBody {
        name: name.ok_or_else(|| FieldFault::missing("filename"))?,
        purpose: purpose.ok_or_else(|| FieldFault::missing("purpose"))?,
        bytes: bytes.ok_or_else(|| FieldFault::missing("bytes"))?,
        mime: mime.ok_or_else(|| FieldFault::missing("mime_type"))?,
        kept_seconds,
    })
}

/// Reads the body that completes an upload.
///
/// # Errors
/// [`BadRequest`] names the first field that is wrong or missing.
pub fn complete_body(body: &[u8], limits: &WireLimits) -> Result<CompleteBody, BadRequest> {
    let mut reader = JsonReader::new(body, limits.max_json_depth, limits.max_free_form_values)?;
    Ok(read_complete(&mut reader)?)
}

fn read_complete(r: &mut JsonReader<'_>) -> Read<CompleteBody> {
    let (mut parts, mut md5) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "part_ids" => {
                let mut ids = Vec::new();
                r.array(MAX_PARTS, |r, _| {
                    ids.push(r.string()?.into_owned());
                    Ok(())
                })?;
                parts = Some(ids);
            }
            "md5" => {
                md5 = r.optional(|r| {
                    let text = r.string()?.to_ascii_lowercase();
                    let is_sum = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                    let fault = || FieldFault::new(Code::InvalidValue, "it must be 32 hexadecimal digits");
                    if is_sum { Ok(text) } else { Err(fault()) }
                })?;
            }
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    r.end()?;
    Ok(CompleteBody { parts: parts.ok_or_else(|| FieldFault::missing("part_ids"))?, md5 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_path() {
        for (name, expected) in [
            ("a.jsonl", Some("a.jsonl")),
            ("../../etc/passwd", Some("passwd")),
            ("C:\\a\\b.txt", Some("b.txt")),
            ("a\r\nb\0", Some("ab")),
            ("..", None),
            ("a/..", None),
            ("", None),
            ("a/", None),
        ] {
            assert_eq!(file_name(name).ok().as_deref(), expected, "{name}");
        }
        assert!(file_name(&"a".repeat(255)).is_ok());
        assert_eq!(file_name(&"a".repeat(256)).unwrap_err().code, Code::StringAboveMaxLength);
    }

    #[test]
    fn how_long_a_file_is_kept_is_within_bounds() {
        assert_eq!(kept_for(None, None).unwrap(), None);
        assert_eq!(kept_for(Some("created_at"), Some("3600")).unwrap(), Some(3600));
        for (anchor, seconds, param) in [
            (Some("created_at"), Some("3599"), "expires_after.seconds"),
            (Some("created_at"), Some("2592001"), "expires_after.seconds"),
            (Some("created_at"), Some("1e4"), "expires_after.seconds"),
            (Some("created_at"), None, "expires_after.seconds"),
            (Some("now"), Some("3600"), "expires_after.anchor"),
            (None, Some("3600"), "expires_after.anchor"),
        ] {
            assert_eq!(kept_for(anchor, seconds).unwrap_err().param.as_deref(), Some(param));
        }
    }

    #[test]
    fn bodies_of_uploads_are_read_or_refused_by_name() {
        let limits = WireLimits::default();
        let read = |body: &str| upload_body(body.as_bytes(), &limits);
        let good = r#"{"filename":"a/b.jsonl","purpose":"batch","bytes":7,"mime_type":"text/jsonl","expires_after":{"anchor":"created_at","seconds":3600}}"#;
        let expected = UploadBody {
            name: "b.jsonl".to_owned(),
            purpose: "batch".to_owned(),
            bytes: 7,
            mime: "text/jsonl".to_owned(),
            kept_seconds: Some(3600),
        };
        assert_eq!(read(good).unwrap(), expected);
        for (from, to, param) in [
            ("7", "0", "bytes"),
            ("7", "-7", "bytes"),
            ("7", "7.5", "bytes"),
            ("\"batch\"", "\"batch_output\"", "purpose"),
            ("3600", "1", "expires_after.seconds"),
            ("mime_type", "mime", "mime"),
            ("\"a/b.jsonl\"", "7", "filename"),
        ] {
            assert_eq!(read(&good.replace(from, to)).unwrap_err().param.as_deref(), Some(param), "{from}");
        }
        let read = |body: &str| complete_body(body.as_bytes(), &limits);
        let sum = "0123456789abcdef0123456789ABCDEF";
        let body = read(&format!(r#"{{"part_ids":["a","b"],"md5":"{sum}"}}"#)).unwrap();
        assert_eq!(body, CompleteBody { parts: vec!["a".into(), "b".into()], md5: Some(sum.to_lowercase()) });
        assert_eq!(read("{}").unwrap_err().param.as_deref(), Some("part_ids"));
        assert_eq!(read(r#"{"part_ids":[],"md5":"x"}"#).unwrap_err().param.as_deref(), Some("md5"));
    }
}
