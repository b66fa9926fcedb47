//! Checks whether tools reach the model, and whether calls in the template's notation are parsed as calls. Must not
//! know how a family is parsed.

use std::sync::Arc;

use headrace_domain::{
    Conversation, FinishReason, Message, ReplyEvent, Role, Tool, ToolCall, ToolChoice, UnixNanos,
};
use headrace_prompt::{
    CallIds, OfferedTools, RenderOptions, RenderedPrompt, ReplyFamily, ReplyForm, ReplyParser, ReplyStyle,
};
use serde_json::json;

use super::patient::{NEXT, Patient, QUESTION, assistant, user};
use crate::finding::{Finding, Severity};

/// The name of the offered tool.
const NAME: &str = "look_up_heron";
/// The key and value of its argument.
const ARGUMENT: (&str, &str) = ("marsh", "Camargue");
/// An id that every template accepts. Mistral's template requires nine letters or digits.
const CALL_ID: &str = "call00001";

pub(super) fn check(patient: &Patient<'_>, findings: &mut Vec<Finding>) {
    let Some(template) = patient.template() else { return };
    if !template.shows_tools() {
        findings.push(not_shown(patient));
        return;
    }
    let Some(written) = written(patient) else {
        findings.push(Finding {
            code: "calls_not_shown",
            severity: Severity::Warning,
            what: "a call that the model made does not stand in the next prompt: it will not know what it asked for".to_owned(),
            evidence: format!("a conversation with a call of `{NAME}` is refused, or rendered without its name and arguments"),
            way_out: "take the template of the model's repository that was made for tools (`tool_use`, where it has several)"
                .to_owned(),
        });
        return;
    };
    let family = patient.words.replies.family;
    if reads(patient, family, &written) {
        return;
    }
    let other =
        ReplyFamily::ALL.into_iter().find(|other| *other != family && reads(patient, *other, &written));
    findings.push(Finding {
        code: "reply_family_wrong",
        severity: Severity::Fault,
        what: "calls of tools that the model writes are not read as calls: callers get them as text"
            .to_owned(),
        evidence: format!(
            "the template shows a call as {written:?}, which is no call to the family `{}`",
            family.name()
        ),
        way_out: match other {
            Some(other) => format!("set `reply = \"{}\"` for the model: it reads such calls", other.name()),
            None => {
                "no family that is known writes calls so: refuse tools for this model, or report the template"
                    .to_owned()
            }
        },
    });
}

/// The finding that the template shows no tools. It is more severe if the vocabulary has marks for calls.
fn not_shown(patient: &Patient<'_>) -> Finding {
    let marks = patient.words.tokenizer.markup_texts();
    let is_mark = |text: &&String| {
        let style = |family| ReplyStyle { family, thought: None };
        let calls = ReplyFamily::ALL.into_iter().filter(|family| *family != ReplyFamily::Harmony);
        calls.into_iter().any(|family| style(family).reads(text))
    };
    let mark = marks.iter().find(is_mark);
    Finding {
        code: "tools_not_shown",
        severity: if mark.is_some() { Severity::Warning } else { Severity::Note },
        what: "the template shows a model no tools, so calls that offer some are refused".to_owned(),
        evidence: match mark {
            Some(mark) => format!(
                "a prompt with a tool is the same as without; the vocabulary has {mark}, which is for calls"
            ),
            None => "a prompt with a tool is the same as without; the vocabulary has no marks for calls"
                .to_owned(),
        },
        way_out: match mark {
            Some(_) => {
                "take chat_template.jinja of the model's repository: this one has lost the block of tools"
                    .to_owned()
            }
            None => "the model was not taught to call tools: use another one for that".to_owned(),
        },
    }
}

fn tool() -> Tool {
    let (key, _) = ARGUMENT;
    let schema = json!({"type": "object", "properties": {key: {"type": "string"}}, "required": [key]});
    Tool::function(NAME, Some("Finds a heron".to_owned()), Some(schema))
}

fn call() -> Message {
    let (key, value) = ARGUMENT;
    let arguments = json!({ key: value }).to_string();
    let call = ToolCall { id: CALL_ID.to_owned(), name: NAME.to_owned(), arguments };
    Message { content: None, tool_calls: vec![call], ..assistant("") }
}

fn result() -> Message {
    Message { tool_call_id: Some(CALL_ID.to_owned()), ..Message::text(Role::Tool, "Two of them") }
}

/// Returns a call as the template shows it in a continued conversation, from the beginning of the answer to its end.
fn written(patient: &Patient<'_>) -> Option<String> {
    let text = |messages: Vec<Message>, open: bool| {
        let conversation = Conversation {
            messages,
            tools: vec![tool()],
            tool_choice: ToolChoice::Auto,
            ..Conversation::default()
        };
        let options = RenderOptions { add_generation_prompt: open, now: UnixNanos::new(0), reasoning: None };
        patient.template()?.render(&conversation, &options).ok().map(RenderedPrompt::into_text)
    };
    let asked = text(vec![user(QUESTION)], true)?;
    let with_result = text(vec![user(QUESTION), call(), result(), user(NEXT)], false);
    let called = with_result.or_else(|| text(vec![user(QUESTION), call()], false))?;
    let same = asked.bytes().zip(called.bytes()).take_while(|(left, right)| left == right).count();
    let rest = called.get(beginning(patient, &called, same)..)?;
    let eos = patient.examined.eos.iter().filter_map(|id| patient.words.tokenizer.token_bytes(*id));
    let ends = eos.filter_map(|bytes| std::str::from_utf8(bytes).ok()).filter(|text| !text.is_empty());
    let end = ends.filter_map(|text| rest.find(text)).min().unwrap_or(rest.len());
    let written = rest.get(..end)?.trim_end();
    (written.contains(NAME) && written.contains(ARGUMENT.1)).then(|| written.to_owned())
}

/// Returns the start of the token that contains the byte `at`. The text that opens an answer (`<think>`) and the answer
/// itself (`<tool_call>`) may share their first letters.
fn beginning(patient: &Patient<'_>, text: &str, at: usize) -> usize {
    let tokenizer = &patient.words.tokenizer;
    let spans = tokenizer.encode(text, false).ok().and_then(|ids| tokenizer.spans(text, &ids));
    let spans = spans.unwrap_or_default();
    spans.iter().find(|span| span.start < at && span.end > at).map_or(at, |span| span.start)
}

/// Whether a family parses `written` as the expected call.
fn reads(patient: &Patient<'_>, family: ReplyFamily, written: &str) -> bool {
    let conversation = Conversation { tools: vec![tool()], ..Conversation::default() };
    let form = ReplyForm {
        style: ReplyStyle { family, thought: patient.words.replies.thought },
        hidden: Arc::default(),
        thinking: false,
        offered: Arc::new(OfferedTools::of(&conversation)),
    };
    let mut parser = ReplyParser::new(&form, 0, CallIds::new(1));
    let mut events = Vec::new();
    parser.push(written.to_owned(), Vec::new(), Vec::new(), &mut events);
    parser.finish(FinishReason::Stop, &mut events);
    let named =
        events.iter().any(|event| matches!(event, ReplyEvent::ToolCallStart { name, .. } if name == NAME));
    let arguments: String = events
        .iter()
        .filter_map(|event| match event {
            ReplyEvent::ToolCallArguments { fragment, .. } => Some(fragment.as_str()),
            _ => None,
        })
        .collect();
    let (key, value) = ARGUMENT;
    let same =
        serde_json::from_str::<serde_json::Value>(&arguments).is_ok_and(|read| read == json!({ key: value }));
    named && same
}
