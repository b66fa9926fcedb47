//! OpenAI's whole answers, chat and completions. Events are gathered by choice and written at the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::BytesMut;
use headrace_domain::{
    Call, Dialect, Endpoint, FinishReason, ReplyEvent, ShownPrompt, TokenLogprob, ToolCall, Usage,
};

use crate::common::answer_id::write_explain;
use crate::common::custom::CustomInputReader;
use crate::common::encoder::{JSON, ReplyEncoder, ReplyMeta};
use crate::common::error::ErrorFacts;
use crate::common::error::write_error;
use crate::json::writer::{chat_logprobs, escaped, list, raw, value};
use crate::openai::called::CalledTools;
use crate::openai::completion_logprobs;
use crate::openai::completion_logprobs::TextOffsets;
use crate::openai::frame::WantedFields;
use crate::openai::frame::{
    PromptFields, write_finish_reason, write_head, write_prompt, write_token_ids, write_usage,
};
use crate::openai::reasoning_details::{ReasoningDetail, write_details};

pub(super) struct OpenAiWhole {
    endpoint: Endpoint,
    meta: ReplyMeta,
    wanted: WantedFields,
    called: CalledTools,
    choices: BTreeMap<u32, WholeChoice>,
    over: bool,
}

/// One choice as gathered so far.
#[derive(Default)]
struct WholeChoice {
    prompt: Option<Arc<ShownPrompt>>,
    text: String,
    reasoning: String,
    /// Offset in `reasoning` at which the current section begins.
    section: usize,
    details: Vec<ReasoningDetail>,
    calls: BTreeMap<u32, ToolCall>,
    ids: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
    offsets: TextOffsets,
    places: Vec<usize>,
    reason: Option<FinishReason>,
}

impl OpenAiWhole {
    pub(super) fn new(call: &Call, meta: ReplyMeta) -> Self {
        Self {
            endpoint: call.endpoint,
            meta,
            wanted: WantedFields::of(call),
            called: CalledTools::of(call),
            choices: BTreeMap::new(),
            over: false,
        }
    }

    fn choice(&mut self, choice: u32) -> &mut WholeChoice {
        self.choices.entry(choice).or_default()
    }

    fn prompt(&mut self, choice: u32, prompt: &Arc<ShownPrompt>) {
        let wanted = self.wanted;
        let answer = self.choice(choice);
        if wanted.echo && wanted.logprobs {
            answer.places = answer.offsets.echoed(&prompt.text, &prompt.logprobs);
        }
        answer.prompt = Some(Arc::clone(prompt));
    }

    fn tokens(&mut self, choice: u32, ids: &[u32], logprobs: &[TokenLogprob]) -> &mut WholeChoice {
        let wanted = self.wanted;
        let answer = self.choice(choice);
        if wanted.token_ids {
            answer.ids.extend_from_slice(ids);
        }
        if wanted.logprobs {
            answer.places.extend(answer.offsets.generated(logprobs));
            answer.logprobs.extend_from_slice(logprobs);
        }
        answer
    }

    fn write_chat(&self, out: &mut BytesMut) {
        list(out, &self.choices, |out, (index, answer)| {
            raw(out, "{\"index\":");
            value(out, index);
            raw(out, ",\"message\":");
            answer.write_message(&self.called, out);
            raw(out, ",\"logprobs\":");
            if self.wanted.logprobs {
                raw(out, "{\"content\":[");
                chat_logprobs(out, &answer.logprobs);
                raw(out, "],\"refusal\":null}");
            } else {
                raw(out, "null");
            }
            write_finish_reason(out, answer.reason.as_ref().map(|reason| self.called.reason(reason)));
            write_token_ids(out, self.wanted, &answer.ids);
            raw(out, "}");
        });
        raw(out, "]");
        // All choices share one prompt.
        if let Some(prompt) = self.choices.values().find_map(|answer| answer.prompt.as_ref()) {
            write_prompt(out, self.wanted, &prompt.ids, &prompt.logprobs);
        }
    }

    fn write_completions(&self, out: &mut BytesMut) {
        let mut prompts = PromptFields::default();
        list(out, &self.choices, |out, (index, answer)| {
            raw(out, "{\"index\":");
            value(out, index);
            let echoed = answer.prompt.as_ref().filter(|_| self.wanted.echo);
            raw(out, ",\"text\":\"");
            escaped(out, echoed.map_or("", |prompt| prompt.text.as_str()));
            escaped(out, &answer.text);
            raw(out, "\",\"logprobs\":");
            if self.wanted.logprobs {
                let echoed = echoed.map_or(&[][..], |prompt| prompt.logprobs.as_slice());
                completion_logprobs::write(out, [echoed, &answer.logprobs], &answer.places);
            } else {
                raw(out, "null");
            }
            write_finish_reason(out, answer.reason.as_ref());
            if let Some(prompt) = &answer.prompt {
                prompts.write(out, self.wanted, prompt);
            }
            write_token_ids(out, self.wanted, &answer.ids);
            raw(out, "}");
        });
        raw(out, "]");
    }
}

impl WholeChoice {
    /// Ends the current reasoning section and returns its text.
    fn end_section(&mut self) -> String {
        let from = std::mem::replace(&mut self.section, self.reasoning.len());
        self.reasoning.get(from..).unwrap_or_default().to_owned()
    }

    fn write_message(&self, called: &CalledTools, out: &mut BytesMut) {
        raw(out, "{\"role\":\"assistant\",\"content\":");
        if self.text.is_empty() && !self.calls.is_empty() {
            raw(out, "null");
        } else {
            value(out, &self.text);
        }
        raw(out, ",\"refusal\":null,\"annotations\":[]");
        if !self.reasoning.is_empty() {
            raw(out, ",\"reasoning_content\":");
            value(out, &self.reasoning);
        }
        if !self.details.is_empty() {
            raw(out, ",");
            write_details(out, 0, &self.details);
        }
        if !self.calls.is_empty() {
            raw(out, ",\"tool_calls\":[");
            list(out, self.calls.values(), |out, call| {
                raw(out, "{\"id\":");
                value(out, &call.id);
                if called.is_custom(&call.name) {
                    return write_custom(out, call);
                }
                raw(out, ",\"type\":\"function\",\"function\":{\"name\":");
                value(out, &call.name);
                raw(out, ",\"arguments\":");
                value(out, &call.arguments);
                raw(out, "}}");
            });
            raw(out, "]");
        }
        raw(out, "}");
    }
}

/// Writes a call of a custom tool, after its id.
fn write_custom(out: &mut BytesMut, call: &ToolCall) {
    let mut unwrap = CustomInputReader::default();
    let mut input = unwrap.push(&call.arguments);
    input.push_str(&unwrap.finish());
    raw(out, ",\"type\":\"custom\",\"custom\":{\"name\":");
    value(out, &call.name);
    raw(out, ",\"input\":");
    value(out, &input);
    raw(out, "}}");
}

impl ReplyEncoder for OpenAiWhole {
    fn begin(&mut self, _prompt_usage: &Usage, _out: &mut BytesMut) {}

    fn event(&mut self, event: &ReplyEvent, _out: &mut BytesMut) {
        if self.over {
            return;
        }
        let chat = self.endpoint == Endpoint::ChatCompletions;
        match event {
            ReplyEvent::Prompt { choice, prompt } => self.prompt(*choice, prompt),
            ReplyEvent::Reasoning { choice, .. } if chat && self.wanted.no_reasoning => {
                self.choice(*choice);
            }
            ReplyEvent::Reasoning { choice, text, ids, logprobs } if chat => {
                self.tokens(*choice, ids, logprobs).reasoning.push_str(text);
            }
            ReplyEvent::Text { choice, text, ids, logprobs }
            | ReplyEvent::Reasoning { choice, text, ids, logprobs } => {
                self.tokens(*choice, ids, logprobs).text.push_str(text);
            }
            ReplyEvent::ReasoningSignature { choice, signature } => {
                let (answer, signature) = (self.choice(*choice), signature.clone());
                let text = answer.end_section();
                answer.details.push(ReasoningDetail::Signed { text, signature });
            }
            ReplyEvent::RedactedReasoning { choice, data } => {
                let (answer, data) = (self.choice(*choice), data.clone());
                answer.end_section();
                answer.details.push(ReasoningDetail::Encrypted { data });
            }
            ReplyEvent::ToolCallStart { choice, index, id, name } => {
                let call = ToolCall { id: id.clone(), name: name.clone(), arguments: String::new() };
                self.choice(*choice).calls.insert(*index, call);
            }
            ReplyEvent::ToolCallArguments { choice, index, fragment } => {
                if let Some(call) = self.choice(*choice).calls.get_mut(index) {
                    call.arguments.push_str(fragment);
                }
            }
            // A generated answer has no such events.
            ReplyEvent::Encoded { .. } => {}
            ReplyEvent::Finish { choice, reason } => self.choice(*choice).reason = Some(reason.clone()),
        }
    }

    fn finish(&mut self, usage: &Usage, explain: Option<&serde_json::Value>, out: &mut BytesMut) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let chat = self.endpoint == Endpoint::ChatCompletions;
        write_head(out, self.endpoint, &self.meta, if chat { "chat.completion" } else { "text_completion" });
        raw(out, "[");
        if chat {
            self.write_chat(out);
        } else {
            self.write_completions(out);
        }
        write_usage(out, usage);
        write_explain(out, explain);
        raw(out, "}");
    }

    fn fail(&mut self, facts: &ErrorFacts, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.over, true) {
            write_error(Dialect::OpenAi, facts, out);
        }
    }

    fn keep_alive(&mut self, _out: &mut BytesMut) {}

    fn content_type(&self) -> &'static str {
        JSON
    }
}
