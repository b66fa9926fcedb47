//! The counts of an answer's usage reports, and how they become disjoint classes of tokens. Knows no JSON.
//!
//! Names decide what a count includes. OpenAI counts cached tokens as a part of the prompt and reasoning as a part of
//! the answer. Anthropic counts cached tokens beside `input_tokens`. If the names of several dialects are present,
//! those of the upstream's own dialect win.

use super::fault::{FaultKind, FaultNotes};
use super::lenient::LenientCount;
use super::reported::ReportedUsage;
use super::usage_body::UsageBody;

/// The largest count of tokens that is accepted. It is beyond any prompt or answer of a model.
const MOST_TOKENS: u64 = 1 << 32;

/// The names for counts that the upstream's dialect uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsageNames {
    /// OpenAI's chat completions: `prompt_tokens`, `completion_tokens`.
    Chat,
    /// OpenAI's Responses API: `input_tokens`, `output_tokens`.
    Responses,
    /// Anthropic's messages: `input_tokens`, `output_tokens`, with the cache counted beside them.
    Anthropic,
}

/// The valid counts so far.
#[derive(Debug, Default)]
pub(super) struct UsageCounts {
    prompt: Option<u64>,
    completion: Option<u64>,
    input: Option<u64>,
    output: Option<u64>,
    total: Option<u64>,
    /// OpenAI's names: a part of the prompt.
    cached: Option<u64>,
    missed: Option<u64>,
    /// OpenAI's names: a part of the prompt.
    written: Option<u64>,
    /// Anthropic's names.
    cache_read: Option<u64>,
    cache_creation: Option<u64>,
    written_5m: Option<u64>,
    written_1h: Option<u64>,
    reasoning: Option<u64>,
    audio_prompt: Option<u64>,
    audio_answer: Option<u64>,
    searches: Option<u64>,
    fetches: Option<u64>,
}

/// The counts in disjoint classes.
#[derive(Debug, Default)]
pub(super) struct SortedCounts {
    pub(super) usage: ReportedUsage,
    /// The prompt's tokens are known.
    pub(super) has_prompt: bool,
    /// The answer's tokens are known.
    pub(super) has_answer: bool,
}

/// Prompt tokens that the cache read or wrote, by class.
#[derive(Default)]
struct CacheCounts {
    read: u64,
    written: u64,
    written_5m: u64,
    written_1h: u64,
}

impl CacheCounts {
    fn total(&self) -> u64 {
        self.read.saturating_add(self.all_written())
    }

    fn all_written(&self) -> u64 {
        self.written.saturating_add(self.written_5m).saturating_add(self.written_1h)
    }
}

/// Returns the first valid one of several counts of the same thing. If none is valid, returns the first invalid one.
fn first<const N: usize>(counts: [LenientCount; N]) -> LenientCount {
    let mut first = LenientCount::Absent;
    for count in counts {
        match count {
            LenientCount::Absent => {}
            LenientCount::Is(tokens) if tokens <= MOST_TOKENS => return count,
            _ if first == LenientCount::Absent => first = count,
            _ => {}
        }
    }
    first
}

/// Puts a count into its slot if it is valid. Returns whether it is. If the count fell, the slot keeps its value.
fn put(slot: &mut Option<u64>, count: LenientCount, name: &'static str, notes: &mut FaultNotes) -> bool {
    match (count, *slot) {
        (LenientCount::Is(now), Some(before)) if now <= MOST_TOKENS && now < before => {
            notes.add(FaultKind::UsageFell, || format!("{name} fell from {before} to {now}"));
            true
        }
        (LenientCount::Is(now), _) if now <= MOST_TOKENS => {
            *slot = Some(now);
            true
        }
        _ => {
            notes.add(FaultKind::UsageAbsurd, || format!("`{name}` is no count of tokens"));
            false
        }
    }
}

impl UsageCounts {
    /// Takes the valid counts of a report. If a count fell, its earlier value stays. Returns whether all counts are
    /// valid. Returns `None` if the report has no counts.
    pub(super) fn take(&mut self, body: &UsageBody<'_>, notes: &mut FaultNotes) -> Option<bool> {
        let (mut any, mut all_valid) = (false, true);
        let mut take = |slot: &mut Option<u64>, count: LenientCount, name: &'static str| {
            // Most counts of a report are absent.
            if count != LenientCount::Absent {
                any = true;
                all_valid &= put(slot, count, name, notes);
            }
        };
        let (prompt, input) = (&body.prompt_tokens_details, &body.input_tokens_details);
        let (completion, output) = (&body.completion_tokens_details, &body.output_tokens_details);
        let (creation, tools) = (&body.cache_creation, &body.server_tool_use);
        let cached = first([
            prompt.cached_tokens,
            input.cached_tokens,
            body.prompt_cache_hit_tokens,
            body.cached_tokens,
        ]);
        let reasoning = first([
            completion.reasoning_tokens,
            output.reasoning_tokens,
            output.thinking_tokens,
            completion.thinking_tokens,
            body.reasoning_tokens,
        ]);
        take(&mut self.prompt, body.prompt_tokens, "prompt_tokens");
        take(&mut self.completion, body.completion_tokens, "completion_tokens");
        take(&mut self.input, body.input_tokens, "input_tokens");
        take(&mut self.output, body.output_tokens, "output_tokens");
        take(&mut self.total, body.total_tokens, "total_tokens");
        take(&mut self.cached, cached, "cached_tokens");
        take(&mut self.missed, body.prompt_cache_miss_tokens, "prompt_cache_miss_tokens");
        let written = first([prompt.cache_write_tokens, input.cache_write_tokens]);
        take(&mut self.written, written, "cache_write_tokens");
        take(&mut self.cache_read, body.cache_read_input_tokens, "cache_read_input_tokens");
        take(&mut self.cache_creation, body.cache_creation_input_tokens, "cache_creation_input_tokens");
        take(&mut self.written_5m, creation.ephemeral_5m_input_tokens, "ephemeral_5m_input_tokens");
        take(&mut self.written_1h, creation.ephemeral_1h_input_tokens, "ephemeral_1h_input_tokens");
        take(&mut self.reasoning, reasoning, "reasoning_tokens");
        take(&mut self.audio_prompt, first([prompt.audio_tokens, input.audio_tokens]), "audio_tokens");
        take(&mut self.audio_answer, first([completion.audio_tokens, output.audio_tokens]), "audio_tokens");
        take(&mut self.searches, tools.web_search_requests, "web_search_requests");
        take(&mut self.fetches, tools.web_fetch_requests, "web_fetch_requests");
        any.then_some(all_valid)
    }

    /// Tokens of prompt and answer together.
    pub(super) fn total(&self) -> Option<u64> {
        self.total
    }

    /// Sorts the counts into disjoint classes. A detail that contradicts a total is noted and left out. The total is
    /// kept.
    pub(super) fn sort(&self, own: UsageNames, encodes: bool, notes: &mut FaultNotes) -> SortedCounts {
        let chat_first = own == UsageNames::Chat;
        let or =
            |chat: Option<u64>, other: Option<u64>| if chat_first { chat.or(other) } else { other.or(chat) };
        let (mut prompt, mut answer) = (or(self.prompt, self.input), or(self.completion, self.output));
        let is_input = self.input.is_some() && (!chat_first || self.prompt.is_none());
        let beside = is_input && self.cache_is_beside(own);
        let mut cache = self.cache(beside, notes);
        if encodes {
            answer = answer.or(Some(0));
            prompt = prompt.or(self.total);
        }
        // A missing count follows from the total and the other count.
        let outside = if beside { cache.total() } else { 0 };
        prompt = prompt
            .or_else(|| self.cached.zip(self.missed).map(|(hit, miss)| hit.saturating_add(miss)))
            .or_else(|| self.total?.checked_sub(answer?));
        answer = answer.or_else(|| self.total?.checked_sub(prompt?)?.checked_sub(outside));

        let mut input = prompt.unwrap_or(0);
        if let Some(prompt) = prompt.filter(|_| !beside) {
            // Under Anthropic's names, cache tokens that exceed the prompt can only be counted beside it.
            let is_part = self.has_openai_cache() || cache.total() <= prompt;
            if is_part {
                within(prompt, &mut cache, notes);
                input = prompt.saturating_sub(cache.total());
            }
        }
        let whole_prompt = input.saturating_add(cache.total());
        let (output, reasoning) = self.answer(answer, whole_prompt, notes);
        SortedCounts {
            usage: ReportedUsage {
                input,
                cached_input: cache.read,
                cache_write: cache.written,
                cache_write_5m: cache.written_5m,
                cache_write_1h: cache.written_1h,
                output,
                reasoning,
                audio_input: self.audio_prompt.unwrap_or(0),
                audio_output: self.audio_answer.unwrap_or(0),
                web_searches: self.searches.unwrap_or(0),
                web_fetches: self.fetches.unwrap_or(0),
                service_tier: None,
            },
            has_prompt: prompt.is_some(),
            has_answer: answer.is_some(),
        }
    }

    fn has_openai_cache(&self) -> bool {
        self.cached.is_some() || self.written.is_some()
    }

    /// Whether `input_tokens` excludes the cached tokens, as in Anthropic's dialect.
    fn cache_is_beside(&self, own: UsageNames) -> bool {
        let split = self.written_5m.is_some() || self.written_1h.is_some();
        let anthropic = self.cache_read.is_some() || self.cache_creation.is_some() || split;
        match own {
            UsageNames::Anthropic => anthropic || !self.has_openai_cache(),
            UsageNames::Chat | UsageNames::Responses => anthropic && !self.has_openai_cache(),
        }
    }

    fn cache(&self, beside: bool, notes: &mut FaultNotes) -> CacheCounts {
        let read = if beside { self.cache_read.or(self.cached) } else { self.cached.or(self.cache_read) };
        let read = read.unwrap_or(0);
        if let (Some(written), false) = (self.written, beside) {
            return CacheCounts { read, written, ..CacheCounts::default() };
        }
        let (five, hour) = (self.written_5m.unwrap_or(0), self.written_1h.unwrap_or(0));
        let split = five.saturating_add(hour);
        let all = self.cache_creation.or(self.written).unwrap_or(split);
        // A cache write is kept for five minutes unless the report says otherwise.
        let hour = if split > all {
            notes.add(FaultKind::UsageAbsurd, || format!("{split} cache writes by lifetime of {all} in all"));
            0
        } else {
            hour
        };
        CacheCounts { read, written: 0, written_5m: all - hour, written_1h: hour }
    }

    /// Returns the answer's tokens outside of reasoning, and its reasoning tokens.
    fn answer(&self, answer: Option<u64>, whole_prompt: u64, notes: &mut FaultNotes) -> (u64, u64) {
        let reasoning = self.reasoning.unwrap_or(0);
        let Some(answer) = answer else { return (0, reasoning) };
        // Some servers count reasoning beside the answer. The total reveals this.
        let all = whole_prompt.saturating_add(answer).saturating_add(reasoning);
        if reasoning > 0 && self.total == Some(all) {
            return (answer, reasoning);
        }
        match answer.checked_sub(reasoning) {
            Some(output) => (output, reasoning),
            None => {
                notes.add(FaultKind::UsageAbsurd, || {
                    format!("{reasoning} reasoning tokens of {answer} generated tokens")
                });
                (answer, 0)
            }
        }
    }
}

/// Leaves out the cached or the written tokens if they exceed the prompt.
fn within(prompt: u64, cache: &mut CacheCounts, notes: &mut FaultNotes) {
    if cache.total() <= prompt {
        return;
    }
    notes
        .add(FaultKind::UsageAbsurd, || format!("{} cached tokens of {prompt} prompt tokens", cache.total()));
    if cache.read > prompt {
        cache.read = 0;
    }
    if cache.total() > prompt {
        *cache = CacheCounts { read: cache.read, ..CacheCounts::default() };
    }
}
