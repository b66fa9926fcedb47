//! Finds what a call changed since the earlier answer that it names: to the character, in the caller's own words. Runs
//! once, before the answer begins, for calls that ask for it. Stores the prompt for comparison with the next call. Must
//! not know what an engine has in its cache.

use std::sync::Arc;

use headrace_call_state::{AnswerOrigin, Rejection};
use headrace_domain::{
    CacheMiss, Call, Code, Conversation, MissReason, Prompt, PromptPlace, TracedDiagnosis, UnixNanos,
};
use headrace_wire::{CacheDiagnosis, ChangedPart};
use serde_json::Value;

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::RenderedWork;

use super::miss::located;

/// Returns the work with its cache diagnosis, if the call asks for one.
///
/// # Errors
/// The comparison was stopped.
pub(super) async fn diagnosed(
    mut work: Box<RenderedWork>,
    gateway: &Gateway,
    context: &RequestContext,
) -> Result<Box<RenderedWork>, Rejection> {
    let Some(comparison) = work.call.dialect.comparison() else { return Ok(work) };
    let previous = comparison.previous_answer.clone();
    let prompt = work.rendered.prompts().and_then(|prompts| prompts.ids.first());
    let (Some(project), Some(prompt)) = (&context.record.project, prompt) else {
        // Only the upstream server knows what it has cached.
        let why = "the model is computed by a server of others";
        work.diagnosis = Some(match previous {
            Some(_) => CacheDiagnosis::Unavailable { why },
            None => CacheDiagnosis::Nothing,
        });
        return Ok(work);
    };
    let now = context.record.started;
    let (project, model) = (project.clone(), work.model.name.clone());
    let own = AnswerOrigin { project, model, prompt: Arc::clone(prompt), tools: tools(&work.call), at: now };
    let named = previous.as_deref().map(headrace_wire::named_request);
    let past = named.map(|id| gateway.pasts().get(id?, &own.project, now));
    gateway.pasts().put(context.id, own.clone());
    let long = work.body_bytes > gateway.config().render_inline_bytes;
    let past = match past {
        None => {
            work.diagnosis = Some(CacheDiagnosis::Nothing);
            return Ok(work);
        }
        Some(None) => {
            work.diagnosis = Some(CacheDiagnosis::NotFound);
            return Ok(work);
        }
        Some(Some(past)) => past,
    };
    let compare = move || {
        work.diagnosis = Some(compared(&work, &past, &own, now));
        work
    };
    if !long {
        return Ok(compare());
    }
    // As in stage `render`: comparing a long prompt takes milliseconds, and the threads of the event loop must stay
    // free.
    let compared = tokio::task::spawn_blocking(compare).await;
    compared.map_err(|_| {
        Rejection::new(Code::RenderFailed, "The prompt could not be compared. Nothing was charged.")
    })
}

/// The part of a diagnosis that the trace records.
pub(super) fn traced(diagnosis: &CacheDiagnosis) -> Box<TracedDiagnosis> {
    let (word, missed_tokens) = diagnosis.describe();
    let place = match diagnosis {
        CacheDiagnosis::Changed { place, .. } => *place,
        _ => None,
    };
    Box::new(TracedDiagnosis { word: word.to_owned(), missed_tokens, place })
}

/// Compares the earlier prompt with this one: how much of it is unchanged, and where the first difference is.
fn compared(work: &RenderedWork, past: &AnswerOrigin, own: &AnswerOrigin, now: UnixNanos) -> CacheDiagnosis {
    let (before, after) = (&past.prompt, &own.prompt);
    let missed = |from: usize| before.len().saturating_sub(from) as u64;
    if past.model != own.model {
        let hint = Some(format!("it was `{}`", past.model));
        return CacheDiagnosis::Changed {
            what: ChangedPart::Model,
            missed_tokens: missed(0),
            place: None,
            hint,
        };
    }
    let same = before.iter().zip(after.iter()).take_while(|(one, other)| one == other).count();
    if same == before.len() {
        return CacheDiagnosis::Same { tokens: same as u64 };
    }
    let miss = CacheMiss {
        reason: MissReason::Differs,
        token: u32::try_from(same).unwrap_or(u32::MAX),
        elsewhere: false,
        place: None,
        other: before.get(same).copied(),
    };
    let Some(place) = located(work, 0, miss, now).place else {
        return CacheDiagnosis::Unavailable { why: "where they part could not be found" };
    };
    let what = match place {
        PromptPlace::System { .. } => ChangedPart::System,
        PromptPlace::Tool { .. } | PromptPlace::Tools => ChangedPart::Tools,
        PromptPlace::Template { before_message: 0 } => ChangedPart::System,
        PromptPlace::Message { .. }
        | PromptPlace::Reasoning { .. }
        | PromptPlace::ToolCall { .. }
        | PromptPlace::Template { .. }
        | PromptPlace::Prompt { .. } => ChangedPart::Messages,
    };
    // The tools differ only in the order of their properties.
    let only_order = what == ChangedPart::Tools && past.tools == own.tools;
    let hint = only_order.then(|| {
        "only the order of properties differs; `tools.order = \"canonical\"` of the model makes that no matter".to_owned()
    });
    CacheDiagnosis::Changed { what, missed_tokens: missed(same), place: Some(place), hint }
}

/// A hash of the call's tools that does not depend on the order of their properties.
fn tools(call: &Call) -> [u8; 16] {
    let Prompt::Conversation(Conversation { tools, .. }) = &call.prompt else { return [0; 16] };
    let mut hasher = blake3::Hasher::new();
    for tool in tools {
        let parameters = tool.parameters.clone().map(headrace_wire::json::canonical::value);
        let parameters = parameters.unwrap_or(Value::Null).to_string();
        for text in [&tool.name, tool.description.as_deref().unwrap_or_default(), &parameters] {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
    }
    let mut short = [0; 16];
    short.iter_mut().zip(hasher.finalize().as_bytes()).for_each(|(to, from)| *to = *from);
    short
}
