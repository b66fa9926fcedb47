//! The replies of each family: a table of texts that models write and their parsed form, cut at every position.

use std::sync::Arc;

use headrace_domain::{Conversation, FinishReason, ReplyEvent, RequestId, Tool};
use headrace_prompt::{
    CallIds, OfferedTools, ReasoningMarks, ReplyFamily, ReplyForm, ReplyParser, ReplyStyle,
};
use serde_json::Value;

use crate::support::data;

/// Longer texts are not cut at every position, only within this many bytes of each end.
const CUT_BYTES: usize = 300;

/// The parsed reply, with its pieces joined.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Read {
    pub(crate) text: String,
    pub(crate) thought: String,
    /// The names, arguments and ids of calls.
    pub(crate) calls: Vec<(String, String, String)>,
    pub(crate) fault: Option<&'static str>,
    finish: Option<FinishReason>,
    /// The number of pieces in which arguments arrived.
    fragments: usize,
}

pub(crate) fn read(form: &ReplyForm, pieces: &[&str], reason: &FinishReason) -> Read {
    let mut parser = ReplyParser::new(form, 0, CallIds::new(9));
    let mut events = Vec::new();
    for piece in pieces {
        parser.push((*piece).to_owned(), Vec::new(), Vec::new(), &mut events);
    }
    parser.finish(reason.clone(), &mut events);
    let mut read = Read { fault: parser.fault().map(|fault| fault.name()), ..Read::default() };
    for event in events {
        match event {
            ReplyEvent::Text { text, .. } => read.text += &text,
            ReplyEvent::Reasoning { text, .. } => read.thought += &text,
            ReplyEvent::ToolCallStart { index, id, name, .. } => {
                assert_eq!(index as usize, read.calls.len());
                assert!(!id.is_empty() && read.calls.iter().all(|(_, _, other)| *other != id));
                read.calls.push((name, String::new(), id));
            }
            ReplyEvent::ToolCallArguments { index, fragment, .. } => {
                assert_eq!(index as usize + 1, read.calls.len());
                assert!(!fragment.is_empty());
                read.fragments += 1;
                read.calls.last_mut().unwrap().1 += &fragment;
            }
            ReplyEvent::Finish { reason, .. } => read.finish = Some(reason),
            other => panic!("{other:?}"),
        }
    }
    read
}

/// Returns the tools of the table.
pub(crate) fn offered(table: &Value) -> OfferedTools {
    let tools = table["tools"].as_object().unwrap();
    let tools = tools.iter().map(|(name, schema)| Tool::function(name, None, Some(schema.clone())));
    OfferedTools::of(&Conversation { tools: tools.collect(), ..Conversation::default() })
}

/// Returns how to read a row of the table.
pub(crate) fn form(row: &Value, offered: &Arc<OfferedTools>) -> ReplyForm {
    let text = |key: &str| row[key].as_str();
    let style = ReplyStyle {
        family: ReplyFamily::named(text("family").unwrap()).unwrap(),
        thought: match text("marks") {
            Some("[THINK]") => ReasoningMarks::detect("[/THINK]"),
            Some("<|channel>thought") => ReasoningMarks::detect("<channel|>"),
            Some(close) => Some(ReasoningMarks::detect(close).unwrap()),
            None => ReasoningMarks::detect("</think>"),
        },
    };
    let thinking = row["thinking"] == true;
    let hidden = row["hidden"].as_array().into_iter().flatten().map(|mark| mark.as_str().unwrap().to_owned());
    ReplyForm { style, thinking, hidden: hidden.collect(), offered: Arc::clone(offered) }
}

pub(crate) fn reason(row: &Value) -> FinishReason {
    if row["finish"] == "length" { FinishReason::Length } else { FinishReason::Stop }
}

fn plain(family: ReplyFamily) -> ReplyStyle {
    ReplyStyle { family, thought: None }
}

fn table() -> Value {
    serde_json::from_slice(&data("replies.json")).unwrap()
}

/// Returns the positions at which a text is cut in two.
fn cuts(text: &str) -> impl Iterator<Item = usize> {
    let near = |at: &usize| *at < CUT_BYTES || *at + CUT_BYTES > text.len();
    text.char_indices().map(|(at, _)| at).filter(near)
}

#[test]
fn what_models_write_is_read() {
    let table = table();
    let offered = Arc::new(offered(&table));
    for row in table["replies"].as_array().unwrap() {
        let text = row["text"].as_str().unwrap();
        let read = read(&form(row, &offered), &[text], &reason(row));
        let shown = format!("{} {text:.300}", row["family"]);
        let calls: Vec<[&str; 2]> =
            read.calls.iter().map(|(name, arguments, _)| [name.as_str(), arguments.as_str()]).collect();
        let expected = row["calls"].as_array().unwrap().iter();
        let expected: Vec<[&str; 2]> =
            expected.map(|call| [call[0].as_str().unwrap(), call[1].as_str().unwrap()]).collect();
        assert_eq!(calls, expected, "{shown}");
        assert_eq!(read.text, row["out"].as_str().unwrap(), "{shown}");
        assert_eq!(read.thought, row["thought"].as_str().unwrap_or(""), "{shown}");
        assert_eq!(read.fault, row["fault"].as_str(), "{shown}");
        for ((_, arguments, _), [_, expected]) in read.calls.iter().zip(&expected) {
            assert!(serde_json::from_str::<Value>(arguments).is_ok(), "{shown} {expected}");
        }
        for ((_, _, id), expected) in read.calls.iter().zip(row["ids"].as_array().into_iter().flatten()) {
            let ours = id.starts_with("call_");
            assert!(expected.as_str().map_or(ours, |expected| expected == id), "{shown} {id}");
        }
        let finish = match reason(row) {
            FinishReason::Stop if !calls.is_empty() => FinishReason::ToolCalls,
            reason => reason,
        };
        assert_eq!(read.finish, Some(finish), "{shown}");
    }
}

#[test]
fn cutting_anywhere_changes_nothing() {
    let table = table();
    let free = Arc::new(offered(&table));
    let held = Arc::new(offered(&table).held(|_| true));
    for row in table["replies"].as_array().unwrap() {
        let text = row["text"].as_str().unwrap();
        for offered in [&free, &held, &Arc::default()] {
            let (form, reason) = (form(row, offered), reason(row));
            let whole = Read { fragments: 0, ..read(&form, &[text], &reason) };
            for at in cuts(text) {
                let (left, right) = text.split_at(at);
                let cut = Read { fragments: 0, ..read(&form, &[left, right], &reason) };
                assert_eq!(cut, whole, "{} {left:?} {right:.200?}", row["family"]);
            }
            let chars: Vec<&str> = text.split_inclusive(|_| true).collect();
            let each = Read { fragments: 0, ..read(&form, &chars, &reason) };
            assert_eq!(each, whole, "{} {text:.200}", row["family"]);
        }
    }
}

#[test]
fn arguments_stream_where_a_grammar_holds_them() {
    let table = table();
    let free = Arc::new(offered(&table));
    let held = Arc::new(offered(&table).held(|_| true));
    let mut streamed = std::collections::BTreeSet::new();
    for row in table["replies"].as_array().unwrap() {
        let text = row["text"].as_str().unwrap();
        if row["calls"].as_array().unwrap().is_empty() || row["fault"].is_string() {
            continue;
        }
        let chars: Vec<&str> = text.split_inclusive(|_| true).collect();
        let mut whole = read(&form(row, &free), &chars, &reason(row));
        let mut pieces = read(&form(row, &held), &chars, &reason(row));
        // An id that comes after the arguments arrives too late.
        whole.calls.iter_mut().chain(&mut pieces.calls).for_each(|(_, _, id)| id.clear());
        assert_eq!(whole.fragments, whole.calls.len(), "a call that nothing holds comes whole");
        let differ = pieces.fragments > whole.fragments;
        assert_eq!(Read { fragments: 0, ..pieces }, Read { fragments: 0, ..whole }, "{text:.200}");
        if differ {
            streamed.insert(row["family"].as_str().unwrap());
        }
    }
    // Python's, Gemma's and MiniMax M3's notations are parsed only when they are complete.
    let expected = [
        "apertus",
        "cohere_command",
        "deepseek_v3",
        "deepseek_v31",
        "deepseek_v32",
        "deepseek_v4",
        "ernie45",
        "glm45",
        "granite",
        "harmony",
        "hermes",
        "hunyuan",
        "hunyuan_a13b",
        "hunyuan_opensource",
        "json",
        "kimi_k2",
        "kimi_k3",
        "llama3_json",
        "longcat",
        "longcat_pairs",
        "mimo",
        "minimax_m2",
        "mistral",
        "mistral_array",
        "phi4mini",
        "qwen3_coder",
        "seed_oss",
        "step3",
    ];
    assert_eq!(streamed.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_held_call_that_ends_too_soon_is_told_as_far_as_it_came() {
    let table = table();
    let held = Arc::new(offered(&table).held(|_| true));
    let form = ReplyForm { style: plain(ReplyFamily::Hermes), offered: held, ..ReplyForm::default() };
    let text = "<tool_call>\n{\"name\": \"save\", \"arguments\": {\"text\": \"abc";
    let read = read(&form, &[text], &FinishReason::Length);
    assert_eq!(read.calls.len(), 1);
    assert_eq!((read.calls[0].1.as_str(), read.text.as_str()), ("{\"text\": \"abc", ""));
    assert_eq!((read.fault, read.finish), (Some("tool_call_unfinished"), Some(FinishReason::Length)));
}

#[test]
fn without_tools_every_text_is_text() {
    let table = table();
    for row in table["replies"].as_array().unwrap() {
        let text = row["text"].as_str().unwrap();
        if row["family"] == "harmony" || row["thought"].is_string() {
            continue;
        }
        let read = read(&form(row, &Arc::default()), &[text], &FinishReason::Stop);
        assert_eq!((read.text.as_str(), read.calls.len()), (text, 0));
    }
}

#[test]
fn each_family_has_a_name_and_a_row() {
    let table = table();
    for family in ReplyFamily::ALL {
        assert_eq!(ReplyFamily::named(family.name()), Some(family));
        let rows = table["replies"].as_array().unwrap();
        assert!(rows.iter().any(|row| row["family"] == family.name()), "{family:?}");
    }
}

#[test]
fn marks_that_nobody_reads_are_left_out() {
    let hidden: Arc<[String]> = ["[TOOL_CALLS]".to_owned(), "[THINK]".to_owned()].into();
    let form = ReplyForm { style: plain(ReplyFamily::Mistral), hidden, ..ReplyForm::default() };
    let text = "a [TOOL_CALLS]f[ARGS]{} [THINK]b [TOOL_";
    for at in cuts(text) {
        let (left, right) = text.split_at(at);
        assert_eq!(read(&form, &[left, right], &FinishReason::Stop).text, "a f[ARGS]{} b [TOOL_");
    }
    let offered = Arc::new(offered(&table()));
    let read = read(&ReplyForm { offered, ..form }, &["[TOOL_CALLS]now[ARGS]{}"], &FinishReason::Stop);
    assert_eq!((read.calls.len(), read.text.as_str()), (1, ""));
}

/// Returns the texts of special tokens in `text` that a style searches for.
fn special_tokens(style: ReplyStyle, text: &str) -> Vec<String> {
    let tags = text.match_indices('<').filter_map(|(at, _)| {
        let tag = &text[at..=at + text[at..].find('>')?];
        tag.contains(['|', '｜']).then_some(tag)
    });
    let tokens = tags.chain(["]<]minimax[>["]).filter(|token| style.reads(token));
    tokens.map(str::to_owned).collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

/// A special token may be the beginning of a longer mark, and has no meaning elsewhere.
#[test]
fn special_tokens_change_no_reply_and_are_not_shown() {
    let table = table();
    let offered = Arc::new(offered(&table));
    let mut with_tokens = 0;
    for row in table["replies"].as_array().unwrap() {
        let text = row["text"].as_str().unwrap();
        let plain = form(row, &offered);
        let hidden: Arc<[String]> = special_tokens(plain.style, text).into();
        let harmony = row["family"] == "harmony";
        if harmony || row["fault"].is_string() || row["hidden"].is_array() || hidden.is_empty() {
            continue;
        }
        with_tokens += 1;
        let shown = ReplyForm { hidden: Arc::clone(&hidden), ..plain.clone() };
        let whole = read(&shown, &[text], &reason(row));
        let is_shown = |read: &Read| {
            hidden.iter().any(|token| read.text.contains(token) || read.thought.contains(token))
        };
        assert!(!is_shown(&whole), "{text}");
        let unmarked = read(&plain, &[text], &reason(row));
        // A token without a meaning is text if it is no special token.
        assert!(whole == unmarked || is_shown(&unmarked), "{text}\n{whole:?}\n{unmarked:?}");
        for at in cuts(text) {
            let (left, right) = text.split_at(at);
            assert_eq!(read(&shown, &[left, right], &reason(row)).text, whole.text, "{left:?} {right:?}");
        }
        // Without tools, calls are not read, but special tokens are still not shown.
        let none = ReplyForm { offered: Arc::default(), ..shown };
        let text = read(&none, &[text], &reason(row)).text;
        assert!(hidden.iter().all(|token| !text.contains(token)), "{text}");
    }
    assert!(with_tokens > 30, "{with_tokens}");
}

#[test]
fn a_style_reads_its_own_marks() {
    for (family, mark, reads) in [
        (ReplyFamily::Mistral, "[TOOL_CALLS]", true),
        (ReplyFamily::Mistral, "[ARGS]", true),
        (ReplyFamily::Mistral, "</s>", false),
        (ReplyFamily::DeepSeekV3, "<｜tool▁sep｜>", true),
        (ReplyFamily::DeepSeekV3, "<｜end▁of▁sentence｜>", false),
        (ReplyFamily::Harmony, "<|channel|>", true),
        (ReplyFamily::Harmony, "<|endoftext|>", false),
        (ReplyFamily::Gemma, "<|\"|>", true),
        (ReplyFamily::KimiXtml, "<|sep|>", true),
        (ReplyFamily::KimiXtml, "<|end_of_msg|>", false),
        (ReplyFamily::MiniMaxNested, "]<]minimax[>[", true),
        (ReplyFamily::Cohere, "<|END_RESPONSE|>", true),
        (ReplyFamily::Step, "<｜tool_sep｜>", true),
        (ReplyFamily::Plain, "<|channel|>", false),
    ] {
        assert_eq!(plain(family).reads(mark), reads, "{family:?} {mark}");
    }
    let style = ReplyStyle::detect("<think>\n</think> [TOOL_CALLS]");
    assert!(style.reads("</think>") && style.thinks() && style.family == ReplyFamily::MistralArray);
}

/// The parser recognises the bounds of a reasoning block. After an inserted end, the text is the answer.
#[test]
fn behind_the_bounds_of_a_thought_stands_the_answer() {
    for (template, prompted) in [
        ("<think></think>", true),
        ("[THINK][/THINK]", true),
        ("<mm:think></mm:think>", true),
        ("<longcat_think></longcat_think>", true),
        ("<|inner_prefix|><|inner_suffix|>", true),
        ("<|close|>think<|sep|>", true),
        ("{% set HYTK = ':opensource' %}", true),
        ("<|channel|>", false),
    ] {
        let style = match prompted {
            true => ReplyStyle::detect(template),
            false => plain(ReplyFamily::Harmony),
        };
        let bounds = style.bounds().unwrap();
        let form = ReplyForm { style, ..ReplyForm::default() };
        let mut parser = ReplyParser::new(&form, 0, CallIds::from(RequestId::from_bits(1)));
        let mut events = Vec::new();
        let said = format!("{}Hm, enough.{}{}Yes.", bounds.open, bounds.close, bounds.onward);
        said.chars().for_each(|c| parser.push(c.to_string(), vec![1], Vec::new(), &mut events));
        parser.finish(FinishReason::Stop, &mut events);
        let told = |thought: bool| -> String {
            let texts = events.iter().filter_map(|event| match event {
                ReplyEvent::Reasoning { text, .. } if thought => Some(text.as_str()),
                ReplyEvent::Text { text, .. } if !thought => Some(text.as_str()),
                _ => None,
            });
            texts.collect()
        };
        assert_eq!((told(true).as_str(), told(false).as_str()), ("Hm, enough.", "Yes."), "{template}");
    }
    assert_eq!(ReplyStyle::PLAIN.bounds(), None);
}
