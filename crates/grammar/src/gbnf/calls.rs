//! Translates grammars of calls, written in Lark with embedded schemas, into GBNF for servers that know no other
//! notation. Must not know which model family uses which call syntax.

use serde_json::Value;

use super::literal::literal;
use super::schema::SchemaRules;
use crate::fault::GrammarFault;

/// The number that some families put before a call, in Lark and in GBNF.
const NUMBER: (&str, &str) = ("/[0-9]{1,3}/", "[0-9]{1,3}");

/// Translates the grammar of required calls into GBNF. The result allows only what the original allows, and in some
/// cases less. Spacing is fixed, properties that a schema does not name are excluded, and characters are escaped only
/// if JSON requires it.
///
/// # Errors
/// What GBNF cannot express: free text up to a mark, special tokens, and some schema keywords.
pub fn calls_as_gbnf(lark: &str) -> Result<String, GrammarFault> {
    let mut out = String::new();
    let mut schemas = SchemaRules::default();
    for line in lark.lines().filter(|line| !line.trim().is_empty()) {
        let (name, body) = line.split_once(": ").ok_or_else(|| invalid("a rule has no body"))?;
        if name.ends_with(']') {
            return Err(free());
        }
        if body.starts_with("%lark") {
            return Err(unsupported("format", "its server takes no grammar in Lark"));
        }
        let body = match body.trim().strip_prefix("%json ") {
            Some(schema) => {
                let schema: Value =
                    serde_json::from_str(schema).map_err(|error| invalid(&error.to_string()))?;
                schemas.root(&name_of(name), &schema)?
            }
            None => rule(body)?,
        };
        out.push_str(&format!("{} ::= {body}\n", name_of(name)));
    }
    out.push_str(&schemas.rules());
    Ok(out)
}

/// Converts a rule's name. GBNF names have no underscores, and the first rule has a name of its own.
fn name_of(name: &str) -> String {
    if name == "start" { "root".to_owned() } else { name.replace('_', "-") }
}

fn rule(body: &str) -> Result<String, GrammarFault> {
    let mut out = String::new();
    let mut rest = body;
    while let Some(next) = rest.chars().next() {
        let taken = match next {
            '"' => {
                let mut texts = serde_json::Deserializer::from_str(rest).into_iter::<String>();
                let text = texts.next().and_then(Result::ok).ok_or_else(|| invalid("a text does not end"))?;
                out.push_str(&literal(&text));
                texts.byte_offset()
            }
            ' ' | '(' | ')' | '|' | '*' | '?' | '+' => {
                out.push(next);
                1
            }
            '/' if rest.starts_with(NUMBER.0) => {
                out.push_str(NUMBER.1);
                NUMBER.0.len()
            }
            c if c.is_ascii_lowercase() => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                out.push_str(&name_of(rest.get(..end).unwrap_or_default()));
                end
            }
            '<' => return Err(unsupported("special tokens", "its server cannot name them")),
            _ => return Err(free()),
        };
        rest = rest.get(taken..).unwrap_or_default();
    }
    Ok(out.trim().to_owned())
}

fn free() -> GrammarFault {
    unsupported("free text", "its server cannot end text at a mark")
}

fn unsupported(what: &str, why: &str) -> GrammarFault {
    GrammarFault::unsupported(what, "", why)
}

fn invalid(why: &str) -> GrammarFault {
    GrammarFault::invalid("", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_written_in_gbnf() {
        let lark = "call: (call_0 | call_1)\ncall_0: \"{\\\"name\\\": \\\"f\\\", \\\"a\\\": \" args_0 \"}\\n\"\n\
            args_0: %json {\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"boolean\"}},\"required\":[\"n\"]}\n\
            call_1: \"x\" \":\" /[0-9]{1,3}/\nstart: \"<tool_call>\" call (\";\" call)* \"\"\n";
        let expected = "call ::= (call-0 | call-1)\ncall-0 ::= \"{\\\"name\\\": \\\"f\\\", \\\"a\\\": \" args-0 \"}\\n\"\n\
            args-0 ::= \"{\" args-0-0 \"}\"\ncall-1 ::= \"x\" \":\" [0-9]{1,3}\nroot ::= \"<tool_call>\" call (\";\" call)* \"\"\n\
            args-0-0 ::= \"\\\"n\\\": \" (\"true\" | \"false\")\n";
        assert_eq!(calls_as_gbnf(lark).unwrap(), expected);
        assert!(super::super::to_lark(expected).is_ok());
    }

    #[test]
    fn a_definition_may_have_any_name() {
        let lark = "start: args_0\nargs_0: %json {\"$ref\":\"#/$defs/A b_ü\",\"$defs\":{\"A b_ü\":{\"type\":\"null\"}}}\n";
        assert_eq!(
            calls_as_gbnf(lark).unwrap(),
            "root ::= args-0\nargs-0 ::= args-0-def-0\nargs-0-def-0 ::= \"null\"\n"
        );
    }

    #[test]
    fn texts_match_their_patterns_as_json_writes_them() {
        for (schema, is) in [
            (r#"{"type":"string","pattern":"^a[\\\\\"b]?$"}"#, r#""a" (([b] | "\\\"" | "\\\\"))?"#),
            (r#"{"type":"string","pattern":"^\\d{2}"}"#, "([0-9]){2,2} json-char*"),
            (r#"{"type":"string","pattern":"^a$|b$"}"#, r#"("a" | json-char* "b")"#),
            (
                r#"{"type":"string","pattern":"^.{0,9}$"}"#,
                r#"(([\x20-\x21\x23-\x5B\x5D-\x7E\u0086-\u2027\u202A-\uFEFE\uFF00-\U0010FFFF] | "\\\"" | "\\\\" | "\\t")){0,9}"#,
            ),
            (r#"{"type":"string","allOf":[{"pattern":"^[a-c]+$"}]}"#, "([a-c])+"),
        ] {
            let told = calls_as_gbnf(&format!("start: a\na: %json {schema}\n")).unwrap();
            let rule = told.lines().find_map(|line| line.strip_prefix("a-0 ::= "));
            assert_eq!(rule, Some(is), "{schema}");
        }
    }

    #[test]
    fn what_gbnf_cannot_say_is_named() {
        for (lark, said) in [
            ("start: TEXT call\n", "free text"),
            ("lead[lazy]: TEXT \"<tool_call>\"\n", "free text"),
            ("start: /(?s:.*)/\n", "free text"),
            ("start: <[7]> call\n", "special tokens"),
            ("a: %json {\"type\":\"string\",\"pattern\":\"\\\\bword\"}\n", "pattern"),
            ("a: %json {\"type\":\"string\",\"pattern\":\"^a\",\"maxLength\":3}\n", "maxLength"),
            ("a: %json {\"type\":\"number\",\"allOf\":[{\"minimum\":1},{\"minimum\":2}]}\n", "allOf"),
            ("a: %json {\"type\":\"integer\",\"multipleOf\":3}\n", "multipleOf"),
            ("a: %json {\"$ref\":\"#/$defs/none\"}\n", "$ref"),
            ("a: %lark {\n start: \"x\"\n }\n", "format"),
            ("a: %json {\n", ""),
        ] {
            let error = calls_as_gbnf(lark).unwrap_err().to_string();
            assert!(error.contains(said), "{lark}: {error}");
        }
    }
}
