//! Filters of lists and of paths (RFC 7644, 3.4.2.2): comparisons with `eq`, joined by `and`. Must not know who asks.

use headrace_identity::{GroupRecord, UserRecord};
use serde_json::Value;

use super::problem::{ScimKind, ScimProblem};

/// Maximum length of a filter in bytes.
const MAX_BYTES: usize = 1_024;

/// Comparisons that must all hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScimFilter {
    terms: Vec<FilterTerm>,
}

/// An attribute in lower case, and the value that it must equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilterTerm {
    pub(super) attribute: String,
    pub(super) value: Value,
}

fn wrong(detail: &str) -> ScimProblem {
    let detail = format!("{detail}: a filter is `ATTRIBUTE eq \"VALUE\"`, and several are joined by `and`");
    ScimProblem::bad(ScimKind::InvalidFilter, detail)
}

impl ScimFilter {
    /// Parses a filter.
    ///
    /// # Errors
    /// [`ScimKind::InvalidFilter`] for other operators, unknown attributes and malformed text.
    pub(super) fn parse(text: &str) -> Result<Self, ScimProblem> {
        let filter = Self { terms: parse_terms(text)? };
        let is_known = |term: &FilterTerm| {
            let name = term.attribute.rsplit(':').next().unwrap_or_default();
            matches!(
                name,
                "id" | "username"
                    | "externalid"
                    | "displayname"
                    | "active"
                    | "emails"
                    | "emails.value"
                    | "members"
                    | "members.value"
            )
        };
        match filter.terms.iter().find(|term| !is_known(term)) {
            Some(term) => Err(wrong(&format!("`{}` cannot be filtered by", term.attribute))),
            None => Ok(filter),
        }
    }

    /// The user name that the filter demands.
    pub(super) fn user_name(&self) -> Option<&str> {
        let term = self.terms.iter().find(|term| short(&term.attribute) == "username");
        term.and_then(|term| term.value.as_str())
    }

    /// Whether a user meets the filter.
    pub(super) fn matches_user(&self, user: &UserRecord) -> bool {
        let profile = &user.profile;
        self.terms.iter().all(|FilterTerm { attribute, value }| match short(attribute) {
            "id" => value == user.id.as_str(),
            "username" => same_text(value, Some(&profile.name)),
            "externalid" => profile.external_id.as_deref().is_some_and(|id| value == id),
            "displayname" => same_text(value, profile.display_name.as_deref()),
            "active" => flag(value) == Some(profile.active),
            "emails" | "emails.value" => {
                profile.emails.iter().any(|email| same_text(value, Some(&email.value)))
            }
            _ => false,
        })
    }

    /// Whether a group meets the filter.
    pub(super) fn matches_group(&self, group: &GroupRecord) -> bool {
        let profile = &group.profile;
        self.terms.iter().all(|FilterTerm { attribute, value }| match short(attribute) {
            "id" => value == group.id.as_str(),
            "externalid" => profile.external_id.as_deref().is_some_and(|id| value == id),
            "displayname" => same_text(value, Some(&profile.name)),
            "members" | "members.value" => {
                value.as_str().is_some_and(|id| profile.members.iter().any(|member| member.as_str() == id))
            }
            _ => false,
        })
    }
}

/// An attribute without the name of its schema.
fn short(attribute: &str) -> &str {
    attribute.rsplit(':').next().unwrap_or_default()
}

fn same_text(value: &Value, text: Option<&str>) -> bool {
    let value = value.as_str().map(str::to_lowercase);
    value.is_some() && value == text.map(str::to_lowercase)
}

/// A boolean, also as the text that some clients send.
pub(super) fn flag(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::String(text) if text.eq_ignore_ascii_case("true") => Some(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

/// Parses comparisons. Attributes are in lower case in the result.
///
/// # Errors
/// [`ScimKind::InvalidFilter`] for other operators and malformed text.
pub(super) fn parse_terms(text: &str) -> Result<Vec<FilterTerm>, ScimProblem> {
    if text.len() > MAX_BYTES {
        return Err(wrong("the filter is longer than 1024 bytes"));
    }
    let mut terms = Vec::new();
    let mut rest = text.trim();
    loop {
        let (attribute, after) =
            rest.split_once(char::is_whitespace).ok_or_else(|| wrong("it ends too early"))?;
        let (operator, after) =
            after.trim_start().split_once(char::is_whitespace).ok_or_else(|| wrong("it ends too early"))?;
        if !operator.eq_ignore_ascii_case("eq") {
            return Err(wrong(&format!("the operator `{operator}` is not supported")));
        }
        let mut values = serde_json::Deserializer::from_str(after.trim_start()).into_iter::<Value>();
        let first = values.next().and_then(Result::ok);
        let (value, used) = match first {
            Some(value) if !value.is_object() && !value.is_array() => (value, values.byte_offset()),
            // Some clients write booleans with a capital letter.
            _ => {
                let word = after.split_whitespace().next().unwrap_or_default();
                let value =
                    flag(&Value::from(word)).ok_or_else(|| wrong("its value is no text in quotes"))?;
                (Value::Bool(value), word.len())
            }
        };
        terms.push(FilterTerm { attribute: attribute.to_ascii_lowercase(), value });
        rest = after.trim_start().get(used..).unwrap_or_default().trim();
        if rest.is_empty() {
            return Ok(terms);
        }
        let (word, next) = rest.split_once(char::is_whitespace).ok_or_else(|| wrong("it ends too early"))?;
        if !word.eq_ignore_ascii_case("and") {
            return Err(wrong(&format!("`{word}` is not supported")));
        }
        rest = next.trim_start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_are_read_and_other_text_is_refused() {
        let term = |attribute: &str, value: Value| FilterTerm { attribute: attribute.to_owned(), value };
        for (text, expected) in [
            (r#"userName eq "ann""#, vec![term("username", "ann".into())]),
            (r#"  displayName  EQ  "a \"b\" and c" "#, vec![term("displayname", "a \"b\" and c".into())]),
            ("active eq True", vec![term("active", true.into())]),
            (
                r#"id eq "usr_1" and active eq false"#,
                vec![term("id", "usr_1".into()), term("active", false.into())],
            ),
        ] {
            assert_eq!(parse_terms(text).unwrap(), expected, "{text}");
        }
        let long = format!("userName eq \"{}\"", "x".repeat(2_000));
        for text in [
            "",
            "userName",
            "userName eq",
            "userName co \"a\"",
            "userName eq ann",
            "id eq \"a\" or id eq \"b\"",
            "a eq \"b\" and",
            "a eq [1]",
            &long,
        ] {
            assert!(parse_terms(text).is_err(), "{text}");
        }
        assert!(ScimFilter::parse(r#"password eq "x""#).is_err());
        let schema = r#"urn:ietf:params:scim:schemas:core:2.0:User:userName eq "Ann""#;
        assert_eq!(ScimFilter::parse(schema).unwrap().user_name(), Some("Ann"));
    }
}
