//! Checks a file of requests before it is sent, and reports line by line what a server would refuse. Must not know any
//! server.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use headrace_domain::Endpoint;
use headrace_wire::WireLimits;
use headrace_wire::openai::{batch_endpoint, batch_line, batch_path};
use serde_json::Value;

/// Maximum number of faults that are reported for a file.
const MOST_FAULTS: usize = 10;

/// Summary of a checked file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestFile {
    pub(super) endpoint: Endpoint,
    pub(super) count: u64,
    pub(super) bytes: u64,
}

/// Checks a file for an endpoint. Without one, the endpoint that its first request names is used.
///
/// # Errors
/// Returns why the file cannot be sent, with the number of each faulty line.
pub(super) fn read(path: &Path, endpoint: Option<Endpoint>) -> Result<RequestFile, String> {
    let name = path.display();
    let cannot = |error: std::io::Error| format!("cannot read {name}: {error}");
    let file = File::open(path).map_err(cannot)?;
    let is = file.metadata().map_err(cannot)?;
    if !is.is_file() {
        return Err(format!(
            "{name} is no file: its length has to be known before it is sent\n  try: put the requests into a file"
        ));
    }
    let mut reader = BufReader::new(file);
    let (mut read, mut line) = (RequestLines::new(endpoint), Vec::new());
    while reader.read_until(b'\n', &mut line).map_err(cannot)? > 0 {
        read.take(&line);
        line.clear();
    }
    read.end(is.len()).map_err(|faults| {
        let shown: Vec<String> =
            faults.iter().take(MOST_FAULTS).map(|fault| format!("\n  {fault}")).collect();
        let more = match faults.len().saturating_sub(MOST_FAULTS) {
            0 => String::new(),
            more => format!("\n  and {more} more"),
        };
        format!("{name} cannot be a batch, and nothing was sent:{}{more}", shown.concat())
    })
}

struct RequestLines {
    endpoint: Option<Endpoint>,
    limits: WireLimits,
    number: u64,
    count: u64,
    /// The ids so far, each with its line number.
    ids: HashMap<String, u64>,
    faults: Vec<String>,
}

impl RequestLines {
    fn new(endpoint: Option<Endpoint>) -> Self {
        let limits = WireLimits::default();
        Self { endpoint, limits, number: 0, count: 0, ids: HashMap::new(), faults: Vec::new() }
    }

    fn take(&mut self, line: &[u8]) {
        self.number = self.number.saturating_add(1);
        let line = line.trim_ascii();
        if line.is_empty() {
            return;
        }
        self.count = self.count.saturating_add(1);
        let number = self.number;
        let endpoint = match self.endpoint {
            Some(endpoint) => endpoint,
            None => match named(line) {
                Ok(endpoint) => *self.endpoint.insert(endpoint),
                Err(Some(why)) => return self.faults.push(format!("line {number}: {why}")),
                // A missing `url` is reported below, like any other missing field.
                Err(None) => Endpoint::ChatCompletions,
            },
        };
        match batch_line(line, endpoint, &self.limits) {
            Ok((id, _)) => {
                if let Some(first) = self.ids.insert(id, number) {
                    let why = format!("line {number}: line {first} has the same `custom_id`.");
                    self.faults.push(why);
                }
            }
            Err(fault) => self.faults.push(format!("line {number}: {}", fault.message)),
        }
    }

    fn end(mut self, bytes: u64) -> Result<RequestFile, Vec<String>> {
        match (self.endpoint, self.faults.is_empty(), self.count) {
            (_, true, 0) => {
                self.faults.push("there is no request in it: one JSON object a line is expected".to_owned());
                Err(self.faults)
            }
            (Some(endpoint), true, count) => Ok(RequestFile { endpoint, count, bytes }),
            _ => Err(self.faults),
        }
    }
}

/// The endpoint that a line names. The error is `None` if the line names none, and otherwise says why the endpoint
/// takes no batches.
fn named(line: &[u8]) -> Result<Endpoint, Option<String>> {
    let line: Value = serde_json::from_slice(line).map_err(|_| None)?;
    let url = line.get("url").and_then(Value::as_str).ok_or(None)?;
    batch_endpoint(url).map_err(|why| Some(format!("`url`: {why}.")))
}

/// The path of an endpoint, as request files name it.
pub(super) fn path_of(endpoint: Endpoint) -> &'static str {
    batch_path(endpoint).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: &str, url: &str) -> String {
        format!("{{\"custom_id\":\"{id}\",\"method\":\"POST\",\"url\":\"{url}\",\"body\":{{}}}}\n")
    }

    fn read_text(text: &str, endpoint: Option<Endpoint>) -> Result<RequestFile, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.jsonl");
        std::fs::write(&path, text).unwrap();
        read(&path, endpoint)
    }

    #[test]
    fn a_file_is_requests_or_says_which_line_is_none() {
        let (chat, embed) = ("/v1/chat/completions", "/v1/embeddings");
        let good = format!("{}\r\n{}", line("a", chat), line("b", chat).trim_end());
        let read = read_text(&good, None).unwrap();
        assert_eq!((read.endpoint, read.count), (Endpoint::ChatCompletions, 2));
        assert_eq!(read.bytes, good.len() as u64);
        assert_eq!(read_text(&line("a", embed), None).unwrap().endpoint, Endpoint::Embeddings);
        for (text, endpoint, said) in [
            (String::new(), None, "there is no request in it"),
            ("\n \n".to_owned(), None, "there is no request in it"),
            (format!("\n{}", line("a", "/v1/messages")), None, "line 2: `url`: it must be one of"),
            (line("a", chat), Some(Endpoint::Embeddings), "line 1: `url`: it must be the batch's endpoint"),
            (line("a", chat) + &line("b", embed), None, "line 2: `url`: it must be the batch's endpoint"),
            (line("a", chat) + "\n" + &line("a", chat), None, "line 3: line 1 has the same `custom_id`"),
            (line("a", chat) + "{\n", None, "line 2: "),
            ("[]\n".to_owned() + &line("a", chat), None, "line 1: "),
        ] {
            let why = read_text(&text, endpoint).unwrap_err();
            assert!(why.contains(said) && why.contains("nothing was sent"), "{text}: {why}");
        }
        let why = read_text(&"{}\n".repeat(12), None).unwrap_err();
        assert!(
            why.contains("line 10: ") && !why.contains("line 11: ") && why.ends_with("and 2 more"),
            "{why}"
        );
    }
}
