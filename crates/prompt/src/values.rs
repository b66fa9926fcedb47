//! Converts conversations and JSON into template values, and masks every string of the request. Must not know what
//! templates do with the values.

use std::borrow::Cow;

use headrace_domain::{Conversation, Message, ReasoningOptions, Tool, ToolChoice};
use minijinja::Value;
use serde_json::Value as Json;

use crate::fields::FieldList;
use crate::mask::Masker;
use crate::part::PromptPart;

/// The roles that templates know. Other names count as message text.
const ROLES: [&str; 7] = ["system", "developer", "user", "assistant", "tool", "function", "ipython"];

/// Returns all strings of a conversation that come from the request.
pub(crate) fn strings(conversation: &Conversation) -> Vec<&str> {
    let contents = conversation.messages.iter().filter_map(|message| message.content.as_deref());
    let mut strings: Vec<&str> = contents.collect();
    strings.extend(strings_beside_contents(conversation));
    strings
}

fn strings_beside_contents(conversation: &Conversation) -> Vec<&str> {
    let mut strings = Vec::new();
    for message in &conversation.messages {
        let fields = [&message.name, &message.reasoning, &message.tool_call_id];
        strings.extend(fields.into_iter().flatten().map(String::as_str));
        for call in &message.tool_calls {
            strings.extend([call.id.as_str(), &call.name, &call.arguments]);
        }
    }
    for tool in &conversation.tools {
        strings.push(&tool.name);
        strings.extend(tool.description.as_deref());
        tool.parameters.iter().for_each(|parameters| json_strings(parameters, &mut strings));
    }
    for (key, value) in &conversation.template {
        strings.push(key);
        json_strings(value, &mut strings);
    }
    strings
}

/// Variables that a caller cannot set.
const OWN: [&str; 9] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "strftime_now",
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
];

/// Returns the further variables of the template: the caller's own variables, and its reasoning options under the names
/// that templates know.
pub(crate) fn variables(
    conversation: &Conversation,
    wish: Option<&ReasoningOptions>,
    masker: &Masker<'_>,
) -> Vec<(Cow<'static, str>, Value)> {
    let given = &conversation.template;
    let own = given.iter().filter(|(key, _)| !OWN.contains(&key.as_str()));
    let mut variables: Vec<(Cow<'static, str>, Value)> =
        own.map(|(key, value)| (Cow::Owned(key.clone()), json(value, masker))).collect();
    let enabled = wish.and_then(|wish| wish.enabled).map(Value::from);
    let effort = wish.and_then(|wish| wish.effort.as_deref()).map(|effort| text(effort, masker));
    for (key, value) in [("enable_thinking", &enabled), ("thinking", &enabled), ("reasoning_effort", &effort)]
    {
        if let Some(value) = value.as_ref().filter(|_| !given.contains_key(key)) {
            variables.push((Cow::Borrowed(key), value.clone()));
        }
    }
    variables
}

/// Returns all texts of a conversation that a template may show: [`strings`], and the strings in the arguments of tool
/// calls with their JSON escapes decoded.
pub fn texts_of(conversation: &Conversation) -> Vec<Cow<'_, str>> {
    let contents = conversation.messages.iter().filter_map(|message| message.content.as_deref());
    let mut texts: Vec<Cow<'_, str>> = contents.map(Cow::Borrowed).collect();
    texts.extend(texts_beside_contents(conversation));
    texts
}

/// As [`texts_of`], without the contents of messages.
pub fn texts_beside_contents(conversation: &Conversation) -> Vec<Cow<'_, str>> {
    let strings = strings_beside_contents(conversation);
    let mut texts: Vec<Cow<'_, str>> = strings.into_iter().map(Cow::Borrowed).collect();
    for call in conversation.messages.iter().flat_map(|message| &message.tool_calls) {
        if let Some(arguments) =
            call.arguments.contains('\\').then(|| serde_json::from_str(&call.arguments).ok())
        {
            let mut strings = Vec::new();
            arguments.iter().for_each(|arguments| json_strings(arguments, &mut strings));
            texts.extend(strings.into_iter().map(|text| Cow::Owned(text.to_owned())));
        }
    }
    texts
}

/// The texts that are rendered with marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MarkedTexts {
    /// No texts.
    None,
    /// The end of the last message's content.
    End,
    /// The beginning and the end of each message text that is not blank.
    Texts,
    /// Like `Texts`, and also names and descriptions of tools and names of calls.
    Each,
}

impl MarkedTexts {
    /// Returns a text of the part, between marks if this option includes it.
    fn text(self, part: PromptPart, text: &str, masker: &Masker<'_>) -> Value {
        let is_text = matches!(part, PromptPart::Message(_) | PromptPart::Reasoning(_));
        let marked = self == Self::Each || (self == Self::Texts && is_text);
        if marked && !text.trim().is_empty() {
            return Value::from(masker.mask_between_marks(&part.tag(), text));
        }
        self::text(text, masker)
    }
}

/// How a template reads the content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentForm {
    /// As a text.
    Text,
    /// As a list of parts, each with its `type`. Templates of models that also take images often read only this form.
    Parts,
}

impl ContentForm {
    /// Returns a content in this form.
    fn of(self, text: Value) -> Value {
        match self {
            Self::Text => text,
            Self::Parts => {
                [Value::from_pairs([("type", Value::from("text")), ("text", text)])].into_iter().collect()
            }
        }
    }
}

/// Returns the messages as `transformers` presents them: absent fields left out, `reasoning` under its two usual names.
pub(crate) fn messages(
    conversation: &Conversation,
    form: ContentForm,
    marks: MarkedTexts,
    masker: &Masker<'_>,
) -> Value {
    let last = conversation.messages.len();
    let message = |(at, message): (usize, &Message)| {
        let marks =
            if marks == MarkedTexts::End && at.saturating_add(1) != last { MarkedTexts::None } else { marks };
        self::message(at, message, form, marks, masker)
    };
    conversation.messages.iter().enumerate().map(message).collect()
}

fn message(
    at: usize,
    message: &Message,
    form: ContentForm,
    marks: MarkedTexts,
    masker: &Masker<'_>,
) -> Value {
    let mut fields = FieldList::with_capacity(2);
    fields.put("role", Value::from(message.role.name()));
    let texts = [
        ("content", &message.content),
        ("name", &message.name),
        ("reasoning_content", &message.reasoning),
        ("reasoning", &message.reasoning),
        ("tool_call_id", &message.tool_call_id),
    ];
    for (key, text) in texts {
        let Some(text) = text else { continue };
        let value = match marks {
            MarkedTexts::End if key == "content" => form.of(Value::from(masker.mask_with_end(text))),
            marks if key == "content" => form.of(marks.text(PromptPart::Message(at), text, masker)),
            marks if key.starts_with("reasoning") => marks.text(PromptPart::Reasoning(at), text, masker),
            _ => self::text(text, masker),
        };
        fields.put(key, value);
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().enumerate().map(|(number, call)| {
            // Most templates write the arguments with `tojson` and expect an object.
            let arguments = match serde_json::from_str(&call.arguments) {
                Ok(object @ Json::Object(_)) => json(&object, masker),
                _ => text(&call.arguments, masker),
            };
            let name = marks.text(PromptPart::Call { message: at, call: number }, &call.name, masker);
            let function = Value::from_pairs([("name", name), ("arguments", arguments)]);
            Value::from_pairs([
                ("id", text(&call.id, masker)),
                ("type", Value::from("function")),
                ("function", function),
            ])
        });
        fields.put("tool_calls", calls.collect());
    }
    Value::from(fields)
}

/// Returns the tools as `transformers` presents them. Returns the template's `none` if there are no tools or they must
/// not be used.
///
/// `tools` are the conversation's tools, with their schemas as sent or simplified.
pub(crate) fn tools(
    conversation: &Conversation,
    tools: &[Tool],
    marks: MarkedTexts,
    masker: &Masker<'_>,
) -> Value {
    if tools.is_empty() || conversation.tool_choice == ToolChoice::None {
        return Value::from(());
    }
    let tool = |(at, tool)| self::tool(at, tool, marks, masker);
    tools.iter().enumerate().map(tool).collect()
}

fn tool(at: usize, tool: &Tool, marks: MarkedTexts, masker: &Masker<'_>) -> Value {
    let mut function = vec![("name", marks.text(PromptPart::Tool(at), &tool.name, masker))];
    let about = tool.description.as_ref();
    function.extend(about.map(|about| ("description", marks.text(PromptPart::Tool(at), about, masker))));
    // A tool without parameters takes no arguments. Templates rely on an object being present.
    let parameters = match &tool.parameters {
        Some(parameters) => json(parameters, masker),
        None => Value::from_pairs([
            ("type", Value::from("object")),
            ("properties", Value::from_pairs(Vec::<(&str, Value)>::new())),
        ]),
    };
    function.push(("parameters", parameters));
    Value::from_pairs([("type", Value::from("function")), ("function", Value::from_pairs(function))])
}

/// Appends all strings of a JSON value, including keys, to `strings`.
pub(crate) fn json_strings<'j>(value: &'j Json, strings: &mut Vec<&'j str>) {
    match value {
        Json::String(text) => strings.push(text),
        Json::Array(items) => items.iter().for_each(|item| json_strings(item, strings)),
        Json::Object(members) => {
            for (key, value) in members {
                strings.push(key);
                json_strings(value, strings);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// Converts messages given as JSON. Like [`json`], but roles that templates know do not count as message text. With
/// `end`, the content of the last message gets an end mark.
pub(crate) fn json_messages(messages: &Json, end: bool, masker: &Masker<'_>) -> Value {
    let messages = messages.as_array().map(Vec::as_slice).unwrap_or_default();
    let message = |(at, message): (usize, &Json)| match message {
        Json::Object(members) => Value::from_pairs(members.iter().map(|(key, value)| {
            let value = match value {
                Json::String(role) if key == "role" && ROLES.contains(&role.as_str()) => {
                    Value::from(role.as_str())
                }
                Json::String(content) if key == "content" && end && at == messages.len() => {
                    Value::from(masker.mask_with_end(content))
                }
                value => json(value, masker),
            };
            (Value::from(masker.mask_key(key).as_ref()), value)
        })),
        other => json(other, masker),
    };
    (1..).zip(messages).map(message).collect()
}

/// Converts a JSON value and masks its strings and keys.
pub(crate) fn json(value: &Json, masker: &Masker<'_>) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => self::text(text, masker),
        Json::Array(items) => items.iter().map(|item| json(item, masker)).collect(),
        Json::Object(members) => Value::from_pairs(
            members
                .iter()
                .map(|(key, value)| (Value::from(masker.mask_key(key).as_ref()), json(value, masker))),
        ),
    }
}

fn text(text: &str, masker: &Masker<'_>) -> Value {
    Value::from(masker.mask(text).as_ref())
}
