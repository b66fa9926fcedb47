//! Recorded answers of a real vLLM 0.32.0, read through the public API of this crate.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use bytes::Bytes;
use headrace_domain::{Dialect, Endpoint, FinishReason, ReplyEvent, Usage};
use headrace_relay::{EventKind, EventSplitter, FailureClass, ReplyReader, failure};
use serde_json::Value;

/// Returns the status and the body of the recorded answer with this name.
fn recorded(name: &str) -> (u16, String) {
    let exchanges: Vec<Value> = serde_json::from_str(include_str!("data/vllm-0.32.0.json")).unwrap();
    let found = exchanges.iter().find(|exchange| exchange["name"] == name).unwrap();
    let status = u16::try_from(found["status"].as_u64().unwrap()).unwrap();
    (status, found["body"].as_str().unwrap().to_owned())
}

fn text(events: &[ReplyEvent]) -> String {
    events
        .iter()
        .filter_map(|event| match event {
            ReplyEvent::Text { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

fn finish(choice: u32) -> ReplyEvent {
    ReplyEvent::Finish { choice, reason: FinishReason::Length }
}

#[test]
fn whole_answers() {
    let cached = Usage { input: 12, cached_input: 288, output: 6, ..Usage::default() };
    let fresh = Usage { input: 13, output: 6, ..Usage::default() };
    for (name, endpoint, said, usage, generated) in [
        ("completions", Endpoint::Completions, " scriptly lookerEnterrecognize doeser Choose", cached, 6),
        ("chat", Endpoint::ChatCompletions, "952952 Stonealone everilalone", fresh, 6),
        // This answer has no token ids, so its tokens are estimated.
        ("messages", Endpoint::Messages, " institut safetilRoyal Department excitechem", fresh, 11),
    ] {
        let (_, body) = recorded(name);
        let (mut reader, mut events) = (ReplyReader::new(endpoint, false, 1), Vec::new());
        let facts = reader.whole(body.as_bytes(), Some(&mut events)).unwrap();
        assert_eq!(
            (facts.kind, facts.meaningful, facts.tokens),
            (EventKind::Content, true, generated),
            "{name}"
        );
        assert_eq!((text(&events).as_str(), events.last()), (said, Some(&finish(0))), "{name}");
        assert_eq!((reader.usage(), reader.model()), (Some(usage), Some("m")), "{name}");
        assert_eq!(reader.notes(), [], "{name}");
        reader.end().unwrap();
    }
}

#[test]
fn streams_cut_anywhere() {
    for (name, endpoint, said, usage, kinds) in [
        (
            "completions_stream",
            Endpoint::Completions,
            " scriptly lookerEnterrecognize doeser Choose",
            Usage { input: 300, output: 6, ..Usage::default() },
            (6, 1),
        ),
        (
            "chat_stream",
            Endpoint::ChatCompletions,
            "952952 Stonealone everilalone",
            Usage { input: 13, output: 6, ..Usage::default() },
            (7, 1),
        ),
    ] {
        let (_, body) = recorded(name);
        for cut in (0..body.len()).step_by(7) {
            let (before, after) = body.as_bytes().split_at(cut);
            let (mut reader, mut splitter) = (ReplyReader::new(endpoint, true, 1), EventSplitter::new());
            let (mut events, mut seen, mut raw) = (Vec::new(), Vec::new(), Vec::new());
            for chunk in [before, after] {
                splitter.push(Bytes::copy_from_slice(chunk));
                while let Some(event) = splitter.next_event().unwrap() {
                    seen.push(reader.event(&event.name, &event.data, Some(&mut events)).unwrap());
                    raw.extend_from_slice(&event.raw);
                }
            }
            reader.end().unwrap();
            assert_eq!(String::from_utf8(raw).unwrap().trim_end(), body.trim_end(), "{name}");
            assert_eq!((text(&events).as_str(), events.last()), (said, Some(&finish(0))), "{name}");
            assert_eq!((reader.usage().unwrap().output, reader.generated()), (usage.output, 6), "{name}");
            assert_eq!(reader.usage().unwrap().prompt_tokens(), usage.prompt_tokens(), "{name}");
            let count = |kind| seen.iter().filter(|facts| facts.kind == kind).count();
            assert_eq!(
                (count(EventKind::Content), count(EventKind::UsageOnly), count(EventKind::End)),
                (kinds.0, kinds.1, 1),
                "{name}"
            );
            assert_eq!((reader.notes(), splitter.is_mid_event()), (&[][..], false), "{name}");
        }
    }
}

#[test]
fn failures() {
    for (name, class, param) in [
        ("unknown_model", FailureClass::NotFound, Some("model")),
        ("bad_param", FailureClass::BadRequest, Some("temperature")),
        ("generate_too_long", FailureClass::ContextTooLong, None),
    ] {
        let (status, body) = recorded(name);
        let failed = failure(Dialect::OpenAi, status, body.as_bytes());
        assert_eq!((failed.class, failed.param.as_deref()), (class, param), "{name}: {failed:?}");
    }
}
