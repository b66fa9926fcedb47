//! Converts a Responses call to a chat completion, for other providers' servers, which all have chat. Knows no server.

use std::sync::Arc;

use bytes::BytesMut;
use headrace_domain::{
    Call, Code, Conversation, DialectExtras, Endpoint, Prompt, RelayedBody, ResponseFormat, ServiceTier,
    Tool, ToolChoice,
};

use super::skim::skim_question;
use headrace_wire::fault::{FieldFault, Read};
use headrace_wire::json::object::{ObjectWriter, array, object};
use headrace_wire::json::writer::value;
use headrace_wire::{BadRequest, WireLimits};

use super::chat_parts;

/// Returns the call as a chat completion whose body can be relayed. The body has no bound on the answer's length,
/// because each receiver has its own name for that field. `limits` are those that the call was read within.
///
/// # Errors
/// [`BadRequest`] names the first parameter that a chat at an upstream cannot carry.
pub fn as_chat(call: &Call, limits: &WireLimits) -> Result<Call, BadRequest> {
    let mut chat = put(call)?;
    if let Prompt::Relayed(relayed) = &mut chat.prompt
        && relayed.media > 0
    {
        // The call's input was read within the limits. As a chat it may nest deeper, and have more messages, parts and
        // calls in one message.
        let limits = WireLimits {
            max_json_depth: usize::MAX,
            max_messages: usize::MAX,
            max_content_parts: usize::MAX,
            max_tool_calls: usize::MAX,
            max_free_form_values: usize::MAX,
            ..limits.clone()
        };
        let read = skim_question(Endpoint::ChatCompletions, relayed.body.clone(), &limits)?;
        if let Prompt::Relayed(read) = read.prompt {
            relayed.concerns = read.concerns;
        }
    }
    Ok(chat)
}

fn put(call: &Call) -> Read<Call> {
    let Prompt::Conversation(conversation) = &call.prompt else {
        return Err(FieldFault::new(Code::InternalError, "the call is no conversation"));
    };
    if call.sampling.logprobs.is_some() {
        let message = "log-probabilities of the model's upstream cannot be put into a response; leave it out";
        return Err(FieldFault::at("top_logprobs", Code::UnsupportedParameter, message));
    }
    let mut out = BytesMut::new();
    object(&mut out, |body| {
        body.text("model", &call.model);
        chat_parts::messages(body.field("messages"), call, &conversation.messages)?;
        tools(conversation, body)?;
        sampling(call, body);
        format(call, body)?;
        if let Some(effort) = &call.reasoning.effort {
            body.text("reasoning_effort", effort);
        } else if call.reasoning.enabled == Some(false) {
            body.text("reasoning_effort", "none");
        }
        if let Some(verbosity) = conversation.template.get("verbosity") {
            value(body.field("verbosity"), verbosity);
        }
        if call.tier == ServiceTier::Flex {
            body.text("service_tier", "flex");
        }
        call.cache_salt.iter().for_each(|salt| body.text("cache_salt", salt));
        if call.stream {
            body.raw("stream", "true");
        }
        Ok(())
    })?;
    let media = || conversation.messages.iter().flat_map(|message| &message.media);
    let data: usize = media().map(|part| part.source.bytes()).sum();
    let text_bytes = out.len().saturating_sub(data);
    let mut chat = Call {
        endpoint: Endpoint::ChatCompletions,
        prompt: Prompt::Relayed(RelayedBody {
            body: out.freeze(),
            text_bytes,
            media: u32::try_from(media().count()).unwrap_or(u32::MAX),
            prompts: 1,
            has_own_fields: call.cache_salt.is_some(),
            concerns: Vec::new(),
            fields: None,
        }),
        origins: Vec::new(),
        include_usage: false,
        dialect: DialectExtras::None,
        ..call.clone()
    };
    chat.sampling.max_tokens = None;
    Ok(chat)
}

fn tools(conversation: &Conversation, body: &mut ObjectWriter<'_>) -> Read<()> {
    if conversation.tools.is_empty() {
        return Ok(());
    }
    array(body.field("tools"), &conversation.tools, tool)?;
    match &conversation.tool_choice {
        ToolChoice::Auto => {}
        ToolChoice::None => body.text("tool_choice", "none"),
        ToolChoice::Required => body.text("tool_choice", "required"),
        ToolChoice::Named(name) => named(body.field("tool_choice"), name)?,
        ToolChoice::Allowed { names, required } => object(body.field("tool_choice"), |choice| {
            choice.text("type", "allowed_tools");
            object(choice.field("allowed_tools"), |allowed| {
                allowed.text("mode", if *required { "required" } else { "auto" });
                array(allowed.field("tools"), names, |out, name| named(out, name))
            })
        })?,
    }
    if conversation.one_call {
        body.raw("parallel_tool_calls", "false");
    }
    Ok(())
}

fn named(out: &mut BytesMut, name: &str) -> Read<()> {
    object(out, |named| {
        named.text("type", "function");
        object(named.field("function"), |function| {
            function.text("name", name);
            Ok(())
        })
    })
}

fn tool(out: &mut BytesMut, tool: &Tool) -> Read<()> {
    // Every model sees a custom tool as a function of one string, and its calls are read as such. The string's
    // description contains the grammar. The client that runs the tool checks the text, and reports a mismatch.
    object(out, |written| {
        written.text("type", "function");
        object(written.field("function"), |function| {
            function.text("name", &tool.name);
            tool.description.iter().for_each(|text| function.text("description", text));
            if let Some(parameters) = &tool.parameters {
                value(function.field("parameters"), parameters);
            }
            if tool.strict {
                function.raw("strict", "true");
            }
            Ok(())
        })
    })
}

fn sampling(call: &Call, body: &mut ObjectWriter<'_>) {
    let sampling = &call.sampling;
    let mut number = |name, number: Option<f32>| {
        if let Some(number) = number {
            value(body.field(name), &number);
        }
    };
    number("temperature", sampling.temperature);
    number("top_p", sampling.top_p);
    number("min_p", sampling.min_p);
    number("frequency_penalty", sampling.frequency_penalty);
    number("presence_penalty", sampling.presence_penalty);
    number("repetition_penalty", sampling.repetition_penalty);
    if let Some(top_k) = sampling.top_k {
        value(body.field("top_k"), &top_k.map_or(-1, |k| i64::from(k.get())));
    }
    if !sampling.logit_bias.is_empty() {
        let biases = sampling.logit_bias.iter().map(|(id, bias)| (id.to_string(), bias));
        value(body.field("logit_bias"), &biases.collect::<std::collections::BTreeMap<_, _>>());
    }
    if let Some(seed) = sampling.seed {
        value(body.field("seed"), &seed);
    }
    if !sampling.stop.is_empty() {
        value(body.field("stop"), &sampling.stop);
    }
    if !sampling.stop_token_ids.is_empty() {
        value(body.field("stop_token_ids"), &sampling.stop_token_ids);
    }
    if sampling.min_tokens > 0 {
        value(body.field("min_tokens"), &sampling.min_tokens);
    }
    if sampling.ignore_eos {
        body.raw("ignore_eos", "true");
    }
}

fn format(call: &Call, body: &mut ObjectWriter<'_>) -> Read<()> {
    let Some(form) = call.form.as_ref().map(Arc::as_ref) else { return Ok(()) };
    object(body.field("response_format"), |format| match form {
        ResponseFormat::JsonSchema(form) => {
            format.text("type", "json_schema");
            object(format.field("json_schema"), |schema| {
                schema.text("name", form.name.as_deref().unwrap_or("answer"));
                value(schema.field("schema"), &form.schema);
                if form.strict {
                    schema.raw("strict", "true");
                }
                Ok(())
            })
        }
        // A response has no other format.
        _ => {
            format.text("type", "json_object");
            Ok(())
        }
    })
}

/// The body of a chat that [`as_chat`] wrote.
#[cfg(test)]
pub(super) fn body_of(call: &Call) -> &str {
    let Prompt::Relayed(relayed) = &call.prompt else { return "" };
    std::str::from_utf8(&relayed.body).unwrap_or_default()
}
