//! A request, parsed just enough to answer it. Knows no fault's answer.

use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

use crate::fault::Fault;

/// Maximum bytes of a request. Larger requests are not read further.
const MAX_REQUEST_BYTES: usize = 64 << 20;

/// A received request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The path with its query, without the leading fault name.
    pub path: String,
    /// Header names in lower case, and their values.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// The fault that the path names.
    pub(crate) by_path: Option<Fault>,
}

impl Request {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body parsed as JSON. `null` if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The fault that the request chose by its path, or else by its model. [`Fault::Good`] if neither names a fault.
    pub fn fault(&self) -> Fault {
        let by_model = || self.json().get("model")?.as_str()?.parse().ok();
        self.by_path.or_else(by_model).unwrap_or(Fault::Good)
    }

    pub(crate) fn wants_stream(&self) -> bool {
        self.json().get("stream").and_then(Value::as_bool).unwrap_or(false)
    }

    /// Reads the next request of a connection. `None` if there is none. `held` keeps bytes that arrived after it.
    pub(crate) async fn read(from: &mut OwnedReadHalf, held: &mut Vec<u8>) -> Option<Self> {
        let head_end = loop {
            if let Some(at) = held.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            more(from, held).await?;
        };
        let head: Vec<u8> = held.drain(..head_end).collect();
        let mut request = Self::of_head(&String::from_utf8_lossy(&head))?;
        let length: usize = request.header("content-length").unwrap_or("0").parse().ok()?;
        while held.len() < length {
            more(from, held).await?;
        }
        request.body = held.drain(..length).collect();
        Some(request)
    }

    fn of_head(head: &str) -> Option<Self> {
        let mut lines = head.split("\r\n");
        let mut first = lines.next()?.split(' ');
        let (method, path) = (first.next()?.to_owned(), first.next()?);
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        let headers = lines.filter_map(header).collect();
        let named = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        let by_path: Option<Fault> = named.parse().ok();
        let path = match by_path {
            Some(_) => path.trim_start_matches('/').trim_start_matches(named),
            None => path,
        };
        Some(Self { method, path: path.to_owned(), headers, body: Vec::new(), by_path })
    }
}

async fn more(from: &mut OwnedReadHalf, held: &mut Vec<u8>) -> Option<()> {
    let read = from.read_buf(held).await.ok()?;
    (read > 0 && held.len() <= MAX_REQUEST_BYTES).then_some(())
}
