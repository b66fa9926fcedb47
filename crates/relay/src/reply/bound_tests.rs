//! The memory that a reader uses is bounded for every answer.

use headrace_domain::{Endpoint, ReplyEvent};

use super::lenient::{MOST_ITEMS, MOST_NAME_BYTES};
use super::*;

/// Reads the events of a stream. Returns the reader and the fault that ended the answer.
fn read(datas: &[&str]) -> (ReplyReader, Option<FaultKind>) {
    let mut reader = ReplyReader::new(Endpoint::ChatCompletions, true, 1);
    let mut out: Vec<ReplyEvent> = Vec::new();
    let fault = datas.iter().find_map(|data| reader.event(b"", data.as_bytes(), Some(&mut out)).err());
    (reader, fault.map(|fault| fault.kind))
}

fn chunk(delta: &str) -> String {
    format!(r#"{{"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#)
}

/// Lists of tiny items would take hundreds of times their bytes in memory. So would an error that is parsed as a tree.
#[test]
fn what_an_answer_takes_is_bounded_by_its_bytes() {
    let many = |item: &str, count: usize| vec![item; count].join(",");
    let most = MOST_ITEMS as usize;
    let chat = Endpoint::ChatCompletions;
    for (endpoint, body) in [
        (chat, format!(r#"{{"choices":[{}]}}"#, many("{}", most + 1))),
        (chat, format!(r#"{{"choices":[{{"message":{{"tool_calls":[{}]}}}}]}}"#, many("{}", most + 1))),
        (chat, format!(r#"{{"choices":[{}]}}"#, many(r#"{"message":{"tool_calls":[{},{}]}}"#, most / 2))),
        (Endpoint::Messages, format!(r#"{{"content":[{}]}}"#, many("{}", most + 1))),
    ] {
        let fault =
            ReplyReader::new(endpoint, false, 1).whole(body.as_bytes(), Some(&mut Vec::new())).unwrap_err();
        assert_eq!(fault.kind, FaultKind::TooMuchHeld, "{endpoint:?}");
    }
    // Every answer starts a new count.
    let fits =
        format!(r#"{{"choices":[{}]}}"#, many(r#"{"message":{"content":"a"},"finish_reason":"stop"}"#, 2));
    assert!(ReplyReader::new(chat, false, 2).whole(fits.as_bytes(), Some(&mut Vec::new())).is_ok());
    // An error that is too long for a tree is still an error.
    let error = format!(r#"{{"error":{{"message":"no","x":[{}]}}}}"#, many("0", 200_000));
    let fault = ReplyReader::new(chat, false, 1).whole(error.as_bytes(), None).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::ErrorInside(_)) && fault.message.len() < 2048, "{fault}");
}

#[test]
fn what_waits_in_a_reader_is_bounded() {
    let call = |index: usize, name: &str, arguments: &str| {
        let function = serde_json::json!({"name": name, "arguments": arguments});
        chunk(
            &serde_json::json!({"tool_calls": [{"index": index, "id": "c", "function": function}]})
                .to_string(),
        )
    };
    let open = call(0, "f", "{");
    let text = chunk(&format!(r#"{{"content":"{}"}}"#, "a".repeat(10_000)));
    let calls: Vec<String> = (0..2000).map(|index| call(index, "f", "")).collect();
    let named: Vec<String> = (0..20).map(|index| call(index, &"f".repeat(100_000), "")).collect();
    let waiting: Vec<String> = std::iter::once(open).chain(vec![text; 200]).collect();
    for datas in [calls, named, waiting] {
        let datas: Vec<&str> = datas.iter().map(String::as_str).collect();
        let (_, fault) = read(&datas);
        assert_eq!(fault, Some(FaultKind::TooMuchHeld), "{}", &datas[0][..100]);
    }
    let long = "m".repeat(100_000);
    let named =
        format!(r#"{{"id":"{long}","model":"{long}","service_tier":"{long}","choices":[{{"delta":{{}}}}]}}"#);
    let (reader, _) = read(&[&named]);
    assert_eq!(reader.model().map(str::len), Some(MOST_NAME_BYTES));
    assert_eq!(reader.upstream_id().map(str::len), Some(MOST_NAME_BYTES));
}
