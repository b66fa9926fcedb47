//! Writes the calls of a family as a grammar that constrains an answer while it is generated: Lark, in llguidance's
//! dialect. Must not know how a grammar is enforced or how an answer is parsed.

mod lark;
mod schema;
mod tags;

use std::fmt::Write;

use headrace_domain::{Conversation, Tool, ToolChoice};
use serde_json::{Map, Value, json};

use crate::family::{
    CallLayout, FamilyRow, NamedLayout, NestedLayout, ObjectLayout, ReplyFamily, TagLayout, TypeAttribute,
};

use lark::{LarkWriter, as_regex, key_of, quoted};
pub use lark::{TEXT_GRAMMAR, TEXT_PATTERN};
use schema::{PropertyTypes, SchemaParts, is_required, names_nothing, parts, within};

/// The maximum depth of values that have tags of their own. Deeper values are JSON.
const MOST_NESTED: u32 = 8;

impl ReplyFamily {
    /// Whether arguments are written as one JSON object, so that a grammar ([`TEXT_GRAMMAR`]) can constrain a text
    /// among them. In JSON, a quote ends the text, and the text itself contains no bare quote. A text between tags
    /// could continue past its closing tag.
    pub fn holds_texts(self) -> bool {
        self == Self::Harmony
            || self.row().is_some_and(|row| matches!(row.body, CallLayout::Object(_) | CallLayout::Named(_)))
    }

    /// Whether a mark precedes each call and its arguments are one JSON object.
    pub fn marks_json_calls(self) -> bool {
        self.row().is_some_and(|row| {
            row.bare.is_empty() && matches!(row.body, CallLayout::Object(_) | CallLayout::Named(_))
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
            family => lark.row(family.row()?, &asked),
        }
        Some(lark.rules)
    }

    /// Whether a mark precedes every call, so that a grammar can forbid calls without a bound on other texts.
    pub fn marks_calls(self) -> bool {
        self == Self::Harmony || self.row().is_some_and(|row| row.bare.is_empty())
    }

    /// Returns the grammar, in Lark, for an answer without calls, from the end of its reasoning on. Free text cannot
    /// contain a mark that opens a call. `special` is as in [`Self::calls_as_grammar`]. Returns `None` if the family has
    /// calls without a mark, or no calls ([`Self::marks_calls`]).
    pub fn no_calls_as_grammar(self, special: &dyn Fn(&str) -> Option<u32>) -> Option<String> {
        let mut lark = LarkWriter { rules: String::new(), special, texts: 0 };
        match self {
            Self::Harmony => {
                lark.harmony(&CallConstraints { tools: Vec::new(), required: false, one: false });
            }
            family => {
                let row = family.row().filter(|row| row.bare.is_empty())?;
                let answer = lark.answer(row);
                lark.rule("start", &answer);
                lark.free_text(row);
            }
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

impl LarkWriter<'_> {
    /// Writes the grammar of a family that marks its calls or begins lines with them.
    fn row(&mut self, row: &FamilyRow, asked: &CallConstraints<'_>) {
        let (all, each) = (row.written.all, row.written.each);
        let call = "(".to_owned() + &self.calls(row, asked).join(" | ") + ")";
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
            let (empty, end) = self.no_answer(row);
            self.rule("start", &format!("{empty} {open} call {more} {rest} {end}"));
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
        let answer = self.answer(row);
        self.rule("start", &format!("(lead {open} call {more} {rest}){times} {answer}"));
        self.free_text(row);
        let lead = format!("{answer} {}", self.mark(mark));
        let name = if self.begins_with_special(mark) { "lead" } else { "lead[lazy]" };
        self.rule(name, &lead);
    }

    /// Writes the rule of free text, which contains no mark that opens a call.
    fn free_text(&mut self, row: &FamilyRow) {
        let section = row.section.map(|(open, _)| open);
        let marks = section.into_iter().chain(row.open.iter().copied());
        let plain: Vec<&str> = marks.filter(|mark| !self.begins_with_special(mark)).collect();
        let free = self.without(&plain);
        self.rule("TEXT", &free);
    }

    /// Returns the marks around an answer that are special tokens: those that open it, and those that close it.
    fn answer_marks(&self, row: &FamilyRow) -> (String, String) {
        let Some(answer) = row.answer else { return (String::new(), String::new()) };
        let special = |marks: &'static [&'static str]| -> Vec<String> {
            let special = marks.iter().filter(|mark| self.begins_with_special(mark));
            special.map(|mark| self.mark(mark)).collect()
        };
        let (open, close) = (special(answer.open), special(answer.close));
        let open = if open.is_empty() { String::new() } else { format!("({})?", open.join(" | ")) };
        let close: Vec<String> = close.iter().map(|mark| format!("({mark})?")).collect();
        (open, close.join(" "))
    }

    /// Returns the expression for free text, with the marks around an answer that text cannot contain.
    fn answer(&self, row: &FamilyRow) -> String {
        let (open, close) = self.answer_marks(row);
        format!("{open} TEXT {close}").trim().to_owned()
    }

    /// Returns the expressions for an answer without text before calls, and for the end of an answer after them.
    fn no_answer(&self, row: &FamilyRow) -> (String, String) {
        let (open, close) = self.answer_marks(row);
        (format!("{open} {close}").trim().to_owned(), close)
    }

    /// Returns the rules for the calls of each tool, without the marks around them.
    fn calls(&mut self, row: &FamilyRow, asked: &CallConstraints<'_>) -> Vec<String> {
        let mut calls = Vec::new();
        for (at, tool) in asked.tools.iter().enumerate() {
            let schema = asked.schema(tool);
            let call = match &row.body {
                CallLayout::Object(layout) => self.object(at, tool, layout, &schema),
                CallLayout::Named(named) => self.named(at, tool, named, &schema),
                CallLayout::Tagged(tagged) => self.tagged(at, tool, tagged, &schema),
                CallLayout::Nested(nested) => self.nested(at, tool, nested, &schema),
                CallLayout::Pythonic => self.pythonic(at, tool, &schema, true),
                CallLayout::Lines => self.pythonic(at, tool, &schema, false),
                CallLayout::Gemma { quote } => self.gemma(at, tool, quote, &schema),
            };
            let name = format!("call_{at}");
            self.rule(&name, &call);
            calls.push(name);
        }
        calls
    }

    fn object(&mut self, at: usize, tool: &Tool, layout: &ObjectLayout, schema: &Value) -> String {
        let arguments = format!("args_{at}");
        self.json(&arguments, schema);
        let name = Value::from(tool.name.as_str());
        let keys = format!("\"{}\": {name}, \"{}\": ", layout.name, layout.arguments);
        let head = match (layout.name, layout.number) {
            ("", _) => quoted(&format!("{{{name}: ")),
            (_, "") => quoted(&format!("{{{keys}")),
            (_, number) => {
                let number = quoted(&format!("{{\"{number}\": \""));
                format!("{number} /[0-9]{{1,3}}/ {}", quoted(&format!("\", {keys}")))
            }
        };
        format!("{head} {arguments} \"}}\"")
    }

    fn named(&mut self, at: usize, tool: &Tool, named: &NamedLayout, schema: &Value) -> String {
        let arguments = format!("args_{at}");
        self.json(&arguments, schema);
        let number = if named.in_id { r#"":" /[0-9]{1,3}/"# } else { "" };
        let after = self.mark(named.after.first().copied().unwrap_or(""));
        format!("{} {} {number} {after} {arguments}", self.mark(named.before), quoted(&tool.name))
    }

    fn tagged(&mut self, at: usize, tool: &Tool, tagged: &TagLayout, schema: &Value) -> String {
        let line = if tagged.name_end.ends_with('\n') { "" } else { tagged.apart };
        let head = match tagged.name_rest {
            "" => self.mark(&[tagged.name_end, line].concat()),
            // The number of the call.
            rest => {
                let number = quoted(&[tagged.name_end, " index=\""].concat());
                format!("{number} /[0-9]{{1,3}}/ {}", self.mark(&["\"", rest].concat()))
            }
        };
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
            let (open, value, close) = self.tags(tagged, Some(&types));
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
            let shown = match tagged.has_attributes() {
                true => quoted(&key.replace('&', "&amp;").replace('"', "&quot;")),
                false => quoted(key),
            };
            self.rule(&rule, &format!("{open} {shown} {value} {is}"));
            let optional = if is_required(schema, key) { "" } else { "?" };
            let _ = write!(call, " {rule}{optional}");
        }
        let _ = write!(call, " {}", self.mark(tagged.end));
        call
    }

    /// Returns the text before a key, the text between the key and its value, and the text after the value. `types` are
    /// the types of the value, if they are known.
    fn tags(&self, tagged: &TagLayout, types: Option<&PropertyTypes>) -> (String, String, String) {
        let line = if tagged.lines { "\n" } else { "" };
        let close = [line, tagged.value_end, tagged.apart].concat();
        let open = self.mark(tagged.key);
        let (attribute, values): (&str, &[&str]) = match (tagged.types, types) {
            (TypeAttribute::None, _) => {
                let apart = if tagged.value.is_empty() { "" } else { tagged.apart };
                let value = [tagged.key_end, apart, tagged.value, line].concat();
                return (open, self.mark(&value), close);
            }
            (TypeAttribute::IsString, Some(types)) if types.text => ("string", &["true"]),
            (TypeAttribute::IsString, Some(_)) => ("string", &["false"]),
            (TypeAttribute::IsString, None) => ("string", &["true", "false"]),
            (TypeAttribute::Name, Some(types)) if types.text => ("type", &["string"]),
            (TypeAttribute::Name, Some(types)) => ("type", names_of(types.only)),
            (TypeAttribute::Name, None) => {
                ("type", &["string", "number", "boolean", "array", "object", "null"])
            }
        };
        let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
        let before = quoted(&format!("{} {attribute}=\"", tagged.key_end));
        let after = self.mark(&["\"", tagged.value].concat());
        (open, format!("{before} ({}) {after}", values.join(" | ")), close)
    }

    fn nested(&mut self, at: usize, tool: &Tool, nested: &NestedLayout, schema: &Value) -> String {
        let head = format!("{} {}", quoted(&tool.name), quoted(nested.name_end));
        if schema.get("properties").is_none() {
            // Any arguments: text between marks, up to the tag that ends the call.
            let mark = self.mark(nested.mark);
            let special = self.begins_with_special(nested.mark);
            let any = self.without(if special { &[] } else { std::slice::from_ref(&nested.mark) });
            self.rule(&format!("ANY_{at}"), &format!("{any} & ~/{}(?s:.*)/", as_regex(nested.end)));
            let lazy = if special { "" } else { "[lazy]" };
            self.rule(&format!("part_{at}{lazy}"), &format!("ANY_{at} {mark}"));
            return format!("{head} {mark} part_{at}* {}", quoted(nested.end));
        }
        let members = self.nested_members(&format!("arg_{at}"), nested, schema, schema, 0);
        format!("{head} {members} {}", self.mark(&[nested.mark, nested.end].concat()))
    }

    /// Returns the expression for the members of an object, each between tags of its own.
    fn nested_members(
        &mut self,
        rule: &str,
        nested: &NestedLayout,
        schema: &Value,
        root: &Value,
        depth: u32,
    ) -> String {
        let mut members = Vec::new();
        let properties = schema.get("properties").and_then(Value::as_object);
        for (number, (key, property)) in properties.into_iter().flatten().enumerate() {
            let rule = format!("{rule}_{number}");
            let value = self.nested_value(&rule, nested, (key, property), root, depth);
            self.rule(&rule, &value);
            members.push(rule + if is_required(schema, key) { "" } else { "?" });
        }
        members.join(" ")
    }

    /// Returns the expression for a value between the tags of its name.
    fn nested_value(
        &mut self,
        rule: &str,
        nested: &NestedLayout,
        (key, property): (&str, &Value),
        root: &Value,
        depth: u32,
    ) -> String {
        let open = self.mark(&format!("{}<{key}>", nested.mark));
        let close = format!("{}</{key}>", nested.mark);
        let end = self.mark(&close);
        let types = PropertyTypes::of(property, root);
        let depth = depth.saturating_add(1);
        let is = match (types.texts, parts(property, root).filter(|_| depth < MOST_NESTED)) {
            (Some(texts), _) => {
                let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                format!("({}) {end}", texts.join(" | "))
            }
            (None, Some(SchemaParts::Properties(object))) => {
                format!("{} {end}", self.nested_members(&format!("{rule}_of"), nested, object, root, depth))
            }
            (None, Some(SchemaParts::Items(items))) => {
                let item = format!("{rule}_item");
                let value = self.nested_value(&item, nested, (nested.item, items), root, depth);
                self.rule(&item, &value);
                format!("{item}* {end}")
            }
            (None, None) if types.text => {
                self.text(nested.mark, &close, property.as_object().unwrap_or(&Map::new()))
            }
            (None, None) => {
                let value = format!("{rule}_value");
                self.json(&value, &within(property, root));
                format!("{value} {end}")
            }
        };
        format!("{open} {is}")
    }

    /// `words` is whether truth values are Python's words.
    fn pythonic(&mut self, at: usize, tool: &Tool, schema: &Value, words: bool) -> String {
        let list = self.arguments(at, schema, ", ", &mut |lark, rule, key, property| {
            let is = match words && PropertyTypes::of(property, schema).boolean {
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
            false => format!("\"final\" {message} TEXT"),
        };
        let ends: Vec<&str> = [if calls.is_empty() { "" } else { "call" }, &answer]
            .into_iter()
            .filter(|end| !end.is_empty())
            .collect();
        self.rule("start", &format!("(thought)* {channel} ({})", ends.join(" | ")));
        self.rule("thought", &format!("{channel} (\"analysis\" | \"commentary\") {message} {next}"));
        if !calls.is_empty() {
            self.rule("call", &calls.join(" | "));
        }
        let plain: Vec<&str> = ["<|end|>", "<|start|>", "<|channel|>", "<|message|>"]
            .into_iter()
            .filter(|mark| (self.special)(mark).is_none())
            .collect();
        let free = self.without(&plain);
        self.rule("TEXT", &free);
    }
}

/// Returns the names of types that are not texts, as an attribute states them.
fn names_of(only: Option<&str>) -> &'static [&'static str] {
    match only {
        Some("integer" | "number") => &["number"],
        Some("boolean") => &["boolean"],
        Some("array") => &["array"],
        Some("object") => &["object"],
        Some("null") => &["null"],
        _ => &["number", "boolean", "array", "object", "null"],
    }
}
