//! Parses the bodies of batches, and the requests in their files. Each request is parsed only down to its body, whose
//! meaning its endpoint defines. Knows no store, and runs nothing.
//!
//! Source: <https://platform.openai.com/docs/api-reference/batch>.

use std::time::Duration;

use headrace_domain::{Code, Endpoint};

use crate::common::batch_line::{BatchLine, object_line};
use crate::common::metadata::metadata;
use crate::fault::{BadRequest, FieldFault, Read};
use crate::json::JsonReader;
use crate::limits::WireLimits;
use crate::openai::files::expires_after;

/// The longest window of a batch, in seconds. A client that sends `24h` gets all of it.
const LONGEST_WINDOW_S: u64 = 24 * 3600;
/// Limit in bytes for a client's id of a request.
const MAX_CUSTOM_ID_BYTES: usize = 512;

/// The body that creates a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchBody {
    /// The id of the file with the requests.
    pub input: String,
    /// The endpoint that the requests call.
    pub endpoint: Endpoint,
    /// The completion window as the client wrote it.
    pub window: String,
    /// The completion window as a duration.
    pub within: Duration,
    /// Labels, as a JSON object.
    pub metadata: Option<String>,
    /// Seconds for which the files of the results are kept.
    pub kept_seconds: Option<u64>,
}

/// The reason why a line of a file is not a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineFault {
    /// OpenAI's name for the fault.
    pub code: &'static str,
    /// The explanation.
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
}

/// The path by which batch requests name an endpoint. `None` if a file cannot call the endpoint.
pub const fn batch_path(endpoint: Endpoint) -> Option<&'static str> {
    match endpoint {
        Endpoint::ChatCompletions => Some("/v1/chat/completions"),
        Endpoint::Completions => Some("/v1/completions"),
        Endpoint::Embeddings => Some("/v1/embeddings"),
        Endpoint::Responses => Some("/v1/responses"),
        Endpoint::Messages | Endpoint::Rerank | Endpoint::Score => None,
    }
}

/// Returns the endpoint that the requests of a batch call by this path.
///
/// # Errors
/// A message with all valid paths.
pub fn batch_endpoint(path: &str) -> Result<Endpoint, String> {
    let found = OF_FILES.into_iter().find(|endpoint| batch_path(*endpoint) == Some(path));
    let paths = || OF_FILES.into_iter().filter_map(batch_path).collect::<Vec<_>>().join("`, `");
    found.ok_or_else(|| format!("it must be one of `{}`", paths()))
}

const OF_FILES: [Endpoint; 4] =
    [Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Embeddings, Endpoint::Responses];

/// Reads the body that creates a batch.
///
/// # Errors
/// [`BadRequest`] names the first field that is wrong or missing.
pub fn batch_body(body: &[u8], limits: &WireLimits) -> Result<BatchBody, BadRequest> {
    let mut reader = JsonReader::new(body, limits.max_json_depth, limits.max_free_form_values)?;
    Ok(read_batch(&mut reader, limits)?)
}

fn read_batch(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<BatchBody> {
    let (mut input, mut endpoint, mut window) = (None, None, None);
    let (mut labels, mut kept_seconds) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "input_file_id" => input = Some(r.string()?.into_owned()),
            "endpoint" => endpoint = Some(called(&r.string()?)?),
            "completion_window" => window = Some(within(&r.string()?)?),
            "metadata" => labels = r.optional(|r| metadata(r, limits))?,
            "output_expires_after" => kept_seconds = r.optional(expires_after)?.flatten(),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    r.end()?;
    let (window, within) = window.ok_or_else(|| FieldFault::missing("completion_window"))?;
    Ok(BatchBody {
        input: input.ok_or_else(|| FieldFault::missing("input_file_id"))?,
        endpoint: endpoint.ok_or_else(|| FieldFault::missing("endpoint"))?,
        window,
        within,
        metadata: labels,
        kept_seconds,
    })
}

fn called(path: &str) -> Read<Endpoint> {
    batch_endpoint(path).map_err(|why| FieldFault::new(Code::InvalidValue, why))
}

fn within(text: &str) -> Read<(String, Duration)> {
    let within = batch_window(text).map_err(|why| FieldFault::new(Code::InvalidValue, why))?;
    Ok((text.to_owned(), within))
}

/// Parses the completion window of a batch. OpenAI accepts only `24h`. Shorter windows are Headrace's own addition.
///
/// # Errors
/// A message with the valid windows.
pub fn batch_window(text: &str) -> Result<Duration, String> {
    let told = || {
        let number = text.get(..text.len().checked_sub(1)?)?.parse::<u64>().ok()?;
        let seconds = match text.as_bytes().last()? {
            b'h' => number.checked_mul(3600)?,
            b'm' => number.checked_mul(60)?,
            b's' => number,
            _ => return None,
        };
        (1..=LONGEST_WINDOW_S).contains(&seconds).then_some(Duration::from_secs(seconds))
    };
    told().ok_or_else(|| "it must be `24h`, or a shorter time in hours, minutes or seconds: `90m`".to_owned())
}

/// Reads one line of a file of requests for an endpoint.
///
/// # Errors
/// Fails if the line is not a request. Faults within the body of the call appear only when the call runs.
pub fn batch_line(line: &[u8], endpoint: Endpoint, limits: &WireLimits) -> Result<BatchLine, LineFault> {
    let fault = |code, message: String, param: Option<&str>| LineFault {
        code,
        message,
        param: param.map(str::to_owned),
    };
    let read = JsonReader::new(line, limits.max_json_depth, limits.max_free_form_values)
        .and_then(|mut reader| read_line(&mut reader));
    let said = match read {
        Ok(said) => said,
        Err(bad) => {
            let bad = BadRequest::from(bad);
            let code = if bad.code == Code::InvalidJson { "invalid_json_line" } else { bad.code.name() };
            return Err(LineFault { code, message: bad.message, param: bad.param });
        }
    };
    let missing =
        |name: &str| fault("missing_required_parameter", format!("`{name}` is missing."), Some(name));
    let id = said.custom_id.filter(|id| !id.is_empty()).ok_or_else(|| missing("custom_id"))?;
    if id.len() > MAX_CUSTOM_ID_BYTES {
        let message = format!("`custom_id`: it may have at most {MAX_CUSTOM_ID_BYTES} bytes.");
        return Err(fault("string_above_max_length", message, Some("custom_id")));
    }
    if said.method.ok_or_else(|| missing("method"))? != "POST" {
        return Err(fault("invalid_method", "`method`: it must be `POST`.".to_owned(), Some("method")));
    }
    let url = said.url.ok_or_else(|| missing("url"))?;
    if batch_path(endpoint) != Some(url.as_str()) {
        let expected = batch_path(endpoint).unwrap_or_default();
        let message = format!("`url`: it must be the batch's endpoint, `{expected}`.");
        return Err(fault("mismatched_url", message, Some("url")));
    }
    Ok((id, said.body.ok_or_else(|| missing("body"))?))
}

#[derive(Default)]
struct BatchLineFields {
    custom_id: Option<String>,
    method: Option<String>,
    url: Option<String>,
    body: Option<String>,
}

fn read_line(r: &mut JsonReader<'_>) -> Read<BatchLineFields> {
    let mut said = BatchLineFields::default();
    r.object(|r, key| {
        match key.as_ref() {
            "custom_id" => said.custom_id = Some(r.string()?.into_owned()),
            "method" => said.method = Some(r.string()?.into_owned()),
            "url" => said.url = Some(r.string()?.into_owned()),
            "body" => said.body = Some(object_line(r)?),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    r.end()?;
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","n":[1, 2]}}"#;

    #[test]
    fn a_line_is_a_request_or_says_what_it_lacks() {
        let limits = WireLimits::default();
        let read = |line: &str| batch_line(line.as_bytes(), Endpoint::ChatCompletions, &limits);
        assert_eq!(read(LINE).unwrap(), ("a".to_owned(), r#"{"model":"m","n":[1, 2]}"#.to_owned()));
        for (from, to, code, param) in [
            ("{\"custom", "{custom", "invalid_json_line", None),
            ("}}", "}", "invalid_json_line", None),
            ("\"a\"", "\"\"", "missing_required_parameter", Some("custom_id")),
            ("custom_id", "id", "unknown_parameter", Some("id")),
            ("POST", "GET", "invalid_method", Some("method")),
            ("chat/completions", "embeddings", "mismatched_url", Some("url")),
            (r#"{"model":"m","n":[1, 2]}"#, "[]", "invalid_type", Some("body")),
            (r#","body":{"model":"m","n":[1, 2]}"#, "", "missing_required_parameter", Some("body")),
        ] {
            assert!(LINE.contains(from));
            let fault = read(&LINE.replacen(from, to, 1)).unwrap_err();
            assert_eq!((fault.code, fault.param.as_deref()), (code, param), "{from}");
        }
        assert!(read("").is_err() && batch_line(b"\xff", Endpoint::ChatCompletions, &limits).is_err());
        let long = LINE.replace("\"a\"", &format!("\"{}\"", "a".repeat(513)));
        assert_eq!(read(&long).unwrap_err().code, "string_above_max_length");
    }

    #[test]
    fn bodies_of_batches_are_read_or_refused_by_name() {
        let limits = WireLimits::default();
        let read = |body: &str| batch_body(body.as_bytes(), &limits);
        let good = r#"{"input_file_id":"f","endpoint":"/v1/responses","completion_window":"24h","metadata":{"a":"b"},
            "output_expires_after":{"anchor":"created_at","seconds":3600}}"#;
        let body = read(good).unwrap();
        assert_eq!(
            (body.endpoint, body.within.as_secs(), body.kept_seconds),
            (Endpoint::Responses, 86_400, Some(3600))
        );
        assert_eq!(read(&good.replace("24h", "90m")).unwrap().within.as_secs(), 5400);
        for (from, to, param) in [
            ("/v1/responses", "/v1/messages", "endpoint"),
            ("24h", "25h", "completion_window"),
            ("24h", "0s", "completion_window"),
            ("24h", "h", "completion_window"),
            ("24h", "", "completion_window"),
            ("24h", "1é", "completion_window"),
            ("input_file_id", "file", "file"),
            ("\"b\"", "1", "metadata.a"),
            ("3600", "60", "output_expires_after.seconds"),
        ] {
            assert_eq!(
                read(&good.replacen(from, to, 1)).unwrap_err().param.as_deref(),
                Some(param),
                "{from} {to}"
            );
        }
    }
}
