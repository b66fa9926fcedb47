//! Translates the required form of an answer into the fields of each kind of server. Must not know a grammar engine or
//! how a server enforces the form.
//!
//! vLLM: `vllm/sampling_params.py` (`StructuredOutputsParams`). SGLang: `sampling/sampling_params.py` (`json_schema`,
//! `regex`, `ebnf`, `structural_tag`, all of them texts). llama.cpp: `tools/server/README.md` (`json_schema`,
//! `grammar`).

use std::fmt::Write as _;

use headrace_domain::{ResponseFormat, TaggedForm};
use headrace_engine_api::{FormKinds, Job, JobError, SubmitRefusal};
use serde_json::{Map, Value, json};

use crate::kind::UpstreamKind;

/// Returns the kinds of forms that servers of a kind support.
pub(super) const fn kinds(kind: UpstreamKind) -> FormKinds {
    let all = FormKinds::JSON.or(FormKinds::CHOICE).or(FormKinds::GBNF);
    match kind {
        UpstreamKind::Vllm => {
            all.or(FormKinds::SPACED).or(FormKinds::REGEX).or(FormKinds::LARK).or(FormKinds::TAGS)
        }
        UpstreamKind::Sglang => all.or(FormKinds::REGEX).or(FormKinds::TAGS),
        UpstreamKind::LlamaCpp => all,
        _ => FormKinds::NONE,
    }
}

/// Refuses a form that a server of this kind would not enforce for the whole answer.
///
/// # Errors
/// What was requested and is not supported.
pub(super) fn check(kind: UpstreamKind, job: &Job) -> Result<(), SubmitRefusal> {
    let Some(grammar) = &job.grammar else { return Ok(()) };
    let bad = |what: String| Err(SubmitRefusal::Invalid { what });
    let (asked, name) = FormKinds::of(grammar.form());
    if !kinds(kind).has(asked) {
        return bad(format!("{name}: servers of kind `{kind}` have no parameter for that"));
    }
    if grammar.thought().is_some_and(|thought| thought.is_open) {
        return bad(format!("a form behind a thought: servers of kind `{kind}` begin with the form"));
    }
    if job.generated > 0 {
        return bad(format!(
            "an answer in a form that was begun elsewhere: servers of kind `{kind}` begin anew"
        ));
    }
    Ok(())
}

/// Returns the error for a job with a form that the server refused before it began. The server's own message is not
/// included, because it may contain the caller's text. It is kept with the server's failures.
pub(super) fn not_taken(job: &Job) -> JobError {
    let name = job.grammar.as_ref().map_or("a form", |grammar| FormKinds::of(grammar.form()).1);
    let what = format!(
        "{name}: its server does not take it as it is. A simpler form may do; operators see its words in `headrace upstreams`"
    );
    JobError::Refused(SubmitRefusal::Invalid { what })
}

/// Returns vLLM's `structured_outputs`.
pub(super) fn vllm(form: &ResponseFormat) -> Value {
    match form {
        ResponseFormat::JsonObject => json!({"json_object": true}),
        ResponseFormat::JsonSchema(form) => {
            let mut said = json!({"json": form.schema});
            if form.compact {
                put(&mut said, "disable_any_whitespace", true.into());
            }
            if let Some(pattern) = &form.white_space {
                put(&mut said, "whitespace_pattern", pattern.as_str().into());
            }
            said
        }
        ResponseFormat::Regex(pattern) => json!({"regex": pattern}),
        ResponseFormat::Choice(choices) => json!({"choice": choices}),
        ResponseFormat::Grammar { text, .. } => json!({"grammar": text}),
        ResponseFormat::Tags(tagged) => json!({"structural_tag": tags(tagged)}),
    }
}

/// Returns a field of SGLang's `sampling_params` and its text.
pub(super) fn sglang(form: &ResponseFormat) -> (&'static str, String) {
    match form {
        ResponseFormat::JsonObject => ("json_schema", r#"{"type":"object"}"#.to_owned()),
        ResponseFormat::JsonSchema(form) => ("json_schema", form.schema.to_string()),
        ResponseFormat::Regex(pattern) => ("regex", pattern.clone()),
        ResponseFormat::Choice(choices) => ("regex", either(choices)),
        ResponseFormat::Grammar { text, .. } => ("ebnf", text.clone()),
        ResponseFormat::Tags(tagged) => ("structural_tag", tags(tagged)),
    }
}

/// Returns a field of llama.cpp's body, or `None` if it has none for this form.
pub(super) fn llama(form: &ResponseFormat) -> Option<(&'static str, Value)> {
    match form {
        ResponseFormat::JsonObject => Some(("json_schema", json!({"type": "object"}))),
        ResponseFormat::JsonSchema(form) => Some(("json_schema", form.schema.clone())),
        ResponseFormat::Choice(choices) => Some(("grammar", choice_as_gbnf(choices).into())),
        ResponseFormat::Grammar { text, .. } => Some(("grammar", text.as_str().into())),
        ResponseFormat::Regex(_) | ResponseFormat::Tags(_) => None,
    }
}

fn put(said: &mut Value, key: &str, value: Value) {
    said.as_object_mut().into_iter().for_each(|fields| drop(fields.insert(key.to_owned(), value.clone())));
}

/// Returns XGrammar's structural tags, as text.
fn tags(tagged: &TaggedForm) -> String {
    let one = |tag: &headrace_domain::FormTag| {
        Value::from(Map::from_iter([
            ("begin".to_owned(), tag.begin.as_str().into()),
            ("schema".to_owned(), tag.schema.clone()),
            ("end".to_owned(), tag.end.as_str().into()),
        ]))
    };
    let structures: Vec<Value> = tagged.tags.iter().map(one).collect();
    json!({"type": "structural_tag", "structures": structures, "triggers": tagged.triggers}).to_string()
}

/// Returns a regular expression that matches one of the texts.
fn either(choices: &[String]) -> String {
    let escaped = |choice: &String| {
        let mut out = String::new();
        for c in choice.chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                c => {
                    if r"\.+*?()|[]{}^$/".contains(c) {
                        out.push('\\');
                    }
                    out.push(c);
                }
            }
        }
        out
    };
    let each: Vec<String> = choices.iter().map(escaped).collect();
    format!("({})", each.join("|"))
}

/// Returns a GBNF grammar that matches one of the texts.
fn choice_as_gbnf(choices: &[String]) -> String {
    let mut grammar = "root ::= ".to_owned();
    for (at, choice) in choices.iter().enumerate() {
        grammar.push_str(if at == 0 { "\"" } else { " | \"" });
        for c in choice.chars() {
            match c {
                '"' | '\\' => grammar.extend(['\\', c]),
                c if c.is_ascii_control() => {
                    // Writing to a string cannot fail.
                    let _ = write!(grammar, "\\x{:02X}", u32::from(c));
                }
                c => grammar.push(c),
            }
        }
        grammar.push('"');
    }
    grammar
}
