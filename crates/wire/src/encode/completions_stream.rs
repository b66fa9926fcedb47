//! OpenAI's stream of text completions. The text of an event is escaped straight into the output.
//!
//! Source: <https://platform.openai.com/docs/api-reference/completions/create>.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::BytesMut;
use headrace_domain::{Call, ReplyEvent, ShownPrompt, TokenLogprob, Usage};

use super::completion_logprobs::{self, Offsets};
use super::frame::{Frame, PromptFields, write_finish_reason, write_token_ids};
use super::{EVENT_STREAM, ReplyEncoder, ReplyMeta, Wanted};
use crate::ErrorFacts;
use crate::json_out::{raw, value};

pub(super) struct CompletionsStream {
    frame: Frame,
    wanted: Wanted,
    /// By choice; kept only where log-probabilities are asked for.
    offsets: BTreeMap<u32, Offsets>,
    prompts: PromptFields,
}

impl CompletionsStream {
    pub(super) fn new(call: &Call, meta: &ReplyMeta) -> Self {
        Self {
            frame: Frame::new(call, meta, "text_completion"),
            wanted: Wanted::of(call),
            offsets: BTreeMap::new(),
            prompts: PromptFields::default(),
        }
    }

    fn prompt(&mut self, choice: u32, prompt: &Arc<ShownPrompt>, out: &mut BytesMut) {
        let wanted = self.wanted;
        if !wanted.echo && !wanted.token_ids && !wanted.prompt_logprobs {
            return;
        }
        self.frame.open(out, choice);
        raw(out, ",\"text\":");
        value(out, if wanted.echo { prompt.text.as_str() } else { "" });
        raw(out, ",\"logprobs\":");
        if wanted.echo && wanted.logprobs {
            let places = self.offsets.entry(choice).or_default().echoed(&prompt.text, &prompt.logprobs);
            completion_logprobs::write(out, [prompt.logprobs.as_slice(), &[]], &places);
        } else {
            raw(out, "null");
        }
        raw(out, ",\"finish_reason\":null");
        self.prompts.write(out, wanted, prompt);
        self.frame.close(out);
    }

    fn text(&mut self, choice: u32, text: &str, ids: &[u32], logprobs: &[TokenLogprob], out: &mut BytesMut) {
        let ids = if self.wanted.token_ids { ids } else { &[] };
        let logprobs = if self.wanted.logprobs { logprobs } else { &[] };
        if text.is_empty() && ids.is_empty() && logprobs.is_empty() {
            return;
        }
        self.frame.open(out, choice);
        raw(out, ",\"text\":");
        value(out, text);
        raw(out, ",\"logprobs\":");
        if logprobs.is_empty() {
            raw(out, "null");
        } else {
            let places = self.offsets.entry(choice).or_default().generated(logprobs);
            completion_logprobs::write(out, [logprobs, &[]], &places);
        }
        raw(out, ",\"finish_reason\":null");
        write_token_ids(out, self.wanted, ids);
        self.frame.close(out);
    }
}

impl ReplyEncoder for CompletionsStream {
    fn begin(&mut self, _prompt_usage: &Usage, _out: &mut BytesMut) {}

    fn event(&mut self, event: &ReplyEvent, out: &mut BytesMut) {
        if self.frame.over {
            return;
        }
        match event {
            ReplyEvent::Prompt { choice, prompt } => self.prompt(*choice, prompt, out),
            ReplyEvent::Text { choice, text, ids, logprobs }
            | ReplyEvent::Reasoning { choice, text, ids, logprobs } => {
                self.text(*choice, text, ids, logprobs, out);
            }
            // A raw completion is not parsed: its producer finds no tool calls in it.
            ReplyEvent::ToolCallStart { .. } | ReplyEvent::ToolCallArguments { .. } => {}
            ReplyEvent::Finish { choice, reason } => {
                self.frame.open(out, *choice);
                raw(out, ",\"text\":\"\",\"logprobs\":null");
                write_finish_reason(out, Some(reason));
                self.frame.close(out);
            }
        }
    }

    fn finish(&mut self, usage: &Usage, explain: Option<&serde_json::Value>, out: &mut BytesMut) {
        self.frame.finish(usage, explain, out);
    }

    fn fail(&mut self, facts: &ErrorFacts, out: &mut BytesMut) {
        self.frame.fail(facts, out);
    }

    fn keep_alive(&mut self, out: &mut BytesMut) {
        self.frame.keep_alive(out);
    }

    fn content_type(&self) -> &'static str {
        EVENT_STREAM
    }
}
