//! Writes the calls of a family as a grammar that constrains an answer while it is generated: Lark, in llguidance's
//! dialect. Must not know how a grammar is enforced or how an answer is parsed.

mod tags;

use std::fmt::Write;

use headrace_domain::{Conversation, Tool, ToolChoice};
use serde_json::{Map, Value, json};

use crate::coerce;
use crate::family::{CallLayout, FamilyRow, NamedLayout, ReplyFamily, TagLayout};

/// Keyword beside the schema of arguments that consist of one text: the text's grammar in Lark. The grammar describes
/// the text as it appears inside a JSON string.
pub const TEXT_GRAMMAR: &str = "x-text-grammar";
/// Keyword beside the schema of a text: a regular expression that must match the whole text. It is written as between
/// slashes in Lark.
pub const TEXT_PATTERN: &str = "x-text-pattern";

impl ReplyFamily {
    /// Whether arguments are written as one JSON object, so that a grammar ([`TEXT_GRAMMAR`]) can constrain a text
    /// among them. In JSON, a quote ends the text, and the text itself contains no bare quote. A text between tags
    /// could continue past its closing tag.
    pub fn holds_texts(self) -> bool {
        self == Self::Harmony
            || self
                .row()
                .is_some_and(|row| matches!(row.body, CallLayout::Object { .. } | CallLayout::Named(_)))
    }

    /// Whether a mark precedes each call and its arguments are one JSON object.
    pub fn marks_json_calls(self) -> bool {
        self.row().is_some_and(|row| {
            row.bare.is_empty() && matches!(row.body, CallLayout::Object { .. } | CallLayout::Named(_))
        })
    }

    /// Returns the grammar, in Lark as llguidance reads it, for an answer to `conversation`, from the end of its
    /// reasoning on. The grammar allows only calls of permitted tools, with arguments that fit their schemas. Returns
    /// `None` if no constraint is needed or the family writes no calls.
    ///
    /// If a call is required, the answer consists only of calls. Otherwise text is free up to a mark that opens a call.
    /// Such a grammar is needed if a tool is strict, if not all tools are allowed, or if at most one call is allowed.
    /// Tools that are not strict then accept any JSON object.
    ///
    /// `special` returns the id of a mark that is a special token. Schemas are copied unchanged into `%json`. The
    /// caller that provides the tools must handle keywords that the grammar's engine does not know, and the amount of
    /// white space.
    ///
    /// Some families write values without quotes (`glm45` and others). In those, a text is constrained by `enum`,
    /// `const`, its lengths and a [`TEXT_PATTERN`], and every other value by its schema.
    pub fn calls_as_grammar(
        self,
        conversation: &Conversation,
        special: &dyn Fn(&str) -> Option<u32>,
    ) -> Option<String> {
        let asked = CallConstraints::of(conversation)?;
        let mut lark = LarkWriter { rules: String::new(), special, texts: 0 };
        match self {
            Self::Plain => return None,
            Self::Harmony => lark.harmony(&asked),
            family => lark.row(family, family.row()?, &asked),
        }
        Some(lark.rules)
    }
}

/// The constraints on an answer.
struct CallConstraints<'c> {
    tools: Vec<&'c Tool>,
    required: bool,
    one: bool,
}

impl<'c> CallConstraints<'c> {
    /// Returns `None` if no grammar is needed.
    fn of(conversation: &'c Conversation) -> Option<Self> {
        let tools = &conversation.tools;
        let (names, required): (Option<&[String]>, bool) = match &conversation.tool_choice {
            ToolChoice::None => return None,
            ToolChoice::Auto => (None, false),
            ToolChoice::Required => (None, true),
            ToolChoice::Named(name) => (Some(std::slice::from_ref(name)), true),
            ToolChoice::Allowed { names, required } => (Some(names), *required),
        };
        let one = conversation.one_call || matches!(conversation.tool_choice, ToolChoice::Named(_));
        let wanted = required || one || names.is_some() || tools.iter().any(|tool| tool.strict);
        let allowed = |tool: &&Tool| names.is_none_or(|names| names.contains(&tool.name));
        let tools: Vec<&Tool> = tools.iter().filter(allowed).collect();
        (wanted && !tools.is_empty()).then_some(Self { tools, required, one })
    }

    /// Returns the schema of a tool's arguments. A tool that declares no arguments accepts none, even if its schema
    /// would accept any.
    fn schema(&self, tool: &Tool) -> Value {
        let schema = tool.parameters.as_ref();
        if !self.required && !tool.strict {
            // Any object, written in the way that its schema requests.
            let guidance = schema.and_then(|schema| schema.get("x-guidance")).cloned();
            return json!({ "type": "object", "x-guidance": guidance.unwrap_or_else(|| json!({})) });
        }
        let Some(schema) = schema.filter(|schema| !names_nothing(schema)) else {
            let guidance = json!({ "whitespace_flexible": false });
            return json!({ "type": "object", "properties": {}, "additionalProperties": false, "x-guidance": guidance });
        };
        match schema.clone() {
            Value::Object(schema) if !schema.contains_key("type") => {
                let mut typed = Map::from_iter([("type".to_owned(), json!("object"))]);
                typed.extend(schema);
                Value::Object(typed)
            }
            Value::Bool(_) => json!({ "type": "object" }),
            schema => schema,
        }
    }
}

/// Whether a schema of arguments declares no property, and no other keyword indicates that there are any.
fn names_nothing(schema: &Value) -> bool {
    const SAY_NOTHING: [&str; 9] = [
        "type",
        "properties",
        "required",
        "title",
        "description",
        "$schema",
        "$id",
        "$comment",
        "x-guidance",
    ];
    let empty = |key: &str| match schema.get(key) {
        Some(Value::Object(named)) => named.is_empty(),
        Some(Value::Array(named)) => named.is_empty(),
        other => other.is_none(),
    };
    let plain = |schema: &Map<String, Value>| {
        let keys = schema.keys().all(|key| SAY_NOTHING.contains(&key.as_str()));
        keys && schema.contains_key("properties")
    };
    schema.as_object().is_some_and(plain) && empty("properties") && empty("required")
}

/// A grammar that is being written.
struct LarkWriter<'s> {
    rules: String,
    special: &'s dyn Fn(&str) -> Option<u32>,
    /// The number of terminals named so far.
    texts: usize,
}

impl LarkWriter<'_> {
    fn rule(&mut self, name: &str, is: &str) {
        let _ = writeln!(self.rules, "{name}: {is}");
    }

    /// Writes the grammar of a family that marks its calls or begins lines with them.
    fn row(&mut self, family: ReplyFamily, row: &FamilyRow, asked: &CallConstraints<'_>) {
        let (all, each) = (row.written.all, row.written.each);
        let call = "(".to_owned() + &self.calls(family, row, asked).join(" | ") + ")";
        let mark = row.section.map(|(open, _)| open).or(row.open.first().copied());
        let mark = mark.filter(|mark| [all.0, each.0].concat().starts_with(mark));
        let more = match asked.one {
            true => String::new(),
            false => {
                let open = [each.1, row.written.between, each.0].concat();
                format!("({} call)*", self.mark(&open))
            }
        };
        let rest = self.mark(&[each.1, all.1].concat());
        self.rule("call", &call);
        if asked.required {
            let open = self.mark(&[all.0, each.0].concat());
            self.rule("start", &format!("{open} call {more} {rest}"));
            return;
        }
        let Some(mark) = mark else {
            // A call is recognised by its first character, at the beginning of a line.
            let open = self.mark(all.0);
            self.rule("start", &format!("TEXT | {open} call {more} {rest}"));
            self.rule("TEXT", r"/([^{\[\s](?s:.*))?/ & ~/(?s:.*)\n[{\[](?s:.*)/");
            return;
        };
        // After a call and the text that follows, another call may come.
        let opening = [all.0, each.0].concat();
        let open = self.mark(opening.strip_prefix(mark).unwrap_or(""));
        let times = if asked.one { "?" } else { "*" };
        self.rule("start", &format!("(lead {open} call {more} {rest}){times} TEXT"));
        let others = row.open.iter().copied().filter(|open| *open != mark);
        let plain = [mark].into_iter().chain(others).filter(|mark| (self.special)(mark).is_none());
        let plain: Vec<&str> = plain.collect();
        let free = self.without(&plain);
        self.rule("TEXT", &free);
        match (self.special)(mark) {
            Some(id) => self.rule("lead", &format!("TEXT <[{id}]>")),
            None => self.rule("lead[lazy]", &format!("TEXT {}", quoted(mark))),
        }
    }

    /// Returns the rules for the calls of each tool, without the marks around them.
    fn calls(&mut self, family: ReplyFamily, row: &FamilyRow, asked: &CallConstraints<'_>) -> Vec<String> {
        let mut calls = Vec::new();
        for (at, tool) in asked.tools.iter().enumerate() {
            let schema = asked.schema(tool);
            let call = match &row.body {
                CallLayout::Object { arguments, .. } => self.object(at, tool, arguments, &schema),
                CallLayout::Named(_) if family == ReplyFamily::MistralArray => {
                    self.object(at, tool, "arguments", &schema)
                }
                CallLayout::Named(named) => self.named(at, tool, named, &schema),
                CallLayout::Tagged(tagged) => self.tagged(at, tool, tagged, &schema),
                CallLayout::Pythonic => self.pythonic(at, tool, &schema),
                CallLayout::Gemma { quote } => self.gemma(at, tool, quote, &schema),
            };
            let name = format!("call_{at}");
            self.rule(&name, &call);
            calls.push(name);
        }
        calls
    }

    fn json(&mut self, rule: &str, schema: &Value) {
        let only = schema
            .get("properties")
            .and_then(Value::as_object)
            .and_then(|properties| properties.keys().next());
        if let (Some(lark), Some(key)) = (schema.get(TEXT_GRAMMAR).and_then(Value::as_str), only) {
            let open = quoted(&format!("{{{}: \"", Value::from(key.as_str())));
            self.rule(rule, &format!("{open} {rule}_text {}", quoted("\"}")));
            self.rule(&format!("{rule}_text"), &format!("%lark {{\n {lark}\n }}"));
            return;
        }
        self.rule(rule, &format!("%json {schema}"));
    }

    fn object(&mut self, at: usize, tool: &Tool, key: &str, schema: &Value) -> String {
        let arguments = format!("args_{at}");
        self.json(&arguments, schema);
        let head = format!("{{\"name\": {}, \"{key}\": ", Value::from(tool.name.as_str()));
        format!("{} {arguments} \"}}\"", quoted(&head))
    }

    fn named(&mut self, at: usize, tool: &Tool, named: &NamedLayout, schema: &Value) -> String {
        let arguments = format!("args_{at}");
        self.json(&arguments, schema);
        let number = if named.in_id { r#"":" /[0-9]{1,3}/"# } else { "" };
        let after = self.mark(named.after.first().copied().unwrap_or(""));
        format!("{} {} {number} {after} {arguments}", self.mark(named.before), quoted(&tool.name))
    }

    fn tagged(&mut self, at: usize, tool: &Tool, tagged: &TagLayout, schema: &Value) -> String {
        let line = if tagged.name_end.ends_with('\n') { "" } else { "\n" };
        let head = self.mark(&[tagged.name_end, line].concat());
        let mut call = format!("{} {head}", quoted(&tool.name));
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            // Any arguments.
            let (open, value, close) = self.tags(tagged, None);
            let text = self.text(tagged.value_end, &close, &Map::new());
            let _ = write!(call, " ({open} /[^<>\"\\s]+/ {value} {text})* {}", self.mark(tagged.end));
            return call;
        };
        for (number, (key, property)) in properties.iter().enumerate() {
            let rule = format!("arg_{at}_{number}");
            let types = PropertyTypes::of(property, schema);
            let (open, value, close) = self.tags(tagged, Some(types.text));
            let end = self.mark(&close);
            let is = match types.texts {
                Some(texts) => {
                    let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                    format!("({}) {end}", texts.join(" | "))
                }
                None if types.text => {
                    self.text(tagged.value_end, &close, property.as_object().unwrap_or(&Map::new()))
                }
                None => {
                    let value = format!("value_{at}_{number}");
                    self.json(&value, &within(property, schema));
                    format!("{value} {end}")
                }
            };
            self.rule(&rule, &format!("{open} {} {value} {is}", quoted(key)));
            let optional = if is_required(schema, key) { "" } else { "?" };
            let _ = write!(call, " {rule}{optional}");
        }
        let _ = write!(call, " {}", self.mark(tagged.end));
        call
    }

    /// Returns the text before a key, the text between the key and its value, and the text after the value. `text` is
    /// whether the value is a text, if that is known.
    fn tags(&self, tagged: &TagLayout, text: Option<bool>) -> (String, String, String) {
        let line = if tagged.lines { "\n" } else { "" };
        // DSML distinguishes texts from JSON.
        let says = match text {
            _ if tagged.key_end != "\"" => "",
            Some(true) => " string=\"true\"",
            Some(false) => " string=\"false\"",
            None => {
                let value = r#""\" string=\"" ("true" | "false") "\">""#.to_owned();
                return (self.mark(tagged.key), value, [tagged.value_end, "\n"].concat());
            }
        };
        let apart = if tagged.value.starts_with('<') { "\n" } else { "" };
        let value = [tagged.key_end, says, apart, tagged.value, line].concat();
        let close = [line, tagged.value_end, "\n"].concat();
        (self.mark(tagged.key), self.mark(&value), close)
    }

    fn pythonic(&mut self, at: usize, tool: &Tool, schema: &Value) -> String {
        let list = self.arguments(at, schema, ", ", &mut |lark, rule, key, property| {
            let is = match PropertyTypes::of(property, schema).boolean {
                true => r#""True" | "False""#.to_owned(),
                false => {
                    let value = format!("{rule}_value");
                    lark.json(&value, &within(property, schema));
                    value
                }
            };
            lark.rule(rule, &format!("{} \"=\" ({is})", key_of(key)));
        });
        format!("{} {list} \")\"", quoted(&format!("{}(", tool.name)))
    }

    fn gemma(&mut self, at: usize, tool: &Tool, quote: &str, schema: &Value) -> String {
        let list = self.arguments(at, schema, ",", &mut |lark, rule, key, property| {
            let types = PropertyTypes::of(property, schema);
            let marked = |lark: &Self, text: &str| format!("{0} {text} {0}", lark.mark(quote));
            let is = match types.texts {
                Some(texts) => {
                    let texts: Vec<String> = texts.iter().map(|text| marked(lark, &quoted(text))).collect();
                    texts.join(" | ")
                }
                None if types.only_text => {
                    let text = lark.text(quote, quote, property.as_object().unwrap_or(&Map::new()));
                    format!("{} {text}", lark.mark(quote))
                }
                None => {
                    let value = format!("{rule}_value");
                    lark.json(&value, &within(property, schema));
                    // A value that may be a text or another type may be written as a text.
                    let text = types.text.then(|| lark.text(quote, quote, &Map::new()));
                    let text = text.map(|text| format!(" | {} {text}", lark.mark(quote)));
                    value + &text.unwrap_or_default()
                }
            };
            lark.rule(rule, &format!("{} \":\" ({is})", key_of(key)));
        });
        format!("{} {list} \"}}\"", quoted(&format!("call:{}{{", tool.name)))
    }

    /// Returns a list of arguments: first the required ones, then the others, which may be missing. `write` writes the
    /// rule of one argument.
    fn arguments(
        &mut self,
        at: usize,
        schema: &Value,
        comma: &str,
        write: &mut dyn FnMut(&mut Self, &str, &str, &Value),
    ) -> String {
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            // Any arguments: the rule of an argument with any key and without a schema.
            let any = format!("any_{at}");
            write(self, &any, "", &json!({}));
            return format!("({any} ({} {any})*)?", quoted(comma));
        };
        let (mut needed, mut others) = (Vec::new(), Vec::new());
        for (number, (key, property)) in properties.iter().enumerate() {
            let rule = format!("arg_{at}_{number}");
            write(self, &rule, key, property);
            if is_required(schema, key) { &mut needed } else { &mut others }.push(rule);
        }
        let comma = quoted(comma);
        if !needed.is_empty() {
            let others: Vec<String> = others.iter().map(|rule| format!("({comma} {rule})?")).collect();
            return format!("{} {}", needed.join(&format!(" {comma} ")), others.join(" "));
        }
        // The first argument that is present has no comma before it.
        let mut list = String::new();
        for (number, rule) in others.iter().enumerate().rev() {
            let name = format!("list_{at}_{number}");
            let is = match list.is_empty() {
                true => rule.clone(),
                false => format!("{rule} ({comma} {list})? | {list}"),
            };
            self.rule(&name, &is);
            list = name;
        }
        if list.is_empty() { list } else { format!("({list})?") }
    }

    /// GPT-OSS: reasoning and remarks, then a call or the answer.
    fn harmony(&mut self, asked: &CallConstraints<'_>) {
        let mut calls = Vec::new();
        for (at, tool) in asked.tools.iter().enumerate() {
            let arguments = format!("args_{at}");
            self.json(&arguments, &asked.schema(tool));
            let to = quoted(&format!("commentary to=functions.{} ", tool.name));
            let form = self.mark("<|constrain|>json<|message|>");
            calls.push(format!("{to} {form} {arguments}"));
        }
        let (channel, message) = (self.mark("<|channel|>"), self.mark("<|message|>"));
        let next = self.text("<|end|>", "<|end|><|start|>assistant", &Map::new());
        let answer = match asked.required {
            true => String::new(),
            false => format!(" | \"final\" {message} TEXT"),
        };
        self.rule("start", &format!("(thought)* {channel} (call{answer})"));
        self.rule("thought", &format!("{channel} (\"analysis\" | \"commentary\") {message} {next}"));
        self.rule("call", &calls.join(" | "));
        let plain: Vec<&str> = ["<|end|>", "<|start|>", "<|channel|>", "<|message|>"]
            .into_iter()
            .filter(|mark| (self.special)(mark).is_none())
            .collect();
        let free = self.without(&plain);
        self.rule("TEXT", &free);
    }

    /// Writes the rule for a text without `mark`, with the lengths of `schema`, followed by `close`. `close` contains
    /// the mark and ends the text. Returns the expression for both.
    fn text(&mut self, mark: &str, close: &str, schema: &Map<String, Value>) -> String {
        let special = (self.special)(mark).is_some();
        let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
        let mut is = self.without(if special { &[] } else { std::slice::from_ref(&mark) });
        if let (least, most) = (bound("minLength"), bound("maxLength"))
            && (least.is_some() || most.is_some())
        {
            let most = most.map(|most| most.to_string()).unwrap_or_default();
            let _ = write!(is, " & /(?s:.){{{},{most}}}/", least.unwrap_or(0));
        }
        if let Some(pattern) = schema.get(TEXT_PATTERN).and_then(Value::as_str) {
            let _ = write!(is, " & /{pattern}/");
        }
        self.texts = self.texts.saturating_add(1);
        let number = self.texts;
        self.rule(&format!("TEXT_{number}"), &is);
        if special {
            // A line break before the special token would be part of the text.
            return format!("TEXT_{number} {}", self.mark(close.trim_start()));
        }
        // A lazy rule: the text ends as soon as its mark is complete.
        self.rule(&format!("text_{number}[lazy]"), &format!("TEXT_{number} {}", quoted(close)));
        format!("text_{number}")
    }

    /// Returns the expression for text without `marks`.
    fn without(&self, marks: &[&str]) -> String {
        let any = "/(?s:.*)/";
        if marks.is_empty() {
            return any.to_owned();
        }
        let marks: Vec<String> = marks.iter().map(|mark| as_regex(mark)).collect();
        format!("{any} & ~/(?s:.*)({})(?s:.*)/", marks.join("|"))
    }

    /// Returns the expression for a text of the template, with special tokens as token ids.
    fn mark(&self, text: &str) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut from = 0;
        let mut at = 0;
        while at < text.len() {
            let rest = text.get(at..).unwrap_or("");
            let ends = rest.match_indices(['>', ']']).map(|(end, _)| end.saturating_add(1));
            let found = (rest.starts_with(['<', '[']))
                .then(|| ends.into_iter().find_map(|end| Some((end, (self.special)(rest.get(..end)?)?))))
                .flatten();
            if let Some((end, id)) = found {
                parts.extend(text.get(from..at).filter(|text| !text.is_empty()).map(quoted));
                parts.push(format!("<[{id}]>"));
                at = at.saturating_add(end);
                from = at;
            } else {
                at = at.saturating_add(rest.chars().next().map_or(1, char::len_utf8));
            }
        }
        parts.extend(text.get(from..).filter(|text| !text.is_empty()).map(quoted));
        if parts.is_empty() { r#""""#.to_owned() } else { parts.join(" ") }
    }
}

/// The values that a property may have.
struct PropertyTypes {
    /// A text may be among the values.
    text: bool,
    only_text: bool,
    boolean: bool,
    /// All values, if each of them is a text.
    texts: Option<Vec<String>>,
}

impl PropertyTypes {
    fn of(property: &Value, root: &Value) -> Self {
        let types = coerce::types(property, root);
        let is = |name: &str| types.as_ref().is_none_or(|types| types.contains(&name));
        let only = |name: &str| types.as_ref().is_some_and(|types| types.as_slice() == [name]);
        let all: Vec<&Value> = match (property.get("const"), property.get("enum")) {
            (Some(one), _) => vec![one],
            (None, Some(Value::Array(all))) => all.iter().collect(),
            _ => Vec::new(),
        };
        let texts: Vec<String> = all.iter().filter_map(|one| Some(one.as_str()?.to_owned())).collect();
        let texts = (!texts.is_empty() && texts.len() == all.len()).then_some(texts);
        Self {
            text: texts.is_some() || is("string"),
            only_text: only("string"),
            boolean: only("boolean"),
            texts,
        }
    }
}

fn is_required(schema: &Value, key: &str) -> bool {
    let required = schema.get("required").and_then(Value::as_array);
    required.is_some_and(|keys| keys.iter().any(|one| one.as_str() == Some(key)))
}

/// Returns the schema of a property as a document of its own, with the definitions that it may refer to.
fn within(property: &Value, root: &Value) -> Value {
    let Value::Object(property) = property else { return property.clone() };
    let mut schema = property.clone();
    for key in ["$defs", "definitions", "x-guidance"] {
        if let Some(value) = root.get(key)
            && !schema.contains_key(key)
        {
            schema.insert(key.to_owned(), value.clone());
        }
    }
    Value::Object(schema)
}

/// Returns a key as Lark. An empty key matches any key.
fn key_of(key: &str) -> String {
    if key.is_empty() { "/[A-Za-z_][A-Za-z0-9_]*/".to_owned() } else { quoted(key) }
}

/// Returns a text as a Lark string, which has the form of a JSON string.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Returns a text as a regular expression for use between slashes.
fn as_regex(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            c if c.is_ascii_punctuation() && !matches!(c, '_' | '<' | '>' | '=' | ':' | '"') => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}
