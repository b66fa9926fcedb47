//! The end of an answer: finish reasons, the stream's end marker, and data after both.

use headrace_domain::Endpoint;

use super::fault_tests::{DONE, Outcome, STOP, chunk, notes, read, said};
use super::*;

#[test]
fn the_end_of_a_stream_ends_every_choice_that_began() {
    use FaultKind::*;
    let other = r#"{"choices":[{"index":1,"delta":{"content":"b"}}]}"#;
    let role = r#"{"choices":[{"index":0,"delta":{"role":"assistant"}}]}"#;
    let empty = r#"{"choices":[{"index":0,"delta":{"content":""},"finish_reason":""}]}"#;
    let call = r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]}}]}"#;
    let text = chunk(r#"{"content":"a"}"#);
    let text = text.as_str();
    let rows: &[(u32, &[&str], Outcome<'_>, &str)] = &[
        (1, &[text, DONE], Ok(&[MissingFinishReason]), "a|0 Stop"),
        (1, &[text, empty, DONE], Ok(&[MissingFinishReason]), "a|0 Stop"),
        (1, &[role, DONE], Ok(&[MissingFinishReason]), "|0 Stop"),
        (1, &[call, DONE], Ok(&[MissingFinishReason]), "[0 c f]0:{};|0 ToolCalls"),
        (2, &[text, other, STOP, DONE], Ok(&[MissingFinishReason]), "ab|0 Stop|1 Stop"),
        (2, &[text, STOP, DONE], Ok(&[FewerChoices]), "a|0 Stop"),
        // Without the end marker, a choice without a finish reason is cut off.
        (1, &[text], Err(BrokeOff), "a"),
        (2, &[text, other, STOP], Err(BrokeOff), "ab|0 Stop"),
        (2, &[DONE], Err(NoFinishReason), ""),
    ];
    for (choices, datas, outcome, expected) in rows {
        let (reader, events, fault) = read(Endpoint::ChatCompletions, *choices, datas);
        let told = match fault {
            Some(fault) => Err(fault),
            None => Ok(notes(&reader)),
        };
        assert_eq!(told, outcome.map(<[FaultKind]>::to_vec), "{datas:?}");
        assert_eq!(said(&events), *expected, "{datas:?}");
        // The result is the same without reply events.
        let mut looking = ReplyReader::new(Endpoint::ChatCompletions, true, *choices);
        let looked = datas
            .iter()
            .try_for_each(|data| looking.event(b"", data.as_bytes(), None).map(|_| ()))
            .and_then(|()| looking.end());
        assert_eq!(looked.map_err(|fault| fault.kind).is_ok(), outcome.is_ok(), "{datas:?}");
        assert_eq!(looking.finish(0), reader.finish(0), "{datas:?}");
        assert_eq!(looking.finish(1), reader.finish(1), "{datas:?}");
    }
}

#[test]
fn a_reason_that_is_not_known_never_says_that_nothing_is_missing() {
    for (word, expected) in [
        ("model_length", Ok("Length")),
        ("MODEL_LENGTH", Ok("Length")),
        ("max_output_tokens", Ok("Length")),
        ("tool_call", Ok("ToolCalls")),
        ("network_error", Err(FaultKind::GaveUp)),
        ("timeout", Err(FaultKind::GaveUp)),
        ("end_of_thought", Ok("Length")),
        ("sensitive", Ok("ContentFilter")),
    ] {
        let whole = format!(r#"{{"choices":[{{"message":{{"content":"a"}},"finish_reason":"{word}"}}]}}"#);
        let mut reader = ReplyReader::new(Endpoint::ChatCompletions, false, 1);
        let read = reader.whole(whole.as_bytes(), None).map(|_| ()).map_err(|fault| fault.kind);
        assert_eq!(read.err(), expected.err(), "{word}");
        let Ok(reason) = expected else { continue };
        assert_eq!(format!("{:?}", reader.finish(0).unwrap()), reason, "{word}");
    }
    let unknown = chunk(r#"{"content":"a"}"#).replace("null}", "\"end_of_thought\"}");
    let (reader, events, fault) = read(Endpoint::ChatCompletions, 1, &[&unknown, DONE]);
    assert_eq!((said(&events).as_str(), fault), ("a|0 Length", None));
    let note = reader.notes()[0].to_string();
    assert_eq!(note, "unknown_finish_reason: \"end_of_thought\" of choice 0, taken for `length`");
}

#[test]
fn what_follows_a_whole_answer_takes_nothing_from_it() {
    let text = chunk(r#"{"content":"a"}"#);
    for after in ["{broken", "<html>", r#"{"error":{"message":"late","code":500}}"#, "[1]"] {
        let mut reader = ReplyReader::new(Endpoint::ChatCompletions, true, 1);
        reader.event(b"", text.as_bytes(), None).unwrap();
        assert!(!reader.has_finished());
        reader.event(b"", STOP.as_bytes(), None).unwrap();
        assert!(reader.has_finished());
        let facts = reader.event(b"", after.as_bytes(), None).unwrap();
        assert_eq!((facts.kind, facts.meaningful), (EventKind::Broken, false), "{after}");
        assert_eq!(reader.end(), Ok(()));
        assert_eq!(notes(&reader), [FaultKind::AfterEnd, FaultKind::MissingEnd], "{after}");
        // Before the finish reason, the same fault ends the answer.
        let mut reader = ReplyReader::new(Endpoint::ChatCompletions, true, 1);
        reader.event(b"", text.as_bytes(), None).unwrap();
        assert!(reader.event(b"", after.as_bytes(), None).is_err(), "{after}");
    }
}
