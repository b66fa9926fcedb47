//! Reads the usage that upstreams report and sorts it into disjoint classes of tokens. Every valid count is used,
//! whatever the other fields contain. A field that is not a count, or that contradicts the totals, is noted, and only
//! that field is left out. Knows no prices.
//!
//! Sources: <https://platform.openai.com/docs/api-reference/chat/object>, <https://docs.anthropic.com/en/api/messages>.

use serde_json::value::RawValue;

use headrace_wire::fault::head;

use super::fault::{self, FaultKind, FaultNotes};
use super::lenient::MOST_NAME_BYTES;
use super::reported::{KnownUsage, ReportedUsage};
use super::usage_body::UsageBody;
use super::usage_counts::{SortedCounts, UsageCounts, UsageNames};

/// The usage reports of an answer. Each report covers the answer so far, so a later count replaces the same count of an
/// earlier report. Nothing is summed.
#[derive(Debug, Default)]
pub(super) struct UsageReports {
    counts: UsageCounts,
    sorted: SortedCounts,
    /// A report with at least one field came.
    any: bool,
    /// The endpoint generates no tokens, so the answer's count may be absent.
    encodes: bool,
    tier: Option<String>,
}

impl UsageReports {
    /// Creates the reports for an endpoint that encodes and generates nothing.
    pub(super) fn of_encoder() -> Self {
        Self { encodes: true, ..Self::default() }
    }

    /// Returns the whole report. `None` if the prompt's or the answer's tokens are unknown.
    pub(super) fn reported(&self) -> Option<&ReportedUsage> {
        let SortedCounts { usage, has_prompt, has_answer } = &self.sorted;
        (*has_prompt && *has_answer).then_some(usage)
    }

    /// The usable part of the reports.
    pub(super) fn known(&self) -> KnownUsage {
        let SortedCounts { usage, has_prompt, has_answer } = &self.sorted;
        let total = self.counts.total();
        KnownUsage { usage: usage.usage(), has_prompt: *has_prompt, has_answer: *has_answer, total }
    }

    /// Names the missing part of the reports. `None` if no part with a price is missing.
    pub(super) fn gap(&self) -> Option<&'static str> {
        match (self.sorted.has_prompt, self.sorted.has_answer) {
            (true, true) => None,
            _ if !self.any => Some("the upstream reported no usage"),
            (true, false) => Some("the upstream's usage has no valid count of the answer's tokens"),
            (false, true) => Some("the upstream's usage has no valid count of the prompt's tokens"),
            (false, false) => Some("the upstream's usage has no valid count of tokens"),
        }
    }

    /// The service tier that the upstream names.
    pub(super) fn service_tier(&self) -> Option<&str> {
        self.tier.as_deref()
    }

    /// Takes a tier that is reported outside of `usage` (OpenAI).
    pub(super) fn tier(&mut self, tier: &str) {
        let tier = head(tier, MOST_NAME_BYTES);
        if self.tier.as_deref() != Some(tier) {
            self.tier = Some(tier.to_owned());
            self.sorted.usage.service_tier.clone_from(&self.tier);
        }
    }

    /// Takes the `usage` of OpenAI's chat dialect.
    pub(super) fn openai(&mut self, usage: &RawValue, notes: &mut FaultNotes) {
        self.raw(UsageNames::Chat, usage, notes);
    }

    /// Takes the `usage` of OpenAI's Responses API.
    pub(super) fn responses(&mut self, usage: &RawValue, notes: &mut FaultNotes) {
        self.raw(UsageNames::Responses, usage, notes);
    }

    /// Takes the `usage` of Anthropic's dialect.
    pub(super) fn anthropic(&mut self, usage: &RawValue, notes: &mut FaultNotes) {
        self.raw(UsageNames::Anthropic, usage, notes);
    }

    fn raw(&mut self, names: UsageNames, usage: &RawValue, notes: &mut FaultNotes) {
        match fault::object(usage.get().as_bytes()) {
            Ok(body) => self.read(names, &body, notes),
            Err(fault) => {
                self.any = true;
                notes.add(FaultKind::UsageAbsurd, || fault.message);
            }
        }
    }

    /// Takes a report that is already parsed.
    pub(super) fn read(&mut self, names: UsageNames, body: &UsageBody<'_>, notes: &mut FaultNotes) {
        if names == UsageNames::Anthropic
            && let Some(tier) = body.service_tier.given()
        {
            self.tier(tier);
        }
        let Some(all_valid) = self.counts.take(body, notes) else { return };
        self.any = true;
        self.sorted = self.counts.sort(names, self.encodes, notes);
        self.sorted.usage.service_tier.clone_from(&self.tier);
        if all_valid && self.gap().is_some() {
            notes
                .add(FaultKind::UsageIncomplete, || "the prompt's or the answer's tokens are missing".into());
        }
    }
}
