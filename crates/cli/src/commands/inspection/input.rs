//! The input of `render` and `tokenize`: a text, a file, or standard input, of bounded size. Must not know models.

use std::io::Read;

use headrace_domain::{Call, Conversation, Endpoint, Message, Prompt, Role};
use headrace_server::prompt_reports::{self, NO_NAME};
use headrace_wire::WireLimits;
use serde_json::Value;

use crate::arguments::inspection::BodyDialect;

/// Maximum size of a file or of standard input, in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// Reads the text for an argument: `@FILE`, `-`, or the argument itself.
pub(super) fn text(argument: &str) -> Result<String, String> {
    match argument.strip_prefix('@') {
        Some(path) => {
            let file = std::fs::File::open(path).map_err(|error| format!("{path}: {error}"))?;
            read(file, path)
        }
        None if argument == "-" => read(std::io::stdin().lock(), "standard input"),
        None => Ok(argument.to_owned()),
    }
}

fn read(from: impl Read, name: &str) -> Result<String, String> {
    let mut text = String::new();
    let most = from.take(MOST_BYTES + 1).read_to_string(&mut text);
    most.map_err(|error| format!("{name}: {error}"))?;
    match u64::try_from(text.len()).is_ok_and(|bytes| bytes <= MOST_BYTES) {
        true => Ok(text),
        false => Err(format!("{name}: more than {MOST_BYTES} bytes")),
    }
}

/// The call to render.
pub(super) struct RenderInput {
    /// The model that the body names.
    pub(super) model: Option<String>,
    pub(super) call: Call,
}

impl RenderInput {
    /// Reads an argument: the body of a call, a list of messages, or a user's message. `limits` are those of the
    /// server.
    pub(super) fn read(
        argument: &str,
        system: Option<&str>,
        body: BodyDialect,
        limits: &WireLimits,
    ) -> Result<Self, String> {
        let text = text(argument)?;
        // A text on the command line is a user's message, even if it looks like JSON.
        let is_file = argument == "-" || argument.starts_with('@');
        let parsed: Option<Value> = is_file.then(|| serde_json::from_str(&text).ok()).flatten();
        let Some(parsed) = parsed.filter(|value| value.is_object() || value.is_array()) else {
            let system = system.map(|system| Message::text(Role::System, system));
            let messages = system.into_iter().chain([Message::text(Role::User, text)]).collect();
            let prompt = Prompt::Conversation(Conversation { messages, ..Conversation::default() });
            let call = Call::of_prompt(Endpoint::ChatCompletions, NO_NAME.to_owned(), prompt);
            return Ok(Self { model: None, call });
        };
        Self::of_body(parsed, system, body, limits)
    }

    fn of_body(
        parsed: Value,
        system: Option<&str>,
        body: BodyDialect,
        limits: &WireLimits,
    ) -> Result<Self, String> {
        let endpoint = match body {
            BodyDialect::Chat => Endpoint::ChatCompletions,
            BodyDialect::Messages => Endpoint::Messages,
            BodyDialect::Responses => Endpoint::Responses,
        };
        if system.is_some() {
            return Err("--system goes with a text: a body has its own instructions".to_owned());
        }
        let named = parsed.get("model").and_then(Value::as_str).map(str::to_owned);
        Ok(Self { model: named, call: prompt_reports::read(endpoint, parsed, limits)? })
    }
}
