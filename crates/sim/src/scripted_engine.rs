//! An engine that answers at once with fixed tokens. The rest of a call's time is spent outside the engine.

use std::sync::Arc;

use headrace_domain::{EngineTrace, FinishReason, PrefixKeys, TokenLogprob, Usage};
use headrace_engine_api::{
    Capabilities, Engine, EngineHealth, Job, JobEvent, JobReport, JobTicket, LoadReport, PromptScores,
    SubmitRefusal, channel,
};

/// Gives the same answer to every job. Every event is sent before `submit` returns, regardless of the bound on unread
/// bytes.
#[derive(Debug)]
pub struct ScriptedEngine {
    capabilities: Capabilities,
    tokens_per_answer: u32,
    text_per_token: String,
}

impl ScriptedEngine {
    /// Creates an engine whose answers have `tokens_per_answer` ids, or `max_tokens` if that is less. Each token is one
    /// event with the text `text_per_token`.
    pub fn new(capabilities: Capabilities, tokens_per_answer: u32, text_per_token: &str) -> Self {
        let text_per_token = text_per_token.to_owned();
        Self { capabilities, tokens_per_answer, text_per_token }
    }

    fn score(&self, id: u32, first: bool) -> TokenLogprob {
        let bytes = self.text_per_token.as_bytes().to_vec();
        TokenLogprob { id, bytes, logprob: (!first).then_some(0.0), top: Vec::new() }
    }
}

impl Engine for ScriptedEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn submit(&self, job: Job) -> Result<JobTicket, SubmitRefusal> {
        let sampling = &job.sampling;
        let needed = (job.prompt.len() as u64).saturating_add(u64::from(sampling.max_tokens));
        let limit = u64::from(self.capabilities.context_window);
        if needed > limit {
            return Err(SubmitRefusal::DoesNotFit { needed, limit });
        }
        let (sender, ticket) = channel(job.unread_bytes, Arc::new(|| {}));
        sender.send(JobEvent::Started { cached_tokens: 0 });
        if sampling.prompt_logprobs.is_some() {
            let scores = job.prompt.iter().enumerate().map(|(i, &id)| self.score(id, i == 0));
            sender.send(JobEvent::Scored(PromptScores { tokens: scores.collect() }));
        }
        let tokens = self.tokens_per_answer.min(sampling.max_tokens);
        let last = if tokens == self.tokens_per_answer { FinishReason::Stop } else { FinishReason::Length };
        for choice in (0..sampling.n).map(|i| job.first_choice.saturating_add(i)) {
            for i in 0..tokens {
                let id = i % self.capabilities.vocab.max(1);
                let logprobs = sampling.logprobs.iter().map(|_| self.score(id, false)).collect();
                sender.send(JobEvent::Tokens {
                    choice,
                    ids: vec![id],
                    text: self.text_per_token.clone(),
                    logprobs,
                });
            }
            sender.send(JobEvent::Finished { choice, reason: last.clone() });
        }
        let usage = Usage {
            input: job.prompt.len() as u64,
            output: u64::from(tokens) * u64::from(sampling.n),
            ..Usage::default()
        };
        let engine = EngineTrace { steps: tokens, prefill_chunks: 1, ..EngineTrace::default() };
        sender.finish(JobEvent::Done(Arc::new(JobReport { usage, engine })));
        Ok(ticket)
    }

    fn cached_prefix(&self, _keys: &PrefixKeys) -> usize {
        0
    }

    fn load(&self) -> LoadReport {
        LoadReport::default()
    }

    fn health(&self) -> EngineHealth {
        EngineHealth::Up
    }
}
