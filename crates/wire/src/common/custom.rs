//! OpenAI's custom tools, which take a text instead of JSON. A model sees them as functions of one string, `input`, so
//! its calls have arguments with this one member. Callers see only the text. Knows no grammar engine.

use std::borrow::Cow;

use headrace_domain::{Code, CustomInput, GrammarSyntax, ResponseFormat, Tool};
use serde_json::{Value, json};

use crate::common::form::form_text;
use crate::common::names::tool_name;
use crate::fault::{FieldFault, Read};
use crate::json::JsonReader;
use crate::limits::WireLimits;

/// The one argument of a custom tool, as a model sees it.
const INPUT: &str = "input";

/// Reads the `custom` of a tool of type `custom`.
pub(crate) fn definition(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Tool> {
    let (mut name, mut description, mut input) = (None, None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "name" => name = Some(tool_name(r)?),
            "description" => description = r.optional(JsonReader::string)?.map(Cow::into_owned),
            "format" => input = r.optional(|r| format(r, limits))?,
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    Ok(tool(
        name.ok_or_else(|| FieldFault::missing("name"))?,
        description,
        input.unwrap_or(CustomInput::Text),
    ))
}

/// Creates a tool that takes a text.
pub(crate) fn tool(name: String, description: Option<String>, input: CustomInput) -> Tool {
    let parameters = Some(parameters(&input));
    Tool { custom: Some(input), ..Tool::function(name, description, parameters) }
}

/// Returns the schema by which a model sees a custom tool: a function of one string. The string's description gives the
/// form of the text.
fn parameters(input: &CustomInput) -> Value {
    let text = match input {
        CustomInput::Form(form) => match form.as_ref() {
            ResponseFormat::Regex(pattern) => {
                let about = format!("Text that this regular expression matches: {pattern}");
                json!({"type": "string", "description": about})
            }
            ResponseFormat::Grammar { text, .. } => {
                json!({"type": "string", "description": format!("Text of this grammar:\n{text}")})
            }
            _ => json!({"type": "string"}),
        },
        CustomInput::Text => json!({"type": "string"}),
    };
    json!({"type": "object", "properties": {INPUT: text}, "required": [INPUT]})
}

/// Reads the format of a custom tool's input. Chat has the grammar in an object of its own, and Responses has it beside
/// the type.
pub(crate) fn format(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<CustomInput> {
    let (mut kind, mut grammar) = (None, GrammarDraft::default());
    r.object(|r, key| {
        match key.as_ref() {
            "type" => kind = Some(r.string()?),
            "grammar" => r.object(|r, key| grammar.take(key, r, limits))?,
            key => grammar.take(key, r, limits)?,
        }
        Ok(())
    })?;
    match kind.ok_or_else(|| FieldFault::missing("type"))?.as_ref() {
        "text" => Ok(CustomInput::Text),
        "grammar" => grammar.finish().map_err(|fault| fault.under_key("grammar")),
        _ => Err(FieldFault::at("type", Code::InvalidValue, "it must be `text` or `grammar`")),
    }
}

/// A grammar as read so far.
#[derive(Default)]
struct GrammarDraft {
    definition: Option<String>,
    lark: Option<bool>,
}

impl GrammarDraft {
    fn take(&mut self, key: &str, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
        match key {
            "definition" => self.definition = Some(form_text(r, limits)?),
            "syntax" => {
                self.lark = Some(match r.string()?.as_ref() {
                    "lark" => true,
                    "regex" => false,
                    _ => return Err(FieldFault::new(Code::InvalidValue, "it must be `lark` or `regex`")),
                });
            }
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    }

    fn finish(self) -> Read<CustomInput> {
        let text = self.definition.ok_or_else(|| FieldFault::missing("definition"))?;
        let form = match self.lark.ok_or_else(|| FieldFault::missing("syntax"))? {
            true => ResponseFormat::Grammar { text, syntax: GrammarSyntax::Lark },
            false => ResponseFormat::Regex(text),
        };
        Ok(CustomInput::Form(Box::new(form)))
    }
}

/// Returns the text of a past call as the arguments that a model would have written.
pub(crate) fn arguments(input: &str) -> String {
    json!({INPUT: input}).to_string()
}

/// Extracts the text of a custom tool's call from its arguments, which come in pieces. Arguments of another form are
/// returned as they come, because a model or its grammar may have written the text itself.
#[derive(Debug, Default)]
pub(crate) struct CustomInputReader {
    state: InputState,
    /// The text that is held back: an undecided start, or an incomplete escape.
    held: String,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum InputState {
    /// Before the text.
    #[default]
    Before,
    /// Inside the text.
    Inside,
    /// Behind the text.
    After,
    /// The arguments themselves are the text.
    Plain,
}

impl CustomInputReader {
    /// Takes the next piece of the arguments. Returns what it adds to the text.
    pub(crate) fn push(&mut self, fragment: &str) -> String {
        match self.state {
            InputState::Plain => return fragment.to_owned(),
            InputState::After => return String::new(),
            InputState::Before | InputState::Inside => self.held.push_str(fragment),
        }
        if self.state == InputState::Before {
            match begun(&self.held) {
                ArgumentStart::Unknown => return String::new(),
                ArgumentStart::Plain => {
                    self.state = InputState::Plain;
                    return std::mem::take(&mut self.held);
                }
                ArgumentStart::At(at) => {
                    self.state = InputState::Inside;
                    self.held.drain(..at);
                }
            }
        }
        self.inside()
    }

    /// Ends the arguments. Returns the text that was held back because its form was never decided.
    pub(crate) fn finish(&mut self) -> String {
        match std::mem::replace(&mut self.state, InputState::After) {
            InputState::Before => std::mem::take(&mut self.held),
            _ => String::new(),
        }
    }

    /// Decodes the complete part of the text that is held back.
    fn inside(&mut self) -> String {
        let mut out = String::new();
        let mut rest = self.held.as_str();
        loop {
            let plain = rest.find(['"', '\\']).unwrap_or(rest.len());
            let (text, after) = rest.split_at(plain);
            out.push_str(text);
            rest = after;
            if rest.starts_with('"') {
                self.state = InputState::After;
                rest = "";
            }
            let Some(taken) = escape(rest).filter(|_| !rest.is_empty()) else { break };
            let (escaped, after) = rest.split_at(taken);
            // Anything that is not a JSON escape stays as it was written.
            let decoded = serde_json::from_str::<String>(&format!("\"{escaped}\""));
            out.push_str(decoded.as_deref().unwrap_or(escaped));
            rest = after;
        }
        self.held = rest.to_owned();
        out
    }
}

/// The length in bytes of the escape at the start of `rest`, including both halves of a surrogate pair. `None` if more
/// of the escape must come.
fn escape(rest: &str) -> Option<usize> {
    let unit = |at: usize| -> Option<usize> {
        let kind = rest.get(at + 1..)?.chars().next()?;
        if kind != 'u' {
            return Some(1 + kind.len_utf8());
        }
        // Four digits. Any other character among them ends the escape, which is then invalid.
        let digits = rest.get(at + 2..)?;
        let run = digits.bytes().take(4).take_while(u8::is_ascii_hexdigit).count();
        (run == 4 || digits.len() > run).then_some(2 + run)
    };
    let first = unit(0)?;
    let is_high = first == 6
        && rest
            .get(2..6)
            .and_then(|hex| u16::from_str_radix(hex, 16).ok())
            .is_some_and(|unit| (0xD800..0xDC00).contains(&unit));
    if !is_high {
        return Some(first);
    }
    match rest.get(first..)?.chars().next() {
        None => None,
        Some('\\') => {
            let second = unit(first)?;
            Some(if second == 6 { first + second } else { first })
        }
        Some(_) => Some(first),
    }
}

enum ArgumentStart {
    /// The text may still turn into an object with this one member.
    Unknown,
    /// The text is not such an object.
    Plain,
    /// The text begins at this byte.
    At(usize),
}

/// Whether `held` starts an object with the one member `input`, which is a string.
fn begun(held: &str) -> ArgumentStart {
    let mut at = 0;
    for part in ["{", "\"input\"", ":", "\""] {
        let rest = held.get(at..).unwrap_or("");
        let blank = rest.len() - rest.trim_start_matches([' ', '\n', '\r', '\t']).len();
        at += blank;
        let rest = held.get(at..).unwrap_or("");
        if rest.starts_with(part) {
            at += part.len();
        } else if part.starts_with(rest) {
            return ArgumentStart::Unknown;
        } else {
            return ArgumentStart::Plain;
        }
    }
    ArgumentStart::At(at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unwrapped(pieces: &[&str]) -> String {
        let mut unwrap = CustomInputReader::default();
        let mut out: String = pieces.iter().map(|piece| unwrap.push(piece)).collect();
        out.push_str(&unwrap.finish());
        out
    }

    #[test]
    fn arguments_become_text_and_text_stays() {
        for (arguments, expected) in [
            (r#"{"input": "a\nb"}"#, "a\nb"),
            (r#" { "input" : "x" } "#, "x"),
            (r#"{"input":"\u00e9\ud83d\ude00\"\\"}"#, "é😀\"\\"),
            (r#"{"input":"cut o"#, "cut o"),
            (r#"{"input":"cut \"#, "cut "),
            ("*** Begin Patch", "*** Begin Patch"),
            (r#"{"other": 1}"#, r#"{"other": 1}"#),
            (r#"{"inp"#, r#"{"inp"#),
            (r#"{"input": 5}"#, r#"{"input": 5}"#),
            (r#"{"input":"\ud83d x"}"#, r"\ud83d x"),
            (r#"{"input":"\q"}"#, r"\q"),
            ("", ""),
        ] {
            assert_eq!(unwrapped(&[arguments]), expected, "{arguments}");
        }
    }

    proptest! {
        #[test]
        fn any_text_comes_back_however_it_is_cut(text in any::<String>(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
            let arguments = arguments(&text);
            // A second version escapes all characters beyond ASCII, so that pairs of escapes are cut, too.
            let escaped: String = arguments
                .chars()
                .flat_map(|c| match c.is_ascii() {
                    true => vec![c],
                    false => c.encode_utf16(&mut [0; 2]).iter().flat_map(|unit| format!("\\u{unit:04x}").chars().collect::<Vec<_>>()).collect(),
                })
                .collect();
            for arguments in [arguments, escaped] {
                let mut at: Vec<usize> =
                    cuts.iter().map(|cut| arguments.floor_char_boundary(cut.index(arguments.len()))).collect();
                at.sort_unstable();
                let mut pieces = Vec::new();
                let mut from = 0;
                for to in at.into_iter().chain([arguments.len()]) {
                    pieces.push(&arguments[from..to]);
                    from = to;
                }
                prop_assert_eq!(unwrapped(&pieces), text.clone());
            }
        }
    }
}
