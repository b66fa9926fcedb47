//! What upstreams report as used, in the counts of each dialect, made into disjoint classes of tokens.
//! A report is evidence: one that cannot be is noted and left out. Knows no prices.
//!
//! Sources: <https://platform.openai.com/docs/api-reference/chat/object>, <https://docs.anthropic.com/en/api/messages>.

use headrace_domain::Usage;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::fault::head;

use super::fault::{self, FaultKind, Notes};
use super::lenient::{Count, MOST_NAME_BYTES, Text, or_default};

/// What an upstream reports as used, by every class that upstreams tell apart. The token counts down to `reasoning` are
/// disjoint; those after it are parts of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReportedUsage {
    /// Prompt tokens neither read from a cache nor written to one at a price.
    pub input: u64,
    /// Prompt tokens read from the cache.
    pub cached_input: u64,
    /// Prompt tokens written to a cache that keeps them for 5 minutes (Anthropic).
    pub cache_write_5m: u64,
    /// Prompt tokens written to a cache that keeps them for an hour (Anthropic).
    pub cache_write_1h: u64,
    /// Prompt tokens written to the cache (OpenAI).
    pub cache_write: u64,
    /// Generated tokens outside of reasoning.
    pub output: u64,
    /// Generated tokens of reasoning.
    pub reasoning: u64,
    /// Of the prompt: tokens of sound.
    pub audio_input: u64,
    /// Of the answer: tokens of sound.
    pub audio_output: u64,
    /// Searches that the upstream's own tool made.
    pub web_searches: u64,
    /// Pages that the upstream's own tool fetched.
    pub web_fetches: u64,
    /// The service tier that the upstream says it billed.
    pub service_tier: Option<String>,
}

impl ReportedUsage {
    /// The classes that have prices.
    pub const fn usage(&self) -> Usage {
        Usage {
            input: self.input,
            cached_input: self.cached_input,
            cache_write: self.cache_write.saturating_add(self.cache_write_5m),
            cache_write_1h: self.cache_write_1h,
            output: self.output,
            reasoning: self.reasoning,
            web_searches: self.web_searches,
        }
    }
}

/// The reports of an answer. Each is the whole so far: a later one takes the place of what it says again, and nothing is summed.
#[derive(Debug, Default)]
pub(super) struct Reports {
    counts: Counts,
    reported: Option<ReportedUsage>,
    tier: Option<String>,
}

impl Reports {
    pub(super) fn reported(&self) -> Option<&ReportedUsage> {
        self.reported.as_ref()
    }

    /// The tier, where it stands outside of the usage (OpenAI).
    pub(super) fn tier(&mut self, tier: &str) {
        let tier = head(tier, MOST_NAME_BYTES);
        if self.tier.as_deref() != Some(tier) {
            self.tier = Some(tier.to_owned());
            if let Some(reported) = &mut self.reported {
                reported.service_tier.clone_from(&self.tier);
            }
        }
    }

    /// OpenAI's `usage`, and what servers of its dialect add to it.
    pub(super) fn openai(&mut self, usage: &RawValue, notes: &mut Notes) {
        match fault::object(usage.get().as_bytes()) {
            Ok(body) => self.openai_counts(&body, notes),
            Err(fault) => notes.add(FaultKind::UsageAbsurd, || fault.message),
        }
    }

    /// The same, read already.
    pub(super) fn openai_counts(&mut self, body: &OpenAiUsage, notes: &mut Notes) {
        let prompt = body.prompt_tokens_details;
        let answer = body.completion_tokens_details;
        let first = |one: Count, other: Count| if one == Count::Absent { other } else { one };
        self.take(
            &Report {
                prompt: body.prompt_tokens,
                answer: body.completion_tokens,
                total: body.total_tokens,
                read: first(prompt.cached_tokens, first(body.prompt_cache_hit_tokens, body.cached_tokens)),
                written: prompt.cache_write_tokens,
                reasoning: first(answer.reasoning_tokens, body.reasoning_tokens),
                audio_prompt: prompt.audio_tokens,
                audio_answer: answer.audio_tokens,
                ..Report::default()
            },
            Counts::openai,
            notes,
        );
    }

    /// The `usage` of OpenAI's Responses API.
    pub(super) fn responses(&mut self, usage: &RawValue, notes: &mut Notes) {
        let body: ResponsesUsage = match fault::object(usage.get().as_bytes()) {
            Ok(body) => body,
            Err(fault) => return notes.add(FaultKind::UsageAbsurd, || fault.message),
        };
        self.take(
            &Report {
                prompt: body.input_tokens,
                answer: body.output_tokens,
                total: body.total_tokens,
                read: body.input_tokens_details.cached_tokens,
                written: body.input_tokens_details.cache_write_tokens,
                reasoning: body.output_tokens_details.reasoning_tokens,
                audio_prompt: body.input_tokens_details.audio_tokens,
                audio_answer: body.output_tokens_details.audio_tokens,
                ..Report::default()
            },
            Counts::openai,
            notes,
        );
    }

    /// Anthropic's `usage`.
    pub(super) fn anthropic(&mut self, usage: &RawValue, notes: &mut Notes) {
        match fault::object(usage.get().as_bytes()) {
            Ok(body) => self.anthropic_counts(&body, notes),
            Err(fault) => notes.add(FaultKind::UsageAbsurd, || fault.message),
        }
    }

    /// The same, read already.
    pub(super) fn anthropic_counts(&mut self, body: &AnthropicUsage<'_>, notes: &mut Notes) {
        if let Some(tier) = body.service_tier.given() {
            self.tier(tier);
        }
        self.take(
            &Report {
                prompt: body.input_tokens,
                answer: body.output_tokens,
                read: body.cache_read_input_tokens,
                written: body.cache_creation_input_tokens,
                written_5m: body.cache_creation.ephemeral_5m_input_tokens,
                written_1h: body.cache_creation.ephemeral_1h_input_tokens,
                reasoning: body.output_tokens_details.thinking_tokens,
                searches: body.server_tool_use.web_search_requests,
                fetches: body.server_tool_use.web_fetch_requests,
                ..Report::default()
            },
            Counts::anthropic,
            notes,
        );
    }

    fn take(
        &mut self,
        report: &Report,
        classes: fn(&Counts) -> Result<ReportedUsage, String>,
        notes: &mut Notes,
    ) {
        let mut counts = self.counts.clone();
        if let Err(field) = counts.take(report, notes) {
            return notes.add(FaultKind::UsageAbsurd, || format!("{field} is no count of tokens"));
        }
        if counts.prompt.is_none() || counts.answer.is_none() {
            // An empty object says nothing; half of a report may be completed later.
            if *report != Report::default() {
                self.counts = counts;
                notes.add(FaultKind::UsageIncomplete, || {
                    "the prompt's or the answer's tokens are missing".into()
                });
            }
            return;
        }
        match classes(&counts) {
            Ok(reported) => {
                self.counts = counts;
                self.reported = Some(ReportedUsage { service_tier: self.tier.clone(), ..reported });
            }
            Err(why) => notes.add(FaultKind::UsageAbsurd, || why),
        }
    }
}

/// One report, in the dialect's own counts.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Report {
    prompt: Count,
    answer: Count,
    total: Count,
    read: Count,
    written: Count,
    written_5m: Count,
    written_1h: Count,
    reasoning: Count,
    audio_prompt: Count,
    audio_answer: Count,
    searches: Count,
    fetches: Count,
}

/// The counts so far.
#[derive(Debug, Default, Clone)]
struct Counts {
    prompt: Option<u64>,
    answer: Option<u64>,
    total: Option<u64>,
    read: Option<u64>,
    written: Option<u64>,
    written_5m: Option<u64>,
    written_1h: Option<u64>,
    reasoning: Option<u64>,
    audio_prompt: Option<u64>,
    audio_answer: Option<u64>,
    searches: Option<u64>,
    fetches: Option<u64>,
}

impl Counts {
    /// Takes what a report says. A count that falls keeps its former value.
    ///
    /// # Errors
    /// The name of what is no count.
    fn take(&mut self, report: &Report, notes: &mut Notes) -> Result<(), &'static str> {
        let mut take = |slot: &mut Option<u64>, count: Count, name: &'static str| match count {
            Count::Absent => Ok(()),
            Count::Absurd => Err(name),
            Count::Is(now) => {
                match *slot {
                    Some(before) if now < before => {
                        notes.add(FaultKind::UsageFell, || format!("{name} fell from {before} to {now}"));
                    }
                    _ => *slot = Some(now),
                }
                Ok(())
            }
        };
        take(&mut self.prompt, report.prompt, "the prompt's tokens")?;
        take(&mut self.answer, report.answer, "the answer's tokens")?;
        take(&mut self.total, report.total, "the total")?;
        take(&mut self.read, report.read, "cached tokens")?;
        take(&mut self.written, report.written, "cache writes")?;
        take(&mut self.written_5m, report.written_5m, "5-minute cache writes")?;
        take(&mut self.written_1h, report.written_1h, "1-hour cache writes")?;
        take(&mut self.reasoning, report.reasoning, "reasoning tokens")?;
        take(&mut self.audio_prompt, report.audio_prompt, "the prompt's audio tokens")?;
        take(&mut self.audio_answer, report.audio_answer, "the answer's audio tokens")?;
        take(&mut self.searches, report.searches, "web searches")?;
        take(&mut self.fetches, report.fetches, "web fetches")
    }

    /// OpenAI: what is read from the cache and written to it is part of the prompt's tokens, reasoning part of the answer's.
    fn openai(&self) -> Result<ReportedUsage, String> {
        let (prompt, answer) = (self.prompt.unwrap_or(0), self.answer.unwrap_or(0));
        let (read, written) = (self.read.unwrap_or(0), self.written.unwrap_or(0));
        let reasoning = self.reasoning.unwrap_or(0);
        let cached = read.saturating_add(written);
        let input = prompt
            .checked_sub(cached)
            .ok_or_else(|| format!("{cached} cached tokens of {prompt} prompt tokens"))?;
        // Some servers count reasoning beside the answer; their total tells.
        let beside =
            reasoning > 0 && self.total == Some(prompt.saturating_add(answer).saturating_add(reasoning));
        let output = if beside { Some(answer) } else { answer.checked_sub(reasoning) };
        Ok(ReportedUsage {
            input,
            cached_input: read,
            cache_write: written,
            output: output
                .ok_or_else(|| format!("{reasoning} reasoning tokens of {answer} generated tokens"))?,
            reasoning,
            audio_input: self.audio_prompt.unwrap_or(0),
            audio_output: self.audio_answer.unwrap_or(0),
            ..ReportedUsage::default()
        })
    }

    /// Anthropic: what is read from the cache and written to it stands beside the input tokens; thinking is part of the output.
    fn anthropic(&self) -> Result<ReportedUsage, String> {
        let (hour, five) = (self.written_1h.unwrap_or(0), self.written_5m.unwrap_or(0));
        let split = hour.saturating_add(five);
        let written = self.written.unwrap_or(split);
        if split > written {
            return Err(format!("{split} cache writes by lifetime of {written} in all"));
        }
        let (answer, reasoning) = (self.answer.unwrap_or(0), self.reasoning.unwrap_or(0));
        let output = answer
            .checked_sub(reasoning)
            .ok_or_else(|| format!("{reasoning} thinking tokens of {answer} output tokens"))?;
        Ok(ReportedUsage {
            input: self.prompt.unwrap_or(0),
            cached_input: self.read.unwrap_or(0),
            // Five minutes is what a write is kept for unless told otherwise.
            cache_write_5m: written - hour,
            cache_write_1h: hour,
            output,
            reasoning,
            web_searches: self.searches.unwrap_or(0),
            web_fetches: self.fetches.unwrap_or(0),
            ..ReportedUsage::default()
        })
    }
}

/// `usage` of OpenAI's dialect. vLLM's `created_cache_tokens` is not read: nothing is priced for them.
#[derive(Default, Deserialize)]
pub(super) struct OpenAiUsage {
    #[serde(default)]
    pub(super) prompt_tokens: Count,
    #[serde(default)]
    pub(super) completion_tokens: Count,
    #[serde(default)]
    pub(super) total_tokens: Count,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) prompt_tokens_details: PromptDetails,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) completion_tokens_details: AnswerDetails,
    /// DeepSeek.
    #[serde(default)]
    pub(super) prompt_cache_hit_tokens: Count,
    /// Moonshot.
    #[serde(default)]
    pub(super) cached_tokens: Count,
    /// SGLang.
    #[serde(default)]
    pub(super) reasoning_tokens: Count,
}

#[derive(Default, Clone, Copy, Deserialize)]
pub(super) struct PromptDetails {
    #[serde(default)]
    pub(super) cached_tokens: Count,
    #[serde(default)]
    pub(super) cache_write_tokens: Count,
    #[serde(default)]
    pub(super) audio_tokens: Count,
}

#[derive(Default, Clone, Copy, Deserialize)]
pub(super) struct AnswerDetails {
    #[serde(default)]
    pub(super) reasoning_tokens: Count,
    #[serde(default)]
    pub(super) audio_tokens: Count,
}

/// `usage` of the Responses API.
#[derive(Deserialize)]
struct ResponsesUsage {
    #[serde(default)]
    input_tokens: Count,
    #[serde(default)]
    output_tokens: Count,
    #[serde(default)]
    total_tokens: Count,
    #[serde(default, deserialize_with = "or_default")]
    input_tokens_details: PromptDetails,
    #[serde(default, deserialize_with = "or_default")]
    output_tokens_details: AnswerDetails,
}

/// `usage` of Anthropic's dialect.
#[derive(Default, Deserialize)]
pub(super) struct AnthropicUsage<'a> {
    #[serde(default)]
    pub(super) input_tokens: Count,
    #[serde(default)]
    pub(super) output_tokens: Count,
    #[serde(default)]
    pub(super) cache_read_input_tokens: Count,
    #[serde(default)]
    pub(super) cache_creation_input_tokens: Count,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) cache_creation: CacheCreation,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) output_tokens_details: OutputDetails,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) server_tool_use: ServerTools,
    #[serde(default, borrow)]
    pub(super) service_tier: Text<'a>,
}

#[derive(Default, Clone, Copy, Deserialize)]
pub(super) struct CacheCreation {
    #[serde(default)]
    pub(super) ephemeral_5m_input_tokens: Count,
    #[serde(default)]
    pub(super) ephemeral_1h_input_tokens: Count,
}

#[derive(Default, Clone, Copy, Deserialize)]
pub(super) struct OutputDetails {
    #[serde(default)]
    pub(super) thinking_tokens: Count,
}

#[derive(Default, Clone, Copy, Deserialize)]
pub(super) struct ServerTools {
    #[serde(default)]
    pub(super) web_search_requests: Count,
    #[serde(default)]
    pub(super) web_fetch_requests: Count,
}
