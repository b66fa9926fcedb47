//! The strings of a body, with their places, so that others can replace some of them and leave every other byte as it is.
//! Data of images, ids and names of the API are left out. Must not know what is replaced.

use std::ops::Range;

/// A string of a body that a server may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyString {
    /// The text, without quotes and escapes.
    pub text: String,
    /// What the text is.
    pub form: BodyStringForm,
    /// The list that the text is a part of, by a number of its own. The model reads its parts as one text. `None` for a
    /// text of its own.
    pub list: Option<usize>,
    /// The bytes of the value, with its quotes.
    pub place: Range<usize>,
}

/// What a string is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyStringForm {
    /// A text, a key of free JSON, or a number in the input of a tool.
    Text,
    /// The arguments of a tool call, as JSON text.
    Arguments,
}

/// Names and words of the API, ids, and data.
const OPAQUE: [&str; 33] = [
    "cache_salt",
    "call_id",
    "detail",
    "effort",
    "encoding_format",
    "encrypted_content",
    "file_data",
    "file_id",
    "format",
    "id",
    "input_embeds",
    "item_id",
    "media_type",
    "mime_type",
    "model",
    "object",
    "previous_response_id",
    "prompt_embeds",
    "reasoning_effort",
    "role",
    "service_tier",
    "signature",
    "status",
    "syntax",
    "tool_call_id",
    "tool_choice",
    "tool_use_id",
    "truncation",
    "ttl",
    "type",
    "verbosity",
    "thought_signature",
    "phase",
];
/// What a template shows before the conversation.
const AHEAD: [&str; 7] =
    ["tools", "functions", "system", "instructions", "response_format", "output_config", "text"];
/// The conversation, or what is completed or encoded.
const SPOKEN: [&str; 6] = ["messages", "input", "prompt", "query", "documents", "suffix"];

/// What the caller may choose within a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallerFreedom {
    /// The API defines the fields.
    None,
    /// Keys and texts are the caller's own.
    Texts,
    /// Numbers are, too.
    Values,
}

/// An open object or list.
struct OpenValue {
    is_object: bool,
    /// The last key of an object. That of its owner for a list.
    key: String,
    /// Whether the next string of an object is a key.
    awaits_key: bool,
    number: usize,
    freedom: CallerFreedom,
}

/// Returns the strings of a body: first those that a template shows before the conversation, then those of the
/// conversation, then the others; each group in the order of the body. A body that breaks off is read up to its end.
pub fn body_strings(body: &[u8]) -> Vec<BodyString> {
    let mut reading = BodyReading::default();
    reading.read(body);
    let BodyReading { mut found, owners, .. } = reading;
    found.retain(|found| match found.only_if {
        None => true,
        Some(OwnerCondition::IsText(owner)) => owners.get(owner).is_some_and(|owner| owner.is_text),
        Some(OwnerCondition::IsMessage(owner)) => owners.get(owner).is_some_and(|owner| owner.is_message),
    });
    found.sort_by_key(|found| found.group);
    found.into_iter().map(|found| found.string).collect()
}

/// Writes a body with other texts in some places. The places are those of [`body_strings`].
pub fn with_strings(body: &[u8], mut changes: Vec<(Range<usize>, String)>) -> Vec<u8> {
    changes.sort_by_key(|(place, _)| place.start);
    let (mut out, mut at) = (Vec::with_capacity(body.len()), 0);
    for (place, text) in changes {
        out.extend_from_slice(body.get(at..place.start).unwrap_or_default());
        let written = serde_json::Value::from(text).to_string();
        let is_open = place.end == body.len() && !is_closed(body.get(place.clone()).unwrap_or_default());
        let written = if is_open { written.strip_suffix('"').unwrap_or(&written) } else { &written };
        out.extend_from_slice(written.as_bytes());
        at = place.end;
    }
    out.extend_from_slice(body.get(at..).unwrap_or_default());
    out
}

/// Whether a value does not break off in a string.
fn is_closed(value: &[u8]) -> bool {
    !value.starts_with(b"\"") || string_end(value).is_some()
}

/// The length of the string at the start of `bytes`, with its quotes. `None` if it breaks off.
fn string_end(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        at += headrace_wire::json::plain_run(bytes.get(at..)?);
        match bytes.get(at)? {
            b'"' => return Some(at.saturating_add(1)),
            b'\\' => at = at.saturating_add(2),
            _ => at = at.saturating_add(1),
        }
    }
}

/// The text of a string in quotes.
fn unescaped(quoted: &[u8]) -> String {
    let inner = quoted.strip_prefix(b"\"").unwrap_or(quoted);
    let inner = if is_closed(quoted) { inner.strip_suffix(b"\"").unwrap_or(inner) } else { inner };
    if inner.contains(&b'\\')
        && let Ok(text) = serde_json::from_slice(quoted)
    {
        return text;
    }
    String::from_utf8_lossy(inner).into_owned()
}

struct FoundString {
    string: BodyString,
    group: u8,
    /// It counts only if its object is of this kind.
    only_if: Option<OwnerCondition>,
}

/// A condition on the object with this number, which may be known only at its end.
#[derive(Debug, Clone, Copy)]
enum OwnerCondition {
    /// `data` is a text if the `type` beside it says so.
    IsText(usize),
    /// `name` is that of a person in a message. Other names are those of tools.
    IsMessage(usize),
}

/// What is known of an object or list.
#[derive(Debug, Clone, Copy, Default)]
struct OwnerFacts {
    /// Its `type` is `text`.
    is_text: bool,
    /// It has a `role`.
    is_message: bool,
}

#[derive(Default)]
struct BodyReading {
    open: Vec<OpenValue>,
    found: Vec<FoundString>,
    /// For each object and list, by number.
    owners: Vec<OwnerFacts>,
    group: u8,
}

impl BodyReading {
    fn read(&mut self, body: &[u8]) {
        let mut at = 0;
        while let Some(byte) = body.get(at) {
            let rest = body.get(at..).unwrap_or_default();
            let length = match byte {
                b'{' | b'[' => {
                    self.open(*byte == b'{');
                    1
                }
                b'}' | b']' => {
                    self.open.pop();
                    1
                }
                b'"' => {
                    let length = string_end(rest).unwrap_or(rest.len());
                    self.string(rest.get(..length).unwrap_or_default(), at);
                    length
                }
                b',' => {
                    if let Some(open) = self.open.last_mut() {
                        open.awaits_key = open.is_object;
                    }
                    1
                }
                b'-' | b'0'..=b'9' => {
                    let is_number =
                        |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
                    let length = rest.iter().take_while(|byte| is_number(byte)).count();
                    self.number(rest.get(..length).unwrap_or_default(), at);
                    length
                }
                _ => 1,
            };
            at = at.saturating_add(length.max(1));
        }
    }

    fn open(&mut self, is_object: bool) {
        let (key, freedom) = match self.open.last() {
            None => (String::new(), CallerFreedom::None),
            Some(owner) => {
                let is_field = owner.is_object && self.open.len() > 1;
                let freedom = match owner.key.as_str() {
                    _ if owner.freedom != CallerFreedom::None => owner.freedom,
                    "input" | "arguments" | "output" if is_field => CallerFreedom::Values,
                    "parameters" | "schema" | "input_schema" | "metadata" if owner.is_object => {
                        CallerFreedom::Texts
                    }
                    _ => CallerFreedom::None,
                };
                (owner.key.clone(), freedom)
            }
        };
        self.open.push(OpenValue {
            is_object,
            key,
            awaits_key: is_object,
            number: self.owners.len(),
            freedom,
        });
        self.owners.push(OwnerFacts::default());
    }

    fn string(&mut self, quoted: &[u8], start: usize) {
        let is_top = self.open.len() == 1;
        let list = self.open.len().checked_sub(2).and_then(|at| self.open.get(at));
        let list = list.filter(|list| !list.is_object).map(|list| list.number);
        let Some(open) = self.open.last_mut() else { return };
        let text = unescaped(quoted);
        let place = start..start.saturating_add(quoted.len());
        let free = open.freedom != CallerFreedom::None;
        if open.awaits_key {
            open.awaits_key = false;
            open.key.clone_from(&text);
            if is_top {
                let is_in = |keys: &[&str]| keys.contains(&text.as_str());
                self.group = if is_in(&AHEAD) { 0 } else { u8::from(!is_in(&SPOKEN)).saturating_add(1) };
            }
            if free {
                let string = BodyString { text, form: BodyStringForm::Text, list: None, place };
                self.found.push(FoundString { string, group: self.group, only_if: None });
            }
            return;
        }
        let key = open.key.as_str();
        if !free && open.is_object && matches!(key, "type" | "role") {
            if let Some(owner) = self.owners.get_mut(open.number) {
                owner.is_text |= key == "type" && text == "text";
                owner.is_message |= key == "role";
            }
            return;
        }
        if (!free && OPAQUE.contains(&key)) || is_data_url(&text) {
            return;
        }
        let form = if key == "arguments" { BodyStringForm::Arguments } else { BodyStringForm::Text };
        let only_if = match key {
            "data" if !free => Some(OwnerCondition::IsText(open.number)),
            "name" if !free => Some(OwnerCondition::IsMessage(open.number)),
            _ => None,
        };
        let list = list.filter(|_| !free && key == "text");
        let string = BodyString { text, form, list, place };
        self.found.push(FoundString { string, group: self.group, only_if });
    }

    fn number(&mut self, digits: &[u8], start: usize) {
        if self.open.last().is_some_and(|open| open.freedom == CallerFreedom::Values) {
            let place = start..start.saturating_add(digits.len());
            let text = String::from_utf8_lossy(digits).into_owned();
            let string = BodyString { text, form: BodyStringForm::Text, list: None, place };
            self.found.push(FoundString { string, group: self.group, only_if: None });
        }
    }
}

fn is_data_url(text: &str) -> bool {
    text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("data:"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(body: &str) -> Vec<String> {
        body_strings(body.as_bytes()).into_iter().map(|string| string.text).collect()
    }

    #[test]
    fn what_a_server_may_read_comes_in_the_order_of_the_prompt() {
        let body = json!({"model": "m", "user": "u", "messages": [
            {"role": "user", "name": "n", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "AAAA"},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"id": 17, "to": ["x"]}}],
                "tool_calls": [{"id": "c1", "function": {"name": "g", "arguments": "{\"k\":\"v\"}"}}]}],
            "metadata": {"k": "l"}, "stop": ["END"], "max_tokens": 17,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]});
        assert_eq!(
            texts(&body.to_string()),
            [
                "type",
                "object",
                "n",
                "a",
                "b",
                "plain",
                "hm",
                "id",
                "17",
                "to",
                "x",
                "{\"k\":\"v\"}",
                "u",
                "k",
                "l",
                "END"
            ]
        );
        let found = body_strings(body.to_string().as_bytes());
        let list =
            |text: &str| found.iter().find(|string| string.text == text).and_then(|string| string.list);
        assert!(list("a").is_some() && list("a") == list("b") && list("hm").is_none());
        let arguments = found.iter().filter(|string| string.form == BodyStringForm::Arguments);
        assert_eq!(arguments.count(), 1);
    }

    #[test]
    fn only_what_changes_is_written_anew() {
        let body = r#" {"messages" : [{"content":"caf\u00e9 \"x\""}, {"content":[{"type":"tool_use","input":{"n":1.50}}]}], "top_p":0.10}"#;
        let found = body_strings(body.as_bytes());
        let changes = found.iter().filter(|string| string.text.contains('x') || string.text == "1.50");
        let changes = changes.map(|string| (string.place.clone(), format!("<{}>", string.text)));
        let written = String::from_utf8(with_strings(body.as_bytes(), changes.collect())).unwrap();
        assert_eq!(
            written,
            r#" {"messages" : [{"content":"<café \"x\">"}, {"content":[{"type":"tool_use","input":{"n":"<1.50>"}}]}], "top_p":0.10}"#
        );
        assert_eq!(with_strings(body.as_bytes(), Vec::new()), body.as_bytes());
    }

    #[test]
    fn a_body_that_breaks_off_stays_broken_off() {
        let body = r#"{"messages":[{"content":"abc"#;
        let found = body_strings(body.as_bytes());
        assert_eq!(found.iter().map(|string| string.text.as_str()).collect::<Vec<_>>(), ["abc"]);
        let changes = vec![(found[0].place.clone(), "d\"".to_owned())];
        assert_eq!(with_strings(body.as_bytes(), changes), br#"{"messages":[{"content":"d\""#);
        for broken in ["", "{", "[\"", "{\"a\\", "}{]", "{\"a\":\"\\u12"] {
            body_strings(broken.as_bytes());
        }
    }
}
