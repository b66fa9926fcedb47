//! Adds each call to the figures when it ends. Knows no connection and no clock.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::quantiles::QuantileRecorder;
use crate::remarks::remarks;
use crate::report::{CallTotals, LatencyBucket, MissedBounds, ReportedServer};
use crate::session::{CallRecord, SessionEvent};
use crate::slo::CallFigures;
use crate::target::{CallEnd, CallFailure, HeardCall};
use crate::trace::RecordedCall;
use crate::units::{micros, ratio};
use crate::window::MeasureWindow;
use crate::{
    BenchConfig, BenchReport, ErrorClass, GeneratorReport, Goodput, LatencyReport, LatencySince, LoadShape,
    REPORT_VERSION, RunRates, SecondRow, Slo, TokenTotals, TokenizerGauge, TraceCall,
};

/// Maximum length of the series in seconds. Later events count towards its last second.
const MAX_SERIES_SECONDS: usize = 86_400;
/// Maximum number of error classes.
const MAX_ERROR_CLASSES: usize = 64;
/// Maximum lateness of the generator that does not matter, in milliseconds at the 99th percentile.
const SMALL_LAG_MS: f64 = 10.0;
/// Edges of the histogram's buckets within each power of ten, and the powers of ten in microseconds.
const EDGES: [u64; 6] = [10, 15, 20, 30, 50, 70];
const DECADES: std::ops::RangeInclusive<u32> = 1..=8;

/// The figures of a run in progress.
#[derive(Debug)]
pub(crate) struct RunTally {
    slo: Option<Slo>,
    stream: bool,
    record: bool,
    calls: CallTotals,
    /// Calls of all phases that have ended, and those that failed.
    ended: (u64, u64),
    errors: BTreeMap<String, (u64, String)>,
    times: TallyTimes,
    tokens: TokenSums,
    window: InWindow,
    good: GoodCalls,
    waited: u64,
    series: Vec<SecondBin>,
    /// When the last measured call was due, and when the last one ended.
    last_due: Duration,
    last_end: Duration,
    trace: Vec<TraceCall>,
}

#[derive(Debug, Default)]
struct TallyTimes {
    due_to_first: QuantileRecorder,
    due_to_end: QuantileRecorder,
    sent_to_first: QuantileRecorder,
    sent_to_end: QuantileRecorder,
    lag: QuantileRecorder,
    own_lag: QuantileRecorder,
    gaps: QuantileRecorder,
    per_token: QuantileRecorder,
}

#[derive(Debug, Default)]
struct TokenSums {
    prompt: u64,
    cached: Option<u64>,
    output: u64,
    asked: u64,
    events: u64,
    without_usage: u64,
    per_prompt: QuantileRecorder,
    per_output: QuantileRecorder,
    /// Tokens of prompts made of words, as planned and as counted.
    planned: (u64, u64),
}

#[derive(Debug, Default)]
struct InWindow {
    ok: u64,
    prompt_tokens: u64,
    output_tokens: f64,
}

#[derive(Debug, Default)]
struct GoodCalls {
    calls: u64,
    output_tokens: u64,
    missed: MissedBounds,
}

#[derive(Debug, Clone, Copy, Default)]
struct SecondBin {
    second: SecondRow,
    ended: u64,
    output_tokens: f64,
}

/// Facts about a run besides its calls.
#[derive(Debug)]
pub(crate) struct RunFacts {
    pub(crate) elapsed: Duration,
    pub(crate) begin: Option<Duration>,
    pub(crate) end: Option<Duration>,
    pub(crate) cut_short: bool,
    pub(crate) in_flight_max: usize,
    pub(crate) sent_again: u64,
    pub(crate) wake_lag: QuantileRecorder,
}

impl RunTally {
    pub(crate) fn new(config: &BenchConfig) -> Self {
        Self {
            slo: config.slo,
            stream: config.stream,
            record: config.record,
            calls: CallTotals::default(),
            ended: (0, 0),
            errors: BTreeMap::new(),
            times: TallyTimes::default(),
            tokens: TokenSums::default(),
            window: InWindow::default(),
            good: GoodCalls::default(),
            waited: 0,
            series: Vec::new(),
            last_due: Duration::ZERO,
            last_end: Duration::ZERO,
            trace: Vec::new(),
        }
    }

    /// Number of calls that have ended, and number of calls that failed.
    pub(crate) fn ended(&self) -> (u64, u64) {
        self.ended
    }

    pub(crate) fn take(&mut self, event: SessionEvent, window: &MeasureWindow) {
        match event {
            SessionEvent::Ended(record) => self.fold(&record, window),
            SessionEvent::Unsent => add(&mut self.calls.unsent, 1),
            SessionEvent::Abandoned(calls) => {
                add(&mut self.calls.abandoned, u64::try_from(calls).unwrap_or(u64::MAX))
            }
        }
    }

    fn fold(&mut self, record: &CallRecord, window: &MeasureWindow) {
        let heard = &record.heard;
        add(&mut self.ended.0, 1);
        if matches!(heard.ending, CallEnd::Failed(_)) {
            add(&mut self.ended.1, 1);
        }
        self.fold_times(record, window);
        if self.record {
            self.trace.push(traced(record));
        }
        if !record.measured {
            return add(&mut self.calls.warmup, 1);
        }
        add(&mut self.calls.sent, 1);
        self.last_due = self.last_due.max(record.due);
        self.last_end = self.last_end.max(record.sent.saturating_add(heard.end));
        let lag = record.sent.saturating_sub(record.due);
        self.times.lag.record_time(lag);
        self.times.own_lag.record_time(lag.saturating_sub(record.waited));
        add(&mut self.waited, u64::from(!record.waited.is_zero()));
        match &heard.ending {
            CallEnd::Ok => self.fold_answer(record, lag),
            CallEnd::Failed(failure) => self.fold_failure(failure),
            CallEnd::CutOff => add(&mut self.calls.cut_off, 1),
        }
    }

    /// Counts events at the moment when they happened, for measured and warm-up calls.
    fn fold_times(&mut self, record: &CallRecord, window: &MeasureWindow) {
        let (heard, sent) = (&record.heard, record.sent);
        let (begin, end) = (window.begin(), window.end());
        let inside = |at: Duration| begin.is_some_and(|begin| at >= begin) && end.is_none_or(|end| at < end);
        let prompt = heard.usage.map_or(0, |usage| usage.prompt);
        add(&mut self.bin(record.due).second.due, 1);
        add(&mut self.bin(sent).second.sent, 1);
        if let Some(first) = heard.events.first() {
            let at = sent.saturating_add(Duration::from_micros(u64::from(*first)));
            let second = &mut self.bin(at).second;
            add(&mut second.first_tokens, 1);
            add(&mut second.prompt_tokens, prompt);
            add(&mut self.window.prompt_tokens, if inside(at) { prompt } else { 0 });
        }
        let per_event = ratio(output_tokens(heard) as f64, heard.events.len() as f64);
        for event in &heard.events {
            let at = sent.saturating_add(Duration::from_micros(u64::from(*event)));
            self.bin(at).output_tokens += per_event;
            self.window.output_tokens += if inside(at) { per_event } else { 0.0 };
        }
        let over = sent.saturating_add(heard.end);
        let bin = self.bin(over);
        add(&mut bin.ended, 1);
        match heard.ending {
            CallEnd::Ok => add(&mut bin.second.ok, 1),
            CallEnd::Failed(_) => add(&mut bin.second.failed, 1),
            CallEnd::CutOff => {}
        }
        add(&mut self.window.ok, u64::from(heard.ending == CallEnd::Ok && inside(over)));
    }

    fn fold_answer(&mut self, record: &CallRecord, lag: Duration) {
        let heard = &record.heard;
        add(&mut self.calls.ok, 1);
        let output = output_tokens(heard);
        let achieved = if self.stream {
            self.fold_stream(heard, output, lag)
        } else {
            CallFigures { e2e: Some(lag.saturating_add(heard.end)), ..CallFigures::default() }
        };
        self.times.sent_to_end.record_time(heard.end);
        self.times.due_to_end.record_time(lag.saturating_add(heard.end));
        let sums = &mut self.tokens;
        add(&mut sums.output, output);
        sums.per_output.record(output);
        add(&mut sums.asked, u64::from(record.call.output.unwrap_or(0)));
        add(&mut sums.events, u64::try_from(heard.events.len()).unwrap_or(u64::MAX));
        match heard.usage {
            None => add(&mut sums.without_usage, 1),
            Some(usage) => {
                add(&mut sums.prompt, usage.prompt);
                sums.per_prompt.record(usage.prompt);
                if let Some(cached) = usage.cached {
                    add(sums.cached.get_or_insert(0), cached);
                }
                if record.call.messages.is_none() && record.session.is_none() {
                    add(&mut sums.planned.0, u64::from(record.call.tokens));
                    add(&mut sums.planned.1, usage.prompt);
                }
            }
        }
        let broken = self.slo.map(|slo| slo.judge(achieved)).unwrap_or_default();
        let missed = &mut self.good.missed;
        add(&mut missed.ttft, u64::from(broken.ttft));
        add(&mut missed.itl, u64::from(broken.itl));
        add(&mut missed.gap, u64::from(broken.gap));
        add(&mut missed.e2e, u64::from(broken.e2e));
        if !broken.any() {
            add(&mut self.good.calls, 1);
            add(&mut self.good.output_tokens, output);
        }
    }

    /// Records the times that only a stream shows.
    fn fold_stream(&mut self, heard: &HeardCall, output: u64, lag: Duration) -> CallFigures {
        let at = |event: &u32| Duration::from_micros(u64::from(*event));
        let mut longest = None;
        for pair in heard.events.windows(2) {
            if let [before, after] = pair {
                let gap = after.saturating_sub(*before);
                self.times.gaps.record(u64::from(gap));
                longest = longest.max(Some(gap));
            }
        }
        let first = heard.events.first().map(at);
        if let Some(first) = first {
            self.times.sent_to_first.record_time(first);
            self.times.due_to_first.record_time(lag.saturating_add(first));
        }
        let span = first.zip(heard.events.last().map(at)).map(|(first, last)| last.saturating_sub(first));
        // If all tokens arrive in one event, there is no time per token.
        let after_first = output.saturating_sub(1);
        let spread = span.filter(|_| longest.is_some() && after_first > 0);
        let per_token = spread.map(|span| span.div_f64(after_first as f64));
        if let Some(per_token) = per_token {
            self.times.per_token.record_time(per_token);
        }
        CallFigures {
            ttft: first.map(|first| lag.saturating_add(first)),
            itl: per_token,
            gap: longest.map(|gap| Duration::from_micros(u64::from(gap))),
            e2e: Some(lag.saturating_add(heard.end)),
        }
    }

    fn fold_failure(&mut self, failure: &CallFailure) {
        add(&mut self.calls.failed, 1);
        let full = self.errors.len() >= MAX_ERROR_CLASSES && !self.errors.contains_key(&failure.class);
        let class = if full { "others".to_owned() } else { failure.class.clone() };
        let (calls, _) = self.errors.entry(class).or_insert_with(|| (0, failure.message.clone()));
        add(calls, 1);
    }

    fn bin(&mut self, at: Duration) -> &mut SecondBin {
        let second = usize::try_from(at.as_secs()).unwrap_or(usize::MAX).min(MAX_SERIES_SECONDS - 1);
        if self.series.len() <= second {
            self.series.resize(second.saturating_add(1), SecondBin::default());
        }
        // Cannot fail: the series was just made long enough.
        &mut self.series[second]
    }

    /// Computes the report.
    pub(crate) fn report(
        mut self,
        config: &BenchConfig,
        server: ReportedServer,
        gauge: TokenizerGauge,
        run: &RunFacts,
    ) -> BenchReport {
        let begin = run.begin.unwrap_or(run.elapsed);
        // The plan may end before its time does.
        let end = run.end.filter(|end| run.elapsed >= *end);
        let end = end.unwrap_or(if run.cut_short { run.elapsed } else { self.last_end });
        let window_s = end.saturating_sub(begin).as_secs_f64();
        let mut trace = std::mem::take(&mut self.trace);
        trace.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
        let mut report = BenchReport {
            version: REPORT_VERSION,
            program: concat!("headrace-bench ", env!("CARGO_PKG_VERSION")),
            started_unix_ms: config.started_unix_ms,
            server,
            parameters: config.clone(),
            gauge,
            cut_short: run.cut_short,
            elapsed_s: rounded(run.elapsed.as_secs_f64()),
            window_s: rounded(window_s),
            calls: self.calls,
            errors: self.errors(),
            tokens: self.tokens(),
            rates: self.rates(config, begin, run.end, window_s),
            latency: self.latency(),
            goodput: self.slo.map(|slo| self.goodput(slo, window_s)),
            generator: self.generator(config, run),
            remarks: Vec::new(),
            series: self.series(),
            trace,
        };
        report.remarks = remarks(&report, self.tokens.planned);
        report
    }

    fn errors(&self) -> Vec<ErrorClass> {
        let each = self.errors.iter();
        let mut errors: Vec<ErrorClass> = each
            .map(|(class, (calls, example))| ErrorClass {
                class: class.clone(),
                calls: *calls,
                example: example.clone(),
            })
            .collect();
        errors.sort_by_key(|error| std::cmp::Reverse(error.calls));
        errors
    }

    fn tokens(&self) -> TokenTotals {
        let sums = &self.tokens;
        TokenTotals {
            prompt: sums.prompt,
            cached: sums.cached,
            output: sums.output,
            output_asked: sums.asked,
            without_usage: sums.without_usage,
            per_event: rounded(ratio(sums.output as f64, sums.events as f64)),
            prompt_per_call: sums.per_prompt.quantiles(1.0),
            output_per_call: sums.per_output.quantiles(1.0),
        }
    }

    fn rates(&self, config: &BenchConfig, begin: Duration, end: Option<Duration>, window_s: f64) -> RunRates {
        let due = self.calls.sent.saturating_add(self.calls.unsent);
        let due_s = end.unwrap_or(self.last_due).saturating_sub(begin).as_secs_f64();
        let open = !matches!(config.load, LoadShape::Closed { .. });
        RunRates {
            due_per_s: open.then(|| rounded(ratio(due as f64, due_s))),
            requests_per_s: rounded(ratio(self.window.ok as f64, window_s)),
            prompt_tokens_per_s: rounded(ratio(self.window.prompt_tokens as f64, window_s)),
            output_tokens_per_s: rounded(ratio(self.window.output_tokens, window_s)),
        }
    }

    fn latency(&self) -> LatencyReport {
        let times = &self.times;
        let shown = if self.stream { &times.due_to_first } else { &times.due_to_end };
        let since = |first: &QuantileRecorder, end: &QuantileRecorder| LatencySince {
            ttft_ms: first.millis(),
            e2e_ms: end.millis(),
        };
        LatencyReport {
            from_due: since(&times.due_to_first, &times.due_to_end),
            from_sent: since(&times.sent_to_first, &times.sent_to_end),
            send_lag_ms: times.lag.millis(),
            itl_ms: times.gaps.millis(),
            tpot_ms: times.per_token.millis(),
            histogram: histogram(shown),
        }
    }

    fn goodput(&self, slo: Slo, window_s: f64) -> Goodput {
        let calls = &self.calls;
        let offered = calls.ok.saturating_add(calls.failed).saturating_add(calls.unsent);
        let good = self.good.calls;
        Goodput {
            slo,
            offered,
            good,
            share: rounded(ratio(good as f64, offered as f64)),
            requests_per_s: rounded(ratio(good as f64, window_s)),
            output_tokens_per_s: rounded(ratio(self.good.output_tokens as f64, window_s)),
            missed: MissedBounds { failed: calls.failed, unsent: calls.unsent, ..self.good.missed },
        }
    }

    fn generator(&self, config: &BenchConfig, run: &RunFacts) -> GeneratorReport {
        let (own_lag_ms, wake_lag_ms) = (self.times.own_lag.millis(), run.wake_lag.millis());
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        GeneratorReport {
            kept_up: own_lag_ms.p99 <= SMALL_LAG_MS && wake_lag_ms.p99 <= SMALL_LAG_MS,
            in_flight_max: count(run.in_flight_max),
            sent_again: run.sent_again,
            in_flight_limit: count(config.max_in_flight),
            waited_for_place: self.waited,
            own_lag_ms,
            wake_lag_ms,
        }
    }

    fn series(&self) -> Vec<SecondRow> {
        let mut in_flight = 0_u64;
        let each = self.series.iter().zip(0..);
        each.map(|(bin, second)| {
            in_flight = in_flight.saturating_add(bin.second.sent).saturating_sub(bin.ended);
            // A float cast saturates.
            SecondRow { second, in_flight, output_tokens: bin.output_tokens.round() as u64, ..bin.second }
        })
        .collect()
    }
}

/// Answer tokens as the server counted them, or else the number of events.
fn output_tokens(heard: &HeardCall) -> u64 {
    let events = u64::try_from(heard.events.len()).unwrap_or(u64::MAX);
    heard.usage.map_or(events, |usage| usage.output)
}

fn traced(record: &CallRecord) -> TraceCall {
    let (call, heard) = (&record.call, &record.heard);
    let millis = |time: Duration| micros(time) as f64 / 1e3;
    let lag = record.sent.saturating_sub(record.due);
    let counted = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
    let first = heard.events.first().map(|first| Duration::from_micros(u64::from(*first)));
    TraceCall {
        at_ms: millis(record.due),
        prompt_tokens: Some(heard.usage.map_or(call.tokens, |usage| counted(usage.prompt))),
        output_tokens: match heard.ending {
            CallEnd::Ok => Some(counted(output_tokens(heard))),
            CallEnd::Failed(_) | CallEnd::CutOff => call.output,
        },
        session: record.session.map(|session| format!("s{session}")),
        prefix_group: record.prefix.map(|prefix| prefix.group),
        prefix_tokens: record.prefix.map(|prefix| prefix.tokens),
        hash_ids: call.blocks.as_deref().cloned(),
        messages: call.messages.as_deref().cloned(),
        measured: Some(RecordedCall {
            outcome: match &heard.ending {
                CallEnd::Ok => "ok".to_owned(),
                CallEnd::Failed(failure) => failure.class.clone(),
                CallEnd::CutOff => "cut off by the end of the run".to_owned(),
            },
            lag_ms: millis(lag),
            ttft_ms: first.map(|first| millis(lag.saturating_add(first))),
            e2e_ms: millis(lag.saturating_add(heard.end)),
            cached_tokens: heard.usage.and_then(|usage| usage.cached),
        }),
    }
}

/// The buckets from the first to the last one with calls.
fn histogram(times: &QuantileRecorder) -> Vec<LatencyBucket> {
    let edges: Vec<u64> = DECADES.flat_map(|decade| EDGES.map(|edge| edge * 10_u64.pow(decade))).collect();
    let counts = times.between(&edges);
    let full = |count: &u64| *count > 0;
    let first = counts.iter().position(full).unwrap_or(0);
    let last = counts.iter().rposition(full).map_or(0, |last| last.saturating_add(1));
    let each = edges.into_iter().zip(counts).take(last).skip(first);
    each.map(|(edge, calls)| LatencyBucket { up_to_ms: edge as f64 / 1e3, calls }).collect()
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests;
