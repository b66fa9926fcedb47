//! Stage `render`: template and tokenizer make ids of the caller's words; the context window is checked with counts.
//! Control ids come only from the template: message text is encoded as literal text.

use std::sync::Arc;

use headrace_domain::{CacheSalt, Call, Prompt, PromptItem, Stage, UnixNanos};
use headrace_engine_api::Tenant;
use headrace_prompt::RenderOptions;
use headrace_wire::ErrorKind;

use crate::Gateway;
use crate::config::ServedModel;
use crate::refused::{Refused, Why};
use crate::state::{Moderated, Rendered, Routed, Work};

impl Moderated {
    pub(crate) async fn render(self, gateway: &Gateway) -> Result<Rendered, Refused> {
        let Routed { mut dossier, principal, call, model } = self.0;
        let now = gateway.parts().clock.now();
        let (call, encoded) = if text_bytes(&call) > gateway.config().render_inline_bytes {
            // A long prompt takes milliseconds: the event loop's threads must stay free for health checks.
            let model = Arc::clone(&model);
            let rendering = tokio::task::spawn_blocking(move || {
                let encoded = encode(&model, &call, now);
                (call, encoded)
            });
            match rendering.await {
                Ok(done) => done,
                Err(_) => return Err(dossier.refuse(failed("the rendering was stopped"))),
            }
        } else {
            let encoded = encode(&model, &call, now);
            (call, encoded)
        };
        let Encoded { prompts, text } = match encoded {
            Ok(encoded) => encoded,
            Err(why) => return Err(dossier.refuse(*why)),
        };
        let sampling = match resolve(gateway, &model, &call, &prompts, dossier.id.bits()) {
            Ok(sampling) => sampling,
            Err(why) => return Err(dossier.refuse(*why)),
        };
        let salt = CacheSalt::derive(
            &gateway.config().cache_secret,
            principal.project.as_str(),
            model.name.as_str(),
            call.cache_salt.as_deref(),
        );
        let tenant = Tenant(tenant_number(principal.org.as_str()));
        let weight = gateway.config().weights.get(&principal.org).copied().unwrap_or(1);
        dossier.mark(Stage::Render);
        let keys = Vec::new();
        let work = Work { call, model, prompts, text, sampling, salt, keys, tenant, weight };
        Ok(Rendered { dossier, principal, work })
    }
}

/// Bytes of text in a call: what decides whether work on its prompt stays on the event loop.
pub(crate) fn text_bytes(call: &Call) -> usize {
    match &call.prompt {
        Prompt::Conversation(conversation) => {
            conversation.messages.iter().map(|message| message.content.as_ref().map_or(0, String::len)).sum()
        }
        Prompt::Raw(items) => items
            .iter()
            .map(|item| match item {
                PromptItem::Text(text) => text.len(),
                PromptItem::Ids(_) => 0,
            })
            .sum(),
    }
}

/// Prompts as ids.
struct Encoded {
    prompts: Vec<Arc<[u32]>>,
    /// A conversation as the template wrote it.
    text: Option<String>,
}

fn encode(model: &ServedModel, call: &Call, now: UnixNanos) -> Result<Encoded, Box<Why>> {
    match &call.prompt {
        Prompt::Conversation(conversation) => {
            let Some(template) = &model.template else {
                return Err(Box::new(Why::bad_request(
                    Stage::Render,
                    "no_chat_template",
                    "messages",
                    format!("The model `{}` has no chat template. Use /v1/completions.", model.name),
                )));
            };
            let options = RenderOptions { add_generation_prompt: true, now };
            let rendered = template.render(conversation, &options).map_err(|error| {
                Box::new(Why::bad_request(Stage::Render, "template_error", "messages", error.to_string()))
            })?;
            let ids = model
                .tokenizer
                .encode_segments(&rendered.segments(), false)
                .map_err(|error| Box::new(failed(&error.to_string())))?;
            Ok(Encoded { prompts: vec![ids.into()], text: Some(rendered.into_text()) })
        }
        Prompt::Raw(items) => {
            let each = items.iter().enumerate().map(|(index, item)| encode_item(model, index, item));
            Ok(Encoded { prompts: each.collect::<Result<_, _>>()?, text: None })
        }
    }
}

fn encode_item(model: &ServedModel, index: usize, item: &PromptItem) -> Result<Arc<[u32]>, Box<Why>> {
    let ids: Arc<[u32]> = match item {
        PromptItem::Text(text) => model
            .tokenizer
            .encode_plain(text, true)
            .map_err(|error| Box::new(failed(&error.to_string())))?
            .into(),
        PromptItem::Ids(ids) => {
            if let Some(id) = ids.iter().find(|id| **id >= model.capabilities.vocab) {
                return Err(Box::new(out_of_vocabulary("prompt", *id, model)));
            }
            ids.as_slice().into()
        }
    };
    if ids.is_empty() {
        return Err(Box::new(Why::bad_request(
            Stage::Render,
            "empty_prompt",
            "prompt",
            format!("Prompt {index} has no tokens; there is nothing to continue."),
        )));
    }
    Ok(ids)
}

/// Fills in what the caller left open and checks it against the model: the window, the vocabulary.
fn resolve(
    gateway: &Gateway,
    model: &ServedModel,
    call: &Call,
    prompts: &[Arc<[u32]>],
    request_bits: u128,
) -> Result<headrace_domain::Sampling, Box<Why>> {
    let window = model.capabilities.context_window;
    let longest = prompts.iter().map(|ids| ids.len()).max().unwrap_or(0);
    let param = if matches!(call.prompt, Prompt::Conversation(_)) { "messages" } else { "prompt" };
    let longest = u32::try_from(longest).unwrap_or(u32::MAX);
    let scoring_only = call.sampling.max_tokens == Some(0);
    if longest > window || (longest == window && !scoring_only) {
        return Err(Box::new(Why::bad_request(
            Stage::Render,
            "context_length_exceeded",
            param,
            format!(
                "The prompt has {longest} tokens and the context window of `{}` is {window} tokens, prompt and answer \
                 together. Shorten the prompt.",
                model.name
            ),
        )));
    }
    let room = window.saturating_sub(longest);
    let max_tokens = match call.sampling.max_tokens {
        Some(asked) if asked > room => {
            return Err(Box::new(Why::bad_request(
                Stage::Render,
                "context_length_exceeded",
                "max_tokens",
                format!(
                    "The prompt has {longest} tokens and `max_tokens` asks for {asked} more; the context window of \
                     `{}` is {window} tokens. Ask for at most {room}, or shorten the prompt.",
                    model.name
                ),
            )));
        }
        Some(asked) => asked,
        None => model.default_max_tokens.unwrap_or(gateway.config().default_max_tokens).min(room),
    };
    if call.sampling.min_tokens > max_tokens {
        return Err(Box::new(Why::bad_request(
            Stage::Render,
            "invalid_value",
            "min_tokens",
            format!(
                "`min_tokens` is {} and at most {max_tokens} tokens may be generated.",
                call.sampling.min_tokens
            ),
        )));
    }
    let vocab = model.capabilities.vocab;
    if let Some((id, _)) = call.sampling.logit_bias.iter().find(|(id, _)| *id >= vocab) {
        return Err(Box::new(out_of_vocabulary("logit_bias", *id, model)));
    }
    if let Some(id) = call.sampling.stop_token_ids.iter().find(|id| **id >= vocab) {
        return Err(Box::new(out_of_vocabulary("stop_token_ids", *id, model)));
    }
    // The low bits of a UUID v7 are random: a seed of its own for each call that names none.
    let drawn = u64::try_from(request_bits & u128::from(u64::MAX)).unwrap_or(0);
    Ok(call.sampling.resolve(&model.defaults, max_tokens, drawn))
}

fn out_of_vocabulary(param: &str, id: u32, model: &ServedModel) -> Why {
    let last = model.capabilities.vocab.saturating_sub(1);
    let message =
        format!("Token id {id} is not in the vocabulary of `{}`, whose last id is {last}.", model.name);
    Why::bad_request(Stage::Render, "invalid_value", param, message)
}

fn failed(detail: &str) -> Why {
    Why::new(
        Stage::Render,
        500,
        ErrorKind::Internal,
        "render_failed",
        format!("The prompt could not be rendered: {detail}. Nothing was charged."),
    )
}

/// A number that stands for the tenant in the engine's fair queue (FNV-1a of its name).
fn tenant_number(org: &str) -> u64 {
    org.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
