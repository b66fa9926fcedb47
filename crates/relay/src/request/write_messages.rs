//! Writes a [`NeutralRequest`] as an Anthropic messages body. Must not know the dialect that it was read from.

use bytes::BytesMut;
use headrace_domain::{Call, Code, Dialect};

use super::edit::BodyEdits;
use super::neutral_request::{
    NeutralMedia, NeutralPart, NeutralRequest, NeutralTool, NeutralToolChoice, NeutralTurn, ReasoningAmount,
    RequestedTier, Speaker, lacks,
};
use headrace_wire::fault::{FieldFault, Read};
use headrace_wire::json::object::{ObjectWriter, array, object};
use headrace_wire::json::writer::{raw, value};

const TO: Dialect = Dialect::Anthropic;

/// The schema of a tool without arguments. The dialect requires one.
const TAKES_NOTHING: &str = r#"{"type":"object","properties":{}}"#;

/// Writes the body.
pub(super) fn write(
    request: &NeutralRequest<'_>,
    call: &Call,
    edits: &BodyEdits<'_>,
    out: &mut BytesMut,
) -> Read<()> {
    let bound = call.sampling.max_tokens.or(edits.max_tokens.map(|(_, tokens)| tokens));
    let bound = bound.ok_or_else(|| FieldFault::missing("max_tokens"))?;
    let said = sides(request)?;
    object(out, |body| {
        body.text("model", edits.model);
        value(body.field("max_tokens"), &bound);
        let system: Vec<&str> = said.system.into_iter().filter(|text| !text.is_empty()).collect();
        match system.as_slice() {
            [] => {}
            [text] => body.text("system", text),
            texts => array(body.field("system"), texts, |out, text| text_block(out, text))?,
        }
        array(body.field("messages"), said.sides, side)?;
        if !request.tools.is_empty() {
            array(body.field("tools"), &request.tools, tool)?;
        }
        choice(request, body)?;
        sampling(request, body)?;
        match request.reasoning {
            None => {}
            Some(ReasoningAmount::Off) => body.raw("thinking", r#"{"type":"disabled"}"#),
            Some(ReasoningAmount::Auto | ReasoningAmount::Effort(_)) => {
                body.raw("thinking", r#"{"type":"adaptive"}"#)
            }
        }
        output_config(request, body)?;
        if let Some(user) = &request.user {
            object(body.field("metadata"), |metadata| {
                metadata.text("user_id", user);
                Ok(())
            })?;
        }
        match request.tier {
            None => {}
            Some(RequestedTier::Auto) => body.text("service_tier", "auto"),
            Some(RequestedTier::Standard) => body.text("service_tier", "standard_only"),
        }
        if call.stream {
            body.raw("stream", "true");
        }
        Ok(())
    })
}

/// Consecutive turns of one role.
struct MergedTurn<'t, 'a> {
    who: Speaker,
    at: usize,
    parts: Vec<&'t NeutralPart<'a>>,
}

/// The conversation in the shape of this dialect.
#[derive(Default)]
struct MessagesConversation<'t, 'a> {
    system: Vec<&'t str>,
    sides: Vec<MergedTurn<'t, 'a>>,
}

/// Groups the turns by role. All user turns between two answers become one message, with tool results first. System
/// texts at the start become the parameter `system`. Later ones go to the place that this dialect has for them: behind
/// the user's message, before the next answer.
fn sides<'t, 'a>(request: &'t NeutralRequest<'a>) -> Read<MessagesConversation<'t, 'a>> {
    let leading = request.turns.iter().take_while(|turn| turn.who == Speaker::System).count();
    let (first, rest) = request.turns.split_at(leading);
    let mut said = MessagesConversation {
        system: request.system.iter().map(AsRef::as_ref).collect(),
        sides: Vec::new(),
    };
    for part in first.iter().flat_map(|turn| &turn.parts) {
        if let NeutralPart::Text(text) = part {
            said.system.push(text);
        }
    }
    // Empty answers are left out, so that the user messages around them become one message.
    let rest: Vec<&NeutralTurn<'a>> = rest.iter().filter(|turn| !turn.is_empty_answer()).collect();
    for run in
        rest.chunk_by(|left, right| (left.who == Speaker::Assistant) == (right.who == Speaker::Assistant))
    {
        said.take(run)?;
    }
    match said.sides.last() {
        Some(last) if last.who == Speaker::Assistant => {
            let why = "would continue a last message of the assistant; end with a message of the user";
            Err(lacks(TO, Code::UnsupportedValue, why).under_index(last.at).under_key("messages"))
        }
        _ => Ok(said),
    }
}

impl<'t, 'a> MessagesConversation<'t, 'a> {
    /// Adds a run of turns: only the assistant's, or only those of other roles.
    fn take(&mut self, run: &[&'t NeutralTurn<'a>]) -> Read<()> {
        let of = |who: Speaker| run.iter().copied().filter(move |turn| turn.who == who);
        for who in [Speaker::Assistant, Speaker::User, Speaker::System] {
            let Some(first) = of(who).next() else { continue };
            let spoken =
                |part: &&NeutralPart<'_>| !matches!(part, NeutralPart::Text(text) if text.is_empty());
            let mut parts: Vec<_> = of(who).flat_map(|turn| &turn.parts).filter(spoken).collect();
            if parts.is_empty() {
                let why = "takes no empty message; leave it out";
                let fault = lacks(TO, Code::UnsupportedValue, why).under_key("content");
                return Err(fault.under_index(first.at).under_key("messages"));
            }
            let after = self.sides.last().map(|side| side.who);
            if who == Speaker::System && after != Some(Speaker::User) {
                let why =
                    "has a place for a system message at the beginning and behind a message of the user";
                return Err(lacks(TO, Code::UnsupportedValue, why)
                    .under_index(first.at)
                    .under_key("messages"));
            }
            // In a user's message, tool results come first. In an assistant's message, tool calls come last, right
            // before their results.
            parts.sort_by_key(|part| match part {
                NeutralPart::Result { .. } => 0,
                NeutralPart::Call { .. } => 2,
                _ => 1,
            });
            self.sides.push(MergedTurn { who, at: first.at, parts });
        }
        Ok(())
    }
}

fn side(out: &mut BytesMut, side: MergedTurn<'_, '_>) -> Read<()> {
    object(out, |message| {
        message.text(
            "role",
            match side.who {
                Speaker::System => "system",
                Speaker::User => "user",
                Speaker::Assistant => "assistant",
            },
        );
        content(message, &side.parts)
    })
}

/// Writes a single text as a string, and anything else as blocks.
fn content(message: &mut ObjectWriter<'_>, parts: &[&NeutralPart<'_>]) -> Read<()> {
    match parts {
        [NeutralPart::Text(text)] => message.text("content", text),
        parts => array(message.field("content"), parts.iter().copied(), block)?,
    }
    Ok(())
}

fn text_block(out: &mut BytesMut, text: &str) -> Read<()> {
    object(out, |block| {
        block.text("type", "text");
        block.text("text", text);
        Ok(())
    })
}

fn block(out: &mut BytesMut, part: &NeutralPart<'_>) -> Read<()> {
    object(out, |block| {
        match part {
            NeutralPart::Text(text) => {
                block.text("type", "text");
                block.text("text", text);
            }
            NeutralPart::Image(media) => {
                block.text("type", "image");
                source(block, media)?;
            }
            NeutralPart::Document { title, context, media } => {
                block.text("type", "document");
                source(block, media)?;
                about(block, title.as_deref(), context.as_deref());
            }
            NeutralPart::Paper { title, context, text } => {
                block.text("type", "document");
                object(block.field("source"), |source| {
                    source.text("type", "text");
                    source.text("media_type", "text/plain");
                    source.text("data", text);
                    Ok(())
                })?;
                about(block, title.as_deref(), context.as_deref());
            }
            NeutralPart::Thinking { text, signature } => {
                block.text("type", "thinking");
                block.text("thinking", text);
                block.text("signature", signature.as_deref().unwrap_or(""));
            }
            NeutralPart::Sealed(data) => {
                block.text("type", "redacted_thinking");
                block.text("data", data);
            }
            NeutralPart::Call { id, name, input } => {
                block.text("type", "tool_use");
                block.text("id", id);
                block.text("name", name);
                block.raw("input", input);
            }
            NeutralPart::Result { id, parts, is_error } => {
                block.text("type", "tool_result");
                block.text("tool_use_id", id);
                let spoken =
                    |part: &&NeutralPart<'_>| !matches!(part, NeutralPart::Text(text) if text.is_empty());
                let parts: Vec<_> = parts.iter().filter(spoken).collect();
                if !parts.is_empty() {
                    content(block, &parts)?;
                }
                if *is_error {
                    block.raw("is_error", "true");
                }
            }
        }
        Ok(())
    })
}

fn about(document: &mut ObjectWriter<'_>, title: Option<&str>, context: Option<&str>) {
    title.iter().for_each(|title| document.text("title", title));
    context.iter().for_each(|context| document.text("context", context));
}

fn source(block: &mut ObjectWriter<'_>, media: &NeutralMedia<'_>) -> Read<()> {
    object(block.field("source"), |source| {
        match media {
            NeutralMedia::Url(url) => {
                source.text("type", "url");
                source.text("url", url);
            }
            NeutralMedia::Base64 { media_type, data } => {
                source.text("type", "base64");
                source.text("media_type", media_type);
                source.text("data", data);
            }
        }
        Ok(())
    })
}

fn tool(out: &mut BytesMut, tool: &NeutralTool<'_>) -> Read<()> {
    object(out, |written| {
        written.text("name", &tool.name);
        tool.description.iter().for_each(|text| written.text("description", text));
        written.raw("input_schema", tool.schema.unwrap_or(TAKES_NOTHING));
        if let Some(strict) = tool.strict {
            value(written.field("strict"), &strict);
        }
        Ok(())
    })
}

/// Writes the tool choice. The dialect accepts none without tools.
fn choice(request: &NeutralRequest<'_>, body: &mut ObjectWriter<'_>) -> Read<()> {
    let serial = request.parallel == Some(false);
    let choice = match &request.choice {
        None | Some(NeutralToolChoice::Auto | NeutralToolChoice::None) if request.tools.is_empty() => {
            return Ok(());
        }
        None if serial => &NeutralToolChoice::Auto,
        None => return Ok(()),
        Some(choice) => choice,
    };
    object(body.field("tool_choice"), |written| {
        match choice {
            NeutralToolChoice::Auto => written.text("type", "auto"),
            NeutralToolChoice::None => written.text("type", "none"),
            NeutralToolChoice::Required => written.text("type", "any"),
            NeutralToolChoice::Named(name) => {
                written.text("type", "tool");
                written.text("name", name);
            }
        }
        if serial && !matches!(choice, NeutralToolChoice::None) {
            written.raw("disable_parallel_tool_use", "true");
        }
        Ok(())
    })
}

fn sampling(request: &NeutralRequest<'_>, body: &mut ObjectWriter<'_>) -> Read<()> {
    if let Some(temperature) = request.temperature {
        if temperature.parse::<f64>().is_ok_and(|number| number > 1.0) {
            let why = "has temperatures from 0 to 1";
            return Err(lacks(TO, Code::UnsupportedValue, why).under_key("temperature"));
        }
        body.raw("temperature", temperature);
    }
    request.top_p.iter().for_each(|number| body.raw("top_p", number));
    request.top_k.iter().for_each(|number| body.raw("top_k", number));
    if !request.stop.is_empty() {
        value(body.field("stop_sequences"), &request.stop);
    }
    Ok(())
}

fn output_config(request: &NeutralRequest<'_>, body: &mut ObjectWriter<'_>) -> Read<()> {
    let effort = match request.reasoning {
        Some(ReasoningAmount::Effort(word)) => Some(word),
        _ => None,
    };
    if effort.is_none() && request.format.is_none() {
        return Ok(());
    }
    object(body.field("output_config"), |config| {
        effort.iter().for_each(|word| config.text("effort", word));
        if let Some(format) = &request.format {
            let out = config.field("format");
            raw(out, r#"{"type":"json_schema","schema":"#);
            raw(out, format.schema);
            raw(out, "}");
        }
        Ok(())
    })
}
