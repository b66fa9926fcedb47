//! The bytes that are sent for each fault. Knows no sockets.

use std::time::Duration;

use crate::answers::{self, Event, Parts, Shape, UsageAt};
use crate::fault::Fault;
use crate::request::Request;

/// One step on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Send(Vec<u8>),
    Pause(Duration),
    /// Sends the same bytes again and again until the client disconnects.
    Repeat(Vec<u8>, Duration),
    /// Sends nothing until the client disconnects.
    Hang,
    Close,
    Reset,
}

const DRIP: Duration = Duration::from_millis(20);
const SLOW: Duration = Duration::from_millis(100);
const SLOW_HEAD: Duration = Duration::from_millis(300);
const PAGE: &str =
    "<!doctype html>\n<html><head><title>Welcome to nginx!</title></head><body>hello</body></html>\n";

/// The line endings of a stream, and extra content between the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lines {
    Plain,
    CrLf,
    Cr,
    Bom,
    Comments,
}

/// The steps for a fault. `count` is the number of this request among those with the same fault, from 1.
pub(crate) fn script(fault: Fault, request: &Request, count: usize) -> Vec<Step> {
    let model = request.json().get("model").and_then(|model| model.as_str()).unwrap_or_default().to_owned();
    let answer = Answer { shape: shape(request), stream: request.wants_stream(), model };
    let list = request.method == "GET" && request.path.starts_with("/v1/models");
    match fault {
        Fault::Good | Fault::SlowHead if list => vec![Step::Send(model_list(request))],
        Fault::Good if request.method == "GET" => vec![Step::Send(plain("200 OK", "text/plain", "ok"))],
        _ => answer
            .connection(fault, count)
            .or_else(|| answer.head(fault, request))
            .unwrap_or_else(|| answer.body(fault)),
    }
}

fn shape(request: &Request) -> Shape {
    if request.path.contains("/messages") {
        Shape::Messages
    } else if request.path.contains("/chat/") {
        Shape::Chat
    } else {
        Shape::Completions
    }
}

/// A list with every fault as a model.
fn model_list(request: &Request) -> Vec<u8> {
    let anthropic = request.header("anthropic-version").is_some();
    let card = |fault: &Fault| {
        let mut card = serde_json::json!({"id": fault.name(), "object": "model", "created": 1_790_000_000});
        if let Some(fields) = card.as_object_mut() {
            fields.insert("max_model_len".to_owned(), 4096.into());
        }
        card
    };
    let data: Vec<_> = Fault::ALL.iter().map(card).collect();
    let mut list = serde_json::json!({"data": data});
    if let Some(fields) = list.as_object_mut() {
        match anthropic {
            true => fields.insert("has_more".to_owned(), false.into()),
            false => fields.insert("object".to_owned(), "list".into()),
        };
    }
    plain("200 OK", "application/json", &list.to_string())
}

/// A whole response.
fn plain(status: &str, kind: &str, body: &str) -> Vec<u8> {
    with_headers(status, &format!("content-type: {kind}\r\nx-request-id: fault-server-1\r\n"), body)
}

fn with_headers(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn stream_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nx-request-id: fault-server-1\r\n\
      transfer-encoding: chunked\r\n\r\n"
        .to_vec()
}

/// A complete stream with these data fields as events.
pub fn event_stream<'a>(data: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
    let mut bytes = stream_head();
    for data in data {
        bytes.extend(chunk(format!("data: {data}\n\n").as_bytes()));
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

fn written(event: &Event, lines: Lines) -> Vec<u8> {
    let (name, data) = event;
    let name = if name.is_empty() { String::new() } else { format!("event: {name}\n") };
    let text = match lines {
        Lines::Comments => format!(": keep-alive\n\n{name}: within\ndata: {data}\n: behind\n\n:\n\n"),
        _ => format!("{name}data: {data}\n\n"),
    };
    match lines {
        Lines::CrLf => text.replace('\n', "\r\n").into_bytes(),
        Lines::Cr => text.replace('\n', "\r").into_bytes(),
        _ => text.into_bytes(),
    }
}

struct Answer {
    shape: Shape,
    stream: bool,
    model: String,
}

impl Answer {
    /// Faults of the connection: there is no answer, or one that has nothing to do with the request.
    fn connection(&self, fault: Fault, count: usize) -> Option<Vec<Step>> {
        let send = |text: &str| Step::Send(text.as_bytes().to_vec());
        Some(match fault {
            Fault::NoHead => vec![Step::Hang],
            Fault::SlowHead => [vec![Step::Pause(SLOW_HEAD)], self.good()].concat(),
            Fault::CloseBeforeHead => vec![Step::Close],
            Fault::ResetBeforeHead => vec![Step::Reset],
            Fault::NotHttp => vec![send("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"), Step::Close],
            Fault::EndlessHeaders => {
                let many = "x-filler: 0123456789012345678901234567890123456789\r\n".repeat(100);
                vec![send("HTTP/1.1 200 OK\r\n"), Step::Repeat(many.into_bytes(), Duration::ZERO)]
            }
            Fault::DrippingHeaders => {
                vec![send("HTTP/1.1 200 OK\r\n"), Step::Repeat(b"x-filler: 0\r\n".to_vec(), DRIP)]
            }
            Fault::EndlessInterim => {
                vec![Step::Repeat(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n".to_vec(), DRIP)]
            }
            Fault::EndlessError => vec![
                send(
                    "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n",
                ),
                Step::Repeat(chunk(&[b'x'; 8192]), Duration::ZERO),
            ],
            Fault::Flaky if count.is_multiple_of(2) => self.good(),
            _ => return None,
        })
    }

    /// Faults in the response head.
    fn head(&self, fault: Fault, request: &Request) -> Option<Vec<Step>> {
        let error = |kind: &str, message: &str| answers::error(self.shape, kind, message).to_string();
        let json = "content-type: application/json\r\n";
        let response = match fault {
            Fault::Html => plain("200 OK", "text/html; charset=utf-8", PAGE),
            Fault::Empty => {
                plain("200 OK", if self.stream { "text/event-stream" } else { "application/json" }, "")
            }
            Fault::NoContent => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
            Fault::Redirect => {
                let to = "location: http://127.0.0.1:1/v1/elsewhere?token=secret\r\n";
                with_headers("307 Temporary Redirect", to, "")
            }
            Fault::HugeHeaders => {
                let filler =
                    format!("content-type: application/json\r\nx-filler: {}\r\n", "x".repeat(100 << 10));
                with_headers(
                    "200 OK",
                    &filler,
                    &answers::whole(self.shape, &self.model, Parts::GOOD).to_string(),
                )
            }
            Fault::RateLimited => {
                let headers = format!("{json}retry-after: 7\r\n");
                with_headers("429 Too Many Requests", &headers, &error("rate_limit_error", "slow down"))
            }
            Fault::LimitHeaders => {
                let headers = format!(
                    "{json}x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: 1m30s\r\n\
                     x-ratelimit-remaining-tokens: 900\r\nx-ratelimit-reset-tokens: 6m0s\r\n"
                );
                with_headers("429 Too Many Requests", &headers, &error("rate_limit_error", "slow down"))
            }
            Fault::Unauthorized => {
                let key = request.header("authorization").or_else(|| request.header("x-api-key"));
                let message = format!("Incorrect API key provided: {}", key.unwrap_or("none"));
                plain("401 Unauthorized", "application/json", &error("authentication_error", &message))
            }
            Fault::NotFound => plain("404 Not Found", "application/json", r#"{"detail":"Not Found"}"#),
            Fault::TooLong => {
                let message = "This model's maximum context length is 4096 tokens";
                plain("400 Bad Request", "application/json", &error("invalid_request_error", message))
            }
            Fault::ServerError | Fault::Flaky => {
                plain("500 Internal Server Error", "application/json", &error("server_error", "it broke"))
            }
            Fault::Gzip => {
                let headers = format!("{json}content-encoding: gzip\r\n");
                with_headers("200 OK", &headers, "\u{1f}no gzip really")
            }
            _ => return None,
        };
        Some(vec![Step::Send(response)])
    }

    /// Faults in the body, and good answers of all forms.
    fn body(&self, fault: Fault) -> Vec<Step> {
        match fault {
            Fault::AlwaysWhole => return self.whole(Parts::GOOD),
            Fault::AlwaysStream => return self.events(Parts::GOOD, Lines::Plain),
            Fault::Bytewise => return bytewise(&self.good()),
            _ => {}
        }
        let parts = match fault {
            Fault::NoFinish => Parts { finish: false, ..Parts::GOOD },
            Fault::NoEnd => Parts { finish: false, done: false, usage: UsageAt::Nowhere },
            Fault::NoDone => Parts { done: false, ..Parts::GOOD },
            Fault::NoUsage => Parts { usage: UsageAt::Nowhere, ..Parts::GOOD },
            Fault::DoubledUsage => Parts { usage: UsageAt::Twice, ..Parts::GOOD },
            Fault::CumulativeUsage => Parts { usage: UsageAt::Everywhere, ..Parts::GOOD },
            _ => Parts::GOOD,
        };
        if self.stream { self.broken_stream(fault, parts) } else { self.broken_whole(fault, parts) }
    }

    fn broken_stream(&self, fault: Fault, parts: Parts) -> Vec<Step> {
        let lines = match fault {
            Fault::Crlf => Lines::CrLf,
            Fault::Cr => Lines::Cr,
            Fault::Bom => Lines::Bom,
            Fault::Comments => Lines::Comments,
            _ => Lines::Plain,
        };
        let good = self.events(parts, lines);
        let send = |bytes: &[u8]| Step::Send(chunk(bytes));
        let end = Step::Send(b"0\r\n\r\n".to_vec());
        // The head and two events.
        let begun = || good.iter().take(3).cloned().collect::<Vec<_>>();
        let after = |more: Vec<Step>| [begun(), more].concat();
        let only = |more: Vec<Step>| [vec![Step::Send(stream_head())], more].concat();
        match fault {
            Fault::Slow => good.into_iter().flat_map(|step| [Step::Pause(SLOW), step]).collect(),
            Fault::ErrorInside200 => {
                after(vec![send(&written(&answers::error_event(self.shape), Lines::Plain)), end])
            }
            Fault::Stall => after(vec![Step::Hang]),
            Fault::Cut => after(vec![send(b"data: {\"id\":\"chat"), Step::Close]),
            Fault::Reset => after(vec![send(b"data: {\"id\":\"chat"), Step::Pause(DRIP), Step::Reset]),
            Fault::CutClean => after(vec![send(b"data: {\"id\":\"chat"), end]),
            Fault::Short => after(vec![Step::Send(b"ff\r\ndata: {".to_vec()), Step::Close]),
            Fault::BadChunk => after(vec![Step::Send(b"zz\r\ndata: {}\n\n\r\n".to_vec()), Step::Hang]),
            Fault::AfterDone => {
                let more: Event = ("", r#"{"choices":[{"index":0,"delta":{"content":"late"}}]}"#.to_owned());
                let mut steps = good;
                steps.pop();
                [steps, vec![send(&written(&more, Lines::Plain)), end]].concat()
            }
            Fault::HtmlInDisguise => only(vec![send(PAGE.as_bytes()), end]),
            Fault::EndlessComments => only(vec![Step::Repeat(chunk(b": still here\n\n"), DRIP)]),
            Fault::TenMbLine => {
                let piece = chunk(&[b'x'; 100_000]);
                let pieces = std::iter::repeat_n(Step::Send(piece), 100);
                [begun(), vec![send(b"data: ")], pieces.collect(), vec![send(b"\n\n"), end]].concat()
            }
            Fault::EndlessBody => {
                after(vec![send(b"data: "), Step::Repeat(chunk(&[b'x'; 8192]), Duration::ZERO)])
            }
            Fault::NotUtf8 => after(vec![send(b"data: \xff\xfe\n\n"), end]),
            _ => good,
        }
    }

    fn broken_whole(&self, fault: Fault, parts: Parts) -> Vec<Step> {
        let body = answers::whole(self.shape, &self.model, parts).to_string();
        let half = body.get(..body.len() / 2).unwrap_or_default();
        let promised = |sent: &str| {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
            Step::Send(format!("{head}content-length: {}\r\n\r\n{sent}", body.len()).into_bytes())
        };
        let chunked = |sent: &[u8]| {
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
            Step::Send([head.as_bytes(), &chunk(sent)].concat())
        };
        let json = |body: &str| Step::Send(plain("200 OK", "application/json", body));
        match fault {
            Fault::Slow => vec![Step::Pause(SLOW), json(&body)],
            Fault::ErrorInside200 => {
                vec![json(&answers::error(self.shape, "server_error", "The server had an error").to_string())]
            }
            Fault::Stall => vec![promised(half), Step::Hang],
            Fault::Cut | Fault::Short => vec![promised(half), Step::Close],
            Fault::Reset => vec![promised(half), Step::Pause(DRIP), Step::Reset],
            Fault::CutClean => vec![json(half)],
            Fault::BadChunk => {
                vec![chunked(half.as_bytes()), Step::Send(b"zz\r\n{}\r\n".to_vec()), Step::Hang]
            }
            Fault::HtmlInDisguise => vec![json(PAGE)],
            Fault::EndlessComments => vec![chunked(b" "), Step::Repeat(chunk(b" "), DRIP)],
            Fault::EndlessBody => vec![chunked(b"{\""), Step::Repeat(chunk(&[b'x'; 8192]), Duration::ZERO)],
            Fault::NotUtf8 => {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n";
                vec![Step::Send([head.as_bytes(), b"{\"a\":\"\xff\"}"].concat())]
            }
            _ => vec![json(&body)],
        }
    }

    fn good(&self) -> Vec<Step> {
        if self.stream { self.events(Parts::GOOD, Lines::Plain) } else { self.whole(Parts::GOOD) }
    }

    fn whole(&self, parts: Parts) -> Vec<Step> {
        let body = answers::whole(self.shape, &self.model, parts).to_string();
        vec![Step::Send(plain("200 OK", "application/json", &body))]
    }

    /// The head, one chunk per event, and the end of the transfer.
    fn events(&self, parts: Parts, lines: Lines) -> Vec<Step> {
        let mut steps = vec![Step::Send(stream_head())];
        if lines == Lines::Bom {
            steps.push(Step::Send(chunk("\u{feff}".as_bytes())));
        }
        let events = answers::events(self.shape, &self.model, parts);
        steps.extend(events.iter().map(|event| Step::Send(chunk(&written(event, lines)))));
        steps.push(Step::Send(b"0\r\n\r\n".to_vec()));
        steps
    }
}

fn bytewise(steps: &[Step]) -> Vec<Step> {
    let mut single = Vec::new();
    for step in steps {
        match step {
            Step::Send(bytes) => single.extend(bytes.iter().map(|byte| Step::Send(vec![*byte]))),
            other => single.push(other.clone()),
        }
    }
    single
}
