//! The last event of a stream is read without its blank line and without a line end, in both dialects and for every
//! split of its bytes.

use headrace_domain::Endpoint;
use headrace_engine_api::RelayEvent;
use headrace_fault_server::FaultServer;
use headrace_upstream::{Upstream, UpstreamKind};

use crate::calls::{all, ask, spec};

/// A stream of events in one chunk, with a regular end of the transfer.
pub(crate) fn chunked(body: &str) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).into_bytes()
}

/// The same stream in chunks of one byte. The connection is cut before the end of the transfer.
fn cut(body: &str) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunks: String = body.chars().map(|byte| format!("1\r\n{byte}\r\n")).collect();
    format!("{head}{chunks}no chunk\r\n").into_bytes()
}

#[tokio::test]
async fn a_last_event_without_its_blank_line_is_read() {
    let first = "data: {\"a\":1}\n\n";
    for (kind, endpoint, end, read) in [
        (UpstreamKind::OpenAi, Endpoint::ChatCompletions, "data: [DONE]\n", Some("[DONE]")),
        (UpstreamKind::OpenAi, Endpoint::ChatCompletions, "data: [DONE]", Some("[DONE]")),
        (UpstreamKind::OpenAi, Endpoint::ChatCompletions, "data: {\"usage\":1}\n", Some("{\"usage\":1}")),
        (UpstreamKind::OpenAi, Endpoint::ChatCompletions, "data: {\"usage\":", None),
        (UpstreamKind::OpenAi, Endpoint::ChatCompletions, "data: [DO", None),
        (
            UpstreamKind::Anthropic,
            Endpoint::Messages,
            "event: message_stop\ndata: {\"b\":2}\n",
            Some("{\"b\":2}"),
        ),
        (
            UpstreamKind::Anthropic,
            Endpoint::Messages,
            "event: message_stop\ndata: {\"b\":2}",
            Some("{\"b\":2}"),
        ),
    ] {
        for is_cut in [false, true] {
            let body = format!("{first}{end}");
            let bytes = if is_cut { cut(&body) } else { chunked(&body) };
            let fault_server = FaultServer::start_with(move |_| Some(bytes.clone())).await.unwrap();
            let upstream = Upstream::new(spec(&fault_server.url(), kind)).unwrap();
            let events = all(&upstream, ask(endpoint, "good", true)).await;
            let data: Vec<String> = events
                .iter()
                .filter_map(|event| match event {
                    RelayEvent::Event(event) => {
                        assert!(event.raw.ends_with(b"\n\n"), "{end:?}: {:?}", event.raw);
                        Some(String::from_utf8(event.data.to_vec()).unwrap())
                    }
                    _ => None,
                })
                .collect();
            let expected: Vec<&str> = ["{\"a\":1}"].into_iter().chain(read).collect();
            assert_eq!(data, expected, "{end:?} cut {is_cut}");
            let failed = matches!(events.last(), Some(RelayEvent::Failed(_)));
            assert_eq!(failed, is_cut || read.is_none(), "{end:?} cut {is_cut}: {events:?}");
        }
    }
}
