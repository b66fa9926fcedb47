//! A table of the faults of an answer: the kind of each fault, whether it ends the answer, and the part that remains.

use headrace_domain::{Endpoint, ReplyEvent, Usage};

use super::*;
use crate::FailureClass;

/// Reads a stream up to the end of the transport. Returns the reader, the reply events, and the fault that ended the
/// answer.
pub(super) fn read(
    endpoint: Endpoint,
    choices: u32,
    datas: &[&str],
) -> (ReplyReader, Vec<ReplyEvent>, Option<FaultKind>) {
    let mut reader = ReplyReader::new(endpoint, true, choices);
    let mut out = Vec::new();
    let fault = datas
        .iter()
        .try_for_each(|data| reader.event(b"", data.as_bytes(), Some(&mut out)).map(|_| ()))
        .and_then(|()| reader.end());
    (reader, out, fault.err().map(|fault| fault.kind))
}

/// The notes, or the fault that ended the answer.
pub(super) type Outcome<'a> = Result<&'a [FaultKind], FaultKind>;

pub(super) fn notes(reader: &ReplyReader) -> Vec<FaultKind> {
    reader.notes().iter().map(|note| note.kind).collect()
}

pub(super) fn chunk(delta: &str) -> String {
    format!(
        r#"{{"id":"chatcmpl-7","model":"m","choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#
    )
}

pub(super) const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
pub(super) const DONE: &str = "[DONE]";

/// The whole content in one line.
pub(super) fn said(events: &[ReplyEvent]) -> String {
    events
        .iter()
        .map(|event| match event {
            ReplyEvent::Text { text, .. } => text.clone(),
            ReplyEvent::Reasoning { text, .. } => format!("({text})"),
            ReplyEvent::ReasoningSignature { signature, .. } => format!("<{signature}>"),
            ReplyEvent::RedactedReasoning { data, .. } => format!("<<{data}>>"),
            ReplyEvent::ToolCallStart { index, id, name, .. } => format!("[{index} {id} {name}]"),
            ReplyEvent::ToolCallArguments { index, fragment, .. } => format!("{index}:{fragment};"),
            ReplyEvent::Finish { choice, reason } => format!("|{choice} {reason:?}"),
            ReplyEvent::Prompt { .. } => "prompt".to_owned(),
            ReplyEvent::Encoded { .. } => "encoded".to_owned(),
        })
        .collect()
}

#[test]
fn faults_that_end_a_chat() {
    use FaultKind::*;
    let text = chunk(r#"{"content":"a"}"#);
    let text = text.as_str();
    let rows: &[(&[&str], FaultKind)] = &[
        (&[], Empty),
        (&[text], BrokeOff),
        (&[DONE], NoFinishReason),
        (&["<html>"], Html),
        (&["{\"choices\":["], NotJson),
        (&["{\"choices\":}"], NotJson),
        (&["nonsense"], NotJson),
        (&["[1]"], Misshapen),
        (&["\"text\""], Misshapen),
        (&[r#"{"choices":{}}"#], Misshapen),
        (&[r#"{"choices":[{"delta":"x"}]}"#], Misshapen),
        (
            &[text, r#"{"error":{"message":"m","type":"BadRequestError","code":400}}"#],
            ErrorInside(FailureClass::BadRequest),
        ),
        (&[r#"{"error":"m"}"#], ErrorInside(FailureClass::ServerError)),
        (&[r#"{"error":{"code":429,"message":"slow down"}}"#], ErrorInside(FailureClass::RateLimited)),
        (
            &[r#"{"object":"error","message":"m","type":"x","code":503}"#],
            ErrorInside(FailureClass::Overloaded),
        ),
        (&[r#"{"detail":"m"}"#], ErrorInside(FailureClass::ServerError)),
        (&[text, r#"{"choices":[{"delta":{},"finish_reason":"abort"}]}"#], GaveUp),
        (&[text, r#"{"choices":[{"finish_reason":"insufficient_system_resource"}]}"#], GaveUp),
        (
            &[r#"{"choices":[{"delta":{"tool_calls":[{"index":3,"function":{"arguments":"{"}}]}}]}"#],
            UnknownCall,
        ),
        (
            &[r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"x"}]},"finish_reason":"stop"}]}"#],
            CallWithoutName,
        ),
    ];
    for (datas, kind) in rows {
        let (_, _, fault) = read(Endpoint::ChatCompletions, 1, datas);
        assert_eq!(fault, Some(*kind), "{datas:?}");
        assert!(kind.failure().is_some(), "{kind:?}");
    }
    let mut reader = ReplyReader::new(Endpoint::ChatCompletions, true, 1);
    let fault = reader.event(b"error", br#"{"message":"m"}"#, None).unwrap_err();
    assert_eq!(fault.to_string(), "error_inside: m");
}

#[test]
fn faults_that_a_chat_survives() {
    use FaultKind::*;
    let (a, b) = (chunk(r#"{"content":"a"}"#), chunk(r#"{"content":"b"}"#));
    let (a, b) = (a.as_str(), b.as_str());
    let rows: &[(&[&str], &[FaultKind], &str)] = &[
        (&[a, STOP], &[MissingEnd], "a|0 Stop"),
        (&[a, STOP, DONE, b, DONE], &[AfterEnd], "a|0 Stop"),
        (&[a, STOP, b, DONE], &[AfterFinish], "a|0 Stop"),
        (&[a, STOP, STOP, DONE], &[FinishTwice], "a|0 Stop"),
        (&[a, "", " ", STOP, DONE, ""], &[], "a|0 Stop"),
        (
            &[r#"{"choices":[{"index":4,"delta":{"content":"x"}}]}"#, a, STOP, DONE],
            &[ChoiceOutOfRange],
            "a|0 Stop",
        ),
        (
            &[r#"{"choices":[{"index":-1,"delta":{"content":"x"}}]}"#, a, STOP, DONE],
            &[ChoiceOutOfRange],
            "a|0 Stop",
        ),
        (&[a, r#"{"choices":[{"finish_reason":"repetition"}]}"#, DONE], &[UnknownFinishReason], "a|0 Stop"),
        (&[a, r#"{"choices":[{"finish_reason":""}]}"#, STOP, DONE], &[], "a|0 Stop"),
        (&[a, r#"{"choices":[{"finish_reason":"MAX_TOKENS"}]}"#, DONE], &[], "a|0 Length"),
        (
            &[a, r#"{"choices":[{"finish_reason":"stop","stop_reason":"\n\n"}]}"#, DONE],
            &[],
            "a|0 StopString { matched: \"\\n\\n\" }",
        ),
        (&[a, r#"{"choices":[{"finish_reason":"stop","stop_reason":128009}]}"#, DONE], &[], "a|0 Stop"),
        (
            &[a, r#"{"choices":[{"finish_reason":"stop","matched_stop":"END"}]}"#, DONE],
            &[],
            "a|0 StopString { matched: \"END\" }",
        ),
        (&[a, r#"{"choices":[{"delta":{"refusal":"no"}}]}"#, STOP, DONE], &[], "ano|0 ContentFilter"),
        (&[r#"{"choices":[],"prompt_filter_results":[{}]}"#, a, STOP, DONE], &[], "a|0 Stop"),
        (&[r#"{"choices":null,"usage":null,"x":[{"error":1}]}"#, a, STOP, DONE], &[], "a|0 Stop"),
        (&[r#"{"choices":[{"delta":null}]}"#, a, STOP, DONE], &[], "a|0 Stop"),
        (
            &[r#"{"choices":[{"delta":{"content":null,"reasoning":"r","tool_calls":null}}]}"#, a, STOP, DONE],
            &[],
            "(r)a|0 Stop",
        ),
        (
            &[
                r#"{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"r"}]},{"type":"text","text":"t"}]}}]}"#,
                STOP,
                DONE,
            ],
            &[],
            "(r)t|0 Stop",
        ),
    ];
    for (datas, noted, events) in rows {
        let (reader, out, fault) = read(Endpoint::ChatCompletions, 1, datas);
        assert_eq!(
            (fault, notes(&reader).as_slice(), said(&out).as_str()),
            (None, *noted, *events),
            "{datas:?}"
        );
        assert!(noted.iter().all(|kind| kind.failure().is_none()));
    }
    let (reader, _, fault) = read(Endpoint::ChatCompletions, 3, &[a, STOP, DONE]);
    assert_eq!((fault, notes(&reader)), (None, vec![FewerChoices]));
}

fn calls(deltas: &[&str]) -> (String, Vec<FaultKind>) {
    let mut datas: Vec<String> =
        deltas.iter().map(|calls| chunk(&format!(r#"{{"tool_calls":[{calls}]}}"#))).collect();
    datas.extend([STOP.to_owned(), DONE.to_owned()]);
    let datas: Vec<&str> = datas.iter().map(String::as_str).collect();
    let (reader, out, fault) = read(Endpoint::ChatCompletions, 1, &datas);
    assert_eq!(fault, None, "{deltas:?}");
    (said(&out), notes(&reader))
}

#[test]
fn tool_calls_as_servers_write_them() {
    use FaultKind::*;
    const F: &str = r#"{"index":0,"id":"x","function":{"name":"f","arguments":""}}"#;
    const G: &str = r#"{"index":1,"id":"y","function":{"name":"g","arguments":""}}"#;
    const ONE: &str = r#"{"index":0,"function":{"arguments":"{\"a\":"}}"#;
    const TWO: &str = r#"{"index":0,"function":{"arguments":"1}"}}"#;
    const THREE: &str = r#"{"index":1,"function":{"arguments":"{}"}}"#;
    let rows: &[(&[&str], &str, &[FaultKind])] = &[
        (&[F, ONE, TWO], "[0 x f]0:{\"a\":;0:1};", &[]),
        (&[F, ONE, TWO, G, THREE], "[0 x f]0:{\"a\":;0:1};[1 y g]1:{};", &[]),
        // Both calls begin before their arguments come. In the second row, the arguments alternate.
        (&[F, G, ONE, TWO, THREE], "[0 x f]0:{\"a\":;0:1};[1 y g]1:{};", &[]),
        (&[F, G, ONE, THREE, TWO], "[0 x f]0:{\"a\":;0:1};[1 y g]1:{};", &[]),
        // No arguments at all.
        (&[F], "[0 x f]0:{};", &[]),
        (&[F, G, THREE], "[0 x f]0:{};[1 y g]1:{};", &[]),
        // One call in one chunk, with an object as arguments.
        (
            &[r#"{"index":0,"id":"x","function":{"name":"f","arguments":{"a": 1}}}"#],
            "[0 x f]0:{\"a\": 1};",
            &[],
        ),
        // No index, and name and id in every piece.
        (
            &[
                r#"{"id":"x","function":{"name":"f","arguments":"{"}}"#,
                r#"{"id":"x","function":{"name":"f","arguments":"}"}}"#,
                r#"{"id":"y","function":{"name":"g","arguments":"{}"}}"#,
            ],
            "[0 x f]0:{;0:};[1 y g]1:{};",
            &[],
        ),
        // Two calls with the same index.
        (
            &[
                r#"{"index":0,"id":"x","function":{"name":"f","arguments":"{}"}}"#,
                r#"{"index":0,"id":"y","function":{"name":"g","arguments":"{}"}}"#,
            ],
            "[0 x f]0:{};[1 y g]1:{};",
            &[OutOfOrder],
        ),
        (
            &[r#"{"index":5,"id":"x","function":{"name":"f","arguments":"{}"}}"#],
            "[0 x f]0:{};",
            &[OutOfOrder],
        ),
        // No id, or the id of another call.
        (
            &[r#"{"index":0,"id":"","function":{"name":"f","arguments":"{}"}}"#, THREE_NAMED],
            "[0 call_chatcmpl7_0_0 f]0:{};[1 call_chatcmpl7_0_1 g]1:{};",
            &[CallIdMade],
        ),
        (
            &[r#"{"index":0,"id":"x","function":{"name":"f","arguments":"{}"}}"#, SAME_ID],
            "[0 x f]0:{};[1 call_chatcmpl7_0_1 g]1:{};",
            &[CallIdMade],
        ),
        // The name comes after some arguments.
        (
            &[r#"{"index":0,"id":"x"}"#, ONE, r#"{"index":0,"function":{"name":"f"}}"#, TWO],
            "[0 x f]0:{\"a\":;0:1};",
            &[],
        ),
        (&[F, ONE, TWO, TWO], "[0 x f]0:{\"a\":;0:1};", &[ExtraArguments]),
    ];
    for (deltas, events, noted) in rows {
        let (said, notes) = calls(deltas);
        assert_eq!(
            (said.as_str(), notes.as_slice()),
            (format!("{events}|0 ToolCalls").as_str(), *noted),
            "{deltas:?}"
        );
    }
}

const THREE_NAMED: &str = r#"{"index":1,"function":{"name":"g","arguments":"{}"}}"#;
const SAME_ID: &str = r#"{"index":1,"id":"x","function":{"name":"g","arguments":"{}"}}"#;

const START: &str = r#"{"type":"message_start","message":{"id":"msg_1","model":"c","content":[],"usage":{"input_tokens":5,"output_tokens":1}}}"#;
const TEXT: &str = r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
const HI: &str = r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}"#;
const CLOSE: &str = r#"{"type":"content_block_stop","index":0}"#;
const END: &str =
    r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}"#;
const BYE: &str = r#"{"type":"message_stop"}"#;

#[test]
fn faults_of_messages() {
    use FaultKind::*;
    let rows: &[(&[&str], Outcome<'_>, &str)] = &[
        (&[START, TEXT, HI, CLOSE, END, BYE], Ok(&[]), "hi|0 Stop"),
        (&[START, TEXT, HI, CLOSE, END], Ok(&[MissingEnd]), "hi|0 Stop"),
        (&[START, TEXT, HI, CLOSE], Err(BrokeOff), "hi"),
        (&[START, TEXT, HI, CLOSE, BYE], Ok(&[MissingFinishReason]), "hi|0 Stop"),
        (&[START, TEXT, HI, BYE], Ok(&[MissingFinishReason]), "hi|0 Stop"),
        (&[START, BYE], Ok(&[MissingFinishReason]), "|0 Stop"),
        (&[BYE], Err(NoFinishReason), ""),
        (&[START, TEXT, HI, CLOSE, END, "{broken"], Ok(&[AfterEnd, MissingEnd]), "hi|0 Stop"),
        (&[START, TEXT, HI, END, BYE, HI], Ok(&[AfterEnd]), "hi|0 Stop"),
        (&[START, r#"{"type":"ping"}"#, TEXT, HI, CLOSE, END, BYE], Ok(&[]), "hi|0 Stop"),
        (
            &[START, r#"{"type":"new_thing","x":1}"#, TEXT, HI, CLOSE, END, BYE],
            Ok(&[UnknownEvent]),
            "hi|0 Stop",
        ),
        (&[START, HI, END, BYE], Ok(&[OutOfOrder]), "hi|0 Stop"),
        (
            &[START, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#],
            Err(ErrorInside(FailureClass::Overloaded)),
            "",
        ),
        (
            &[
                START,
                r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{"}}"#,
            ],
            Err(UnknownCall),
            "",
        ),
        (
            &[
                START,
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"server_tool_use","id":"s","name":"web_search","input":{}}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{}"}}"#,
                CLOSE,
                END,
                BYE,
            ],
            Ok(&[NotCarried]),
            "|0 Stop",
        ),
        (
            &[
                START,
                TEXT,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"citations_delta","citation":{}}}"#,
                CLOSE,
                END,
                BYE,
            ],
            Ok(&[NotCarried]),
            "|0 Stop",
        ),
        (
            &[
                START,
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"f","input":{"a":1}}}"#,
                CLOSE,
                END,
                BYE,
            ],
            Ok(&[]),
            "[0 t f]0:{\"a\":1};|0 ToolCalls",
        ),
        (
            &[
                START,
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"th"}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s1"}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s2"}}"#,
                CLOSE,
                r#"{"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"d"}}"#,
                END,
                BYE,
            ],
            Ok(&[]),
            "(th)<s1s2><<d>>|0 Stop",
        ),
        (&["<html>"], Err(Html), ""),
        (&[], Err(Empty), ""),
    ];
    for (datas, expected, events) in rows {
        let (reader, out, fault) = read(Endpoint::Messages, 1, datas);
        let noted = notes(&reader);
        let outcome = fault.map_or(Ok(noted.as_slice()), Err);
        assert_eq!((outcome, said(&out).as_str()), (*expected, *events), "{datas:?}");
    }
    for (reason, ended) in [
        ("max_tokens", "Length"),
        ("model_context_window_exceeded", "Length"),
        ("tool_use", "ToolCalls"),
        ("refusal", "ContentFilter"),
        ("pause_turn", "Stop"),
    ] {
        let end = format!(r#"{{"type":"message_delta","delta":{{"stop_reason":"{reason}"}}}}"#);
        let (_, out, fault) = read(Endpoint::Messages, 1, &[START, &end, BYE]);
        assert_eq!((fault, said(&out)), (None, format!("|0 {ended}")), "{reason}");
    }
}

#[test]
fn faults_of_whole_bodies() {
    use FaultKind::*;
    let rows: &[(Endpoint, &str, Outcome<'_>, &str)] = &[
        (Endpoint::ChatCompletions, "", Err(Empty), ""),
        (Endpoint::ChatCompletions, " <!DOCTYPE html>", Err(Html), ""),
        (Endpoint::ChatCompletions, "null", Err(Misshapen), ""),
        (Endpoint::ChatCompletions, "{}", Err(Misshapen), ""),
        (Endpoint::ChatCompletions, r#"{"choices":[]}"#, Err(Misshapen), ""),
        (
            Endpoint::ChatCompletions,
            r#"{"error":{"message":"m","code":500}}"#,
            Err(ErrorInside(FailureClass::ServerError)),
            "",
        ),
        (
            Endpoint::ChatCompletions,
            r#"{"choices":[{"message":{"content":"a"}}]}"#,
            Ok(&[MissingFinishReason]),
            "a|0 Stop",
        ),
        (
            Endpoint::ChatCompletions,
            r#"{"choices":[{"message":{"content":null,"function_call":{"name":"f","arguments":"{}"}},"finish_reason":"function_call"}]}"#,
            Ok(&[CallIdMade]),
            "[0 call__0_0 f]0:{};|0 ToolCalls",
        ),
        (
            Endpoint::Completions,
            r#"{"choices":[{"text":"a","finish_reason":"length"}]}"#,
            Ok(&[]),
            "a|0 Length",
        ),
        (Endpoint::Messages, "", Err(Empty), ""),
        (
            Endpoint::Messages,
            r#"{"type":"error","error":{"type":"api_error","message":"m"}}"#,
            Err(ErrorInside(FailureClass::ServerError)),
            "",
        ),
        (Endpoint::Messages, r#"{"content":"text"}"#, Err(Misshapen), ""),
        (Endpoint::Messages, r#"{"id":"x"}"#, Err(Misshapen), ""),
        (
            Endpoint::Messages,
            r#"{"content":[{"type":"text","text":"a"}],"stop_reason":"stop_sequence","stop_sequence":"s"}"#,
            Ok(&[]),
            "a|0 StopString { matched: \"s\" }",
        ),
    ];
    for (endpoint, body, expected, events) in rows {
        let mut reader = ReplyReader::new(*endpoint, false, 1);
        let mut out = Vec::new();
        let read = reader.whole(body.as_bytes(), Some(&mut out));
        let noted = notes(&reader);
        let outcome = read.map(|_| noted.as_slice()).map_err(|fault| fault.kind);
        assert_eq!((outcome, said(&out).as_str()), (*expected, *events), "{body}");
    }
}

#[test]
fn no_fault_quotes_the_answer() {
    for data in [r#"{"choices":[{"delta":{"content":{"secret":1}}}]}"#, r#"{"choices":"secret"}"#, "secret"] {
        let mut reader = ReplyReader::new(Endpoint::ChatCompletions, true, 1);
        let fault = reader.event(b"", data.as_bytes(), None).unwrap_err();
        assert!(!fault.message.contains("secret"), "{fault}");
    }
}

#[test]
fn a_look_is_not_fooled_by_what_an_answer_says() {
    let content =
        r#"{"content":"\"usage\":{\"prompt_tokens\":9}, \"finish_reason\":\"stop\", \"error\":{} [DONE]"}"#;
    let mut reader = ReplyReader::new(Endpoint::ChatCompletions, true, 1);
    let facts = reader.event(b"", chunk(content).as_bytes(), None).unwrap();
    assert_eq!((facts.meaningful, facts.kind, facts.tokens), (true, EventKind::Content, 18));
    assert_eq!((reader.usage(), reader.finish(0), reader.is_over()), (None, None, false));
}

#[test]
fn usage_is_evidence() {
    use FaultKind::*;
    let usage = |usage: &str| format!(r#"{{"choices":[],"usage":{usage}}}"#);
    let of = |input, cached_input, cache_write, output, reasoning| {
        Some(Usage { input, cached_input, cache_write, output, reasoning, ..Usage::default() })
    };
    let rows: &[(&[&str], Option<Usage>, &[FaultKind])] = &[
        (&[r#"{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14}"#], of(10, 0, 0, 4, 0), &[]),
        (
            &[
                r#"{"prompt_tokens":18014,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":3,"cache_write_tokens":18000},"completion_tokens_details":{"reasoning_tokens":3}}"#,
            ],
            of(11, 3, 18000, 1, 3),
            &[],
        ),
        (
            &[
                r#"{"prompt_tokens":10,"completion_tokens":4,"prompt_tokens_details":null,"completion_tokens_details":null}"#,
            ],
            of(10, 0, 0, 4, 0),
            &[],
        ),
        // DeepSeek, Moonshot, SGLang.
        (
            &[
                r#"{"prompt_tokens":10,"completion_tokens":4,"prompt_cache_hit_tokens":8,"prompt_cache_miss_tokens":2}"#,
            ],
            of(2, 8, 0, 4, 0),
            &[],
        ),
        (&[r#"{"prompt_tokens":10,"completion_tokens":4,"cached_tokens":8}"#], of(2, 8, 0, 4, 0), &[]),
        (&[r#"{"prompt_tokens":10,"completion_tokens":4,"reasoning_tokens":3}"#], of(10, 0, 0, 1, 3), &[]),
        // Reasoning is counted beside the answer, as the total shows.
        (
            &[
                r#"{"prompt_tokens":10,"completion_tokens":4,"total_tokens":114,"completion_tokens_details":{"reasoning_tokens":100}}"#,
            ],
            of(10, 0, 0, 4, 100),
            &[],
        ),
        // Doubled and cumulative reports.
        (
            &[
                r#"{"prompt_tokens":10,"completion_tokens":4}"#,
                r#"{"prompt_tokens":10,"completion_tokens":4}"#,
            ],
            of(10, 0, 0, 4, 0),
            &[],
        ),
        (
            &[
                r#"{"prompt_tokens":10,"completion_tokens":1}"#,
                r#"{"prompt_tokens":10,"completion_tokens":7}"#,
            ],
            of(10, 0, 0, 7, 0),
            &[],
        ),
        (
            &[
                r#"{"prompt_tokens":10,"completion_tokens":7}"#,
                r#"{"prompt_tokens":10,"completion_tokens":3}"#,
            ],
            of(10, 0, 0, 7, 0),
            &[UsageFell],
        ),
        // Impossible counts.
        (
            &[
                r#"{"prompt_tokens":10,"completion_tokens":4}"#,
                r#"{"prompt_tokens":10,"completion_tokens":-4}"#,
            ],
            of(10, 0, 0, 4, 0),
            &[UsageAbsurd],
        ),
        (&[r#"{"prompt_tokens":10,"completion_tokens":4.5}"#], None, &[UsageAbsurd]),
        (&[r#"{"prompt_tokens":1e300,"completion_tokens":4}"#], None, &[UsageAbsurd]),
        (&[r#"{"prompt_tokens":9007199254740993,"completion_tokens":4}"#], None, &[UsageAbsurd]),
        (&[r#"{"prompt_tokens":"10","completion_tokens":4}"#], None, &[UsageAbsurd]),
        (
            &[r#"{"prompt_tokens":10,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":11}}"#],
            of(10, 0, 0, 4, 0),
            &[UsageAbsurd],
        ),
        (
            &[
                r#"{"prompt_tokens":10,"completion_tokens":4,"completion_tokens_details":{"reasoning_tokens":5}}"#,
            ],
            of(10, 0, 0, 4, 0),
            &[UsageAbsurd],
        ),
        (&["[1]"], None, &[UsageAbsurd]),
        (&[r#"{"completion_tokens":4}"#], None, &[UsageIncomplete]),
        (&["{}"], None, &[]),
    ];
    for (reports, expected, noted) in rows {
        let mut reader = ReplyReader::new(Endpoint::ChatCompletions, true, 1);
        for report in *reports {
            let facts = reader.event(b"", usage(report).as_bytes(), None).unwrap();
            assert_eq!((facts.kind, facts.meaningful), (EventKind::UsageOnly, false));
        }
        assert_eq!((reader.usage(), notes(&reader).as_slice()), (*expected, *noted), "{reports:?}");
    }
}

#[test]
fn usage_of_messages_is_cumulative() {
    let start = r#"{"type":"message_start","message":{"id":"m","model":"c","usage":{"input_tokens":7,"cache_creation_input_tokens":30,"cache_read_input_tokens":100,"cache_creation":{"ephemeral_5m_input_tokens":20,"ephemeral_1h_input_tokens":10},"output_tokens":1,"service_tier":"standard"}}}"#;
    let end = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":50,"input_tokens":0,"output_tokens_details":{"thinking_tokens":40},"server_tool_use":{"web_search_requests":2}}}"#;
    let (reader, _, fault) = read(Endpoint::Messages, 1, &[start, end, BYE]);
    assert_eq!(fault, None);
    let reported = reader.reported().unwrap();
    assert_eq!(
        *reported,
        ReportedUsage {
            input: 7,
            cached_input: 100,
            cache_write_5m: 20,
            cache_write_1h: 10,
            output: 10,
            reasoning: 40,
            web_searches: 2,
            service_tier: Some("standard".to_owned()),
            ..ReportedUsage::default()
        }
    );
    let usage = reader.usage().unwrap();
    assert_eq!((usage.cache_write, usage.cache_write_1h, usage.prompt_tokens()), (20, 10, 137));
    // Some servers write 0 for a count that they reported before.
    assert_eq!(notes(&reader), [FaultKind::UsageFell]);
    let whole = r#"{"content":[],"stop_reason":"end_turn","usage":{"input_tokens":1,"cache_creation_input_tokens":5,"cache_creation":{"ephemeral_1h_input_tokens":6},"output_tokens":1}}"#;
    let mut reader = ReplyReader::new(Endpoint::Messages, false, 1);
    reader.whole(whole.as_bytes(), None).unwrap();
    let all_short = Usage { input: 1, cache_write: 5, output: 1, ..Usage::default() };
    assert_eq!((reader.usage(), notes(&reader)), (Some(all_short), vec![FaultKind::UsageAbsurd]));
}
