//! The registry's own metrics as families, in the order of the page. Must not know how they are written.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use headrace_domain::{Stage, TokenClass};

use super::{DropReason, ENDPOINTS, MILLI, Metrics, NANO, PLAIN_OUTCOMES, load, name_at, nonzero, stage_at};
use crate::exposition::{PageFormat, page};
use crate::family::{FamilyKind, MetricFamily, SampleValue};
use crate::histogram::Histogram;

impl Metrics {
    /// All metrics, as a page for Prometheus.
    pub fn page(&self, format: PageFormat) -> String {
        page(&self.families(), format)
    }

    /// All metrics, followed by the families in `more`, as a page for Prometheus.
    pub fn page_with(&self, format: PageFormat, more: impl IntoIterator<Item = MetricFamily>) -> String {
        let families: Vec<MetricFamily> = self.families().into_iter().chain(more).collect();
        page(&families, format)
    }

    /// All metrics in the text exposition format 0.0.4 (`text/plain; version=0.0.4`).
    pub fn prometheus(&self) -> String {
        self.page(PageFormat::Text)
    }

    /// All metrics as data: first the registry's own, then the registered gauges and counters.
    pub fn families(&self) -> Vec<MetricFamily> {
        let mut page = MetricsFamilies { metrics: self, families: Vec::new() };
        page.requests();
        page.times();
        page.tokens_and_money();
        page.engine();
        page.traces();
        let mut families = page.families;
        let registered = self.gauges.families(&families);
        families.extend(registered);
        families
    }
}

/// The families collected so far.
struct MetricsFamilies<'a> {
    metrics: &'a Metrics,
    families: Vec<MetricFamily>,
}

impl MetricsFamilies<'_> {
    fn family(&mut self, name: &str, help: &str, kind: FamilyKind) {
        self.families.push(MetricFamily::new(name, help, kind));
    }

    /// Adds a sample to the last family.
    fn sample(&mut self, labels: &[(&str, &str)], count: u64) {
        self.push(labels, SampleValue::Count(count));
    }

    fn push(&mut self, labels: &[(&str, &str)], value: SampleValue) {
        if let Some(family) = self.families.last_mut() {
            family.push(labels, value);
        }
    }

    fn counter(&mut self, name: &str, help: &str, value: &AtomicU64) {
        self.family(name, help, FamilyKind::Counter);
        self.sample(&[], value.load(Relaxed));
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram, digits: u32) {
        self.family(name, help, FamilyKind::Histogram);
        self.push(&[], SampleValue::Histogram(histogram.read(digits)));
    }

    fn requests(&mut self) {
        let metrics = self.metrics;
        self.family("headrace_build_info", "The running program; always 1.", FamilyKind::Gauge);
        self.sample(&[("version", &metrics.version)], 1);

        let name = "headrace_requests_total";
        self.family(name, "Finished requests; `code` is the error code of a refusal.", FamilyKind::Counter);
        let (hows, models) = (PLAIN_OUTCOMES + metrics.codes.len(), metrics.models.len());
        for (at, count) in nonzero(&metrics.requests) {
            let (model, how, endpoint) = (at % models, at / models % hows, at / models / hows);
            let (outcome, code) = match how {
                0 => ("completed", ""),
                1 => ("cancelled", ""),
                2 => ("failed", ""),
                refused => ("refused", metrics.codes.name(refused - PLAIN_OUTCOMES)),
            };
            let labels = [
                ("endpoint", name_at(&ENDPOINTS, endpoint)),
                ("outcome", outcome),
                ("code", code),
                ("model", metrics.models.name(model)),
            ];
            self.sample(&labels, count);
        }

        let name = "headrace_refusals_total";
        self.family(name, "Refused requests by the stage and rule that refused them.", FamilyKind::Counter);
        for (at, count) in nonzero(&metrics.refusals) {
            let (stage, rule) = (at / metrics.rules.len(), at % metrics.rules.len());
            let labels = [("stage", stage_at(stage)), ("rule", metrics.rules.name(rule))];
            self.sample(&labels, count);
        }

        let name = "headrace_failures_total";
        self.family(name, "Requests that we or an upstream failed, by stage.", FamilyKind::Counter);
        for (at, count) in nonzero(&metrics.failures) {
            self.sample(&[("stage", stage_at(at))], count);
        }

        let name = "headrace_finishes_total";
        self.family(name, "Finished choices by finish reason.", FamilyKind::Counter);
        for (at, count) in nonzero(&metrics.finished) {
            self.sample(&[("reason", metrics.finishes.name(at))], count);
        }
    }

    fn times(&mut self) {
        let metrics = self.metrics;
        let name = "headrace_stage_duration_seconds";
        let help = "Time spent in each stage; buckets 1-2.5-5 from 1 µs to 100 s.";
        self.family(name, help, FamilyKind::Histogram);
        for (stage, histogram) in Stage::ALL.iter().zip(&metrics.stages) {
            self.push(&[("stage", stage.name())], SampleValue::Histogram(histogram.read(NANO)));
        }
        self.histogram(
            "headrace_request_duration_seconds",
            "From first byte to settled.",
            &metrics.duration,
            NANO,
        );
        self.histogram(
            "headrace_time_to_first_token_seconds",
            "From when the request was whole to its first token.",
            &metrics.first_token,
            NANO,
        );
        self.histogram(
            "headrace_inter_token_seconds",
            "Mean time between the tokens of one request.",
            &metrics.inter_token,
            NANO,
        );
        self.histogram(
            "headrace_ledger_journal_seconds",
            "Time until a group commit of the ledger's journal is durable.",
            &metrics.journal,
            NANO,
        );
    }

    fn tokens_and_money(&mut self) {
        let metrics = self.metrics;
        let name = "headrace_tokens_total";
        self.family(name, "Tokens by class; the classes are disjoint.", FamilyKind::Counter);
        for (model, model_name) in metrics.models.all() {
            for (at, class) in TokenClass::ALL.into_iter().enumerate() {
                let count = load(&metrics.tokens, model * TokenClass::ALL.len() + at);
                self.sample(&[("class", class.name()), ("model", model_name)], count);
            }
        }
        for (name, help, amounts) in [
            ("headrace_cost_nano_dollars_total", "Charged, in nano-dollars.", &metrics.cost),
            ("headrace_loss_nano_dollars_total", "Computed but not charged, in nano-dollars.", &metrics.loss),
        ] {
            self.family(name, help, FamilyKind::Counter);
            for (model, model_name) in metrics.models.all() {
                self.sample(&[("model", model_name)], load(amounts, model));
            }
        }
    }

    fn engine(&mut self) {
        let metrics = self.metrics;
        let name = "headrace_prompt_blocks_total";
        self.family(name, "Prompt blocks looked up in the prefix cache.", FamilyKind::Counter);
        self.sample(&[("cache", "hit")], metrics.blocks_hit.load(Relaxed));
        self.sample(&[("cache", "miss")], metrics.blocks_missed.load(Relaxed));
        self.counter(
            "headrace_preemptions_total",
            "Times a request lost its blocks and was recomputed.",
            &metrics.preemptions,
        );
        self.histogram(
            "headrace_batch_size",
            "Mean sequences per step over the steps of one request.",
            &metrics.batch,
            MILLI,
        );
    }

    fn traces(&mut self) {
        let metrics = self.metrics;
        self.counter("headrace_traces_stored_total", "Trace records written to the store.", &metrics.stored);
        let name = "headrace_traces_dropped_total";
        self.family(name, "Trace records that never reached the store.", FamilyKind::Counter);
        for (reason, count) in DropReason::ALL.into_iter().zip(&metrics.drops) {
            self.sample(&[("reason", reason.name())], count.load(Relaxed));
        }
    }
}
