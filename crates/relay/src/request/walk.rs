//! The one walk over a body of any dialect: which top-level field holds the messages, the system prompt, the tools and
//! the end user. `look` knows the values of these fields.
//! Knows no parameters and decides nothing. It reports what it passes to a [`BodyVisitor`].

use headrace_domain::Endpoint;

use super::body_fields::BodyField;
use super::guard;
use super::look::{self, BodyVisitor};
use headrace_wire::WireLimits;
use headrace_wire::fault::Read;
use headrace_wire::json::{JsonReader, ValueKind};

/// Visits a body that was sent to `endpoint`. Fields beside the conversation go to `parameter`, which must read or skip
/// the value. Without an endpoint, the Responses API's fields are visited in every body, and end users are parameters.
///
/// # Errors
/// The body is no JSON object, or breaks a rule of [`JsonReader`], of `limits` or of the visitor.
pub(super) fn body<'a, V: BodyVisitor>(
    look: &mut V,
    r: &mut JsonReader<'a>,
    endpoint: Option<Endpoint>,
    limits: &WireLimits,
    mut parameter: impl FnMut(&mut V, &mut JsonReader<'a>, BodyField, &str) -> Read<()>,
) -> Read<()> {
    let is_response = endpoint.is_none_or(|endpoint| endpoint == Endpoint::Responses);
    let is_messages = endpoint == Some(Endpoint::Messages);
    r.object(|r, key| {
        let (key, start) = (key.as_ref(), r.position());
        let field = BodyField::named(key);
        look.field_begin(field);
        let read = match field {
            _ if !look.wants(field) => r.skip(),
            BodyField::Messages => look::messages(look, r, limits),
            BodyField::System => look::content(look, r, limits),
            BodyField::Tools if look.reports_tools() => look::tools(look, r, limits.max_tools),
            BodyField::Tools | BodyField::Functions => look::described(look, r, limits.max_tools),
            BodyField::Input if is_response => look::input(look, r, limits),
            BodyField::Text if is_response => look::described(look, r, limits.max_tools),
            BodyField::SafetyIdentifier | BodyField::User if endpoint.is_some() && !is_messages => {
                look.user(r, field)
            }
            BodyField::Metadata if is_messages => metadata(look, r),
            _ => parameter(look, r, field, key),
        };
        look.field_end(field, start, r.position());
        read
    })
}

/// Visits Anthropic's `metadata`, which holds the end user among labels.
fn metadata(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>) -> Read<()> {
    if r.kind()? != ValueKind::Object {
        return look::free(look, r);
    }
    r.count_value()?;
    r.object(|r, key| {
        if key == "user_id" {
            return look.user(r, BodyField::Metadata);
        }
        if look.checks() {
            guard::spelled_once(key, &["user_id"])?;
        }
        look::free(look, r)
    })
}

/// The limits of a later visit: those of the first one hold already.
pub(super) fn no_limits() -> WireLimits {
    WireLimits {
        max_messages: usize::MAX,
        max_content_parts: usize::MAX,
        max_tools: usize::MAX,
        max_tool_calls: usize::MAX,
        ..WireLimits::default()
    }
}
