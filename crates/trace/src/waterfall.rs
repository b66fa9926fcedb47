//! Draws one request for a person who asks why it was slow, refused or expensive. Shows a row per stage on a time axis,
//! then tokens, cache, batch, queue, speed and money. Does not know where the record came from.

use headrace_domain::{Attempt, AttemptOutcome, CallOutcome, ContinuedAnswer, Stage, StageSpan, TraceRecord};

use crate::axis::{AxisPart, TimeAxis};
use crate::engine_facts::{batch_text, kept_text, steps_text};
use crate::group::{SpanGroup, grouped_spans};
use crate::metrics::inter_token_ns;
use crate::misses::miss_words;
use crate::output_verdicts::{judge_lines, output_verdict_lines};
use crate::past;
use crate::price_terms::price_terms;
use crate::rounds::round_lines;
use crate::units::{cells, format_utc, grouped, humane_duration, percent, plain, three_digits, wrapped};

/// Options of a drawing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaterfallOptions {
    /// Columns of the terminal, clamped to 36 to 240.
    pub width: usize,
    /// Whether to write ANSI colours.
    pub color: bool,
}

impl Default for WaterfallOptions {
    fn default() -> Self {
        Self { width: 100, color: false }
    }
}

impl WaterfallOptions {
    pub(crate) fn columns(&self) -> usize {
        // A width below a call's id could show nothing that can be copied.
        self.width.clamp(36, 240)
    }

    pub(crate) fn paint(&self, ink: WaterfallColor, text: &str) -> String {
        if self.color && !text.is_empty() {
            format!("\u{1b}[{}m{text}\u{1b}[0m", ink.code())
        } else {
            text.to_owned()
        }
    }
}

/// Colours from the terminal's own palette, which fit dark and light backgrounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaterfallColor {
    Bold,
    Dim,
    Good,
    Warn,
    Bad,
    Of(SpanGroup),
}

impl WaterfallColor {
    const fn code(self) -> &'static str {
        match self {
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Good => "32",
            Self::Warn => "33",
            Self::Bad => "31",
            Self::Of(SpanGroup::Client) => "33",
            Self::Of(SpanGroup::Gateway) => "36",
            Self::Of(SpanGroup::Engine) => "35",
            Self::Of(SpanGroup::Back) => "34",
        }
    }
}

/// Widths of the columns before the axis: name, start, duration, share and the gap.
const NAME: usize = 14;
const START: usize = 8;
const TOOK: usize = 9;
const SHARE: usize = 7;
const GAP: usize = 2;
/// Below these widths the rows omit the start, and then the share. Their bars show the same.
const WITH_START: usize = 60;
const WITH_SHARE: usize = 48;
/// Indentation of a fact that does not fit beside its label and gets its own line.
const BELOW: usize = 4;
/// Columns before the text of a fact.
const LABEL: usize = 12;

/// The drawing of one record. Each line ends in `\n` and fits the width.
pub fn waterfall(record: &TraceRecord, options: &WaterfallOptions) -> String {
    let mut drawing = WaterfallDrawing { record, options, out: String::new() };
    drawing.title();
    drawing.circumstances();
    drawing.out.push('\n');
    drawing.stages();
    drawing.out.push('\n');
    drawing.figures();
    drawing.ending();
    drawing.out
}

/// The mark, colour and word of an outcome.
pub(crate) fn outcome_word(outcome: &CallOutcome) -> (char, WaterfallColor, &'static str) {
    match outcome {
        CallOutcome::Completed { .. } => ('✓', WaterfallColor::Good, "completed"),
        CallOutcome::Refused(_) => ('✗', WaterfallColor::Bad, "refused"),
        CallOutcome::Cancelled { .. } => ('◌', WaterfallColor::Warn, "cancelled"),
        CallOutcome::Failed { .. } => ('✗', WaterfallColor::Bad, "failed"),
    }
}

struct WaterfallDrawing<'a> {
    record: &'a TraceRecord,
    options: &'a WaterfallOptions,
    out: String,
}

impl WaterfallDrawing<'_> {
    fn title(&mut self) {
        let record = self.record;
        let (mark, ink, word) = outcome_word(&record.outcome);
        let (id, how) = (record.request_id.to_string(), format!("{mark} {word}"));
        let rest = format!("{}  {}", humane_duration(record.duration_ns), record.cost);
        // The id is there to be copied, so a narrow terminal shows it on its own line.
        let fits = cells(&id) + cells(&how) + cells(&rest) + 4 <= self.options.columns();
        let gap = if fits { "  " } else { "\n  " };
        let (id, how) = (self.options.paint(WaterfallColor::Bold, &id), self.options.paint(ink, &how));
        self.line(&format!("{id}{gap}{how}  {rest}"));
    }

    fn circumstances(&mut self) {
        let record = self.record;
        self.fact("when", &format_utc(record.started, "%Y-%m-%d %H:%M:%S%.6f UTC"));
        if let Some(endpoint) = record.endpoint {
            let how = if record.stream { "streamed" } else { "not streamed" };
            self.fact("call", &format!("{} · {how}", endpoint.name()));
        }
        if let Some(model) = model_text(record) {
            self.fact("model", &model);
        }
        if let Some(shadow) = &record.shadow_of {
            self.fact("shadow of", &format!("{}, answered by {}", shadow.call, plain(&shadow.model)));
        }
        record.replay_of.iter().for_each(|first| self.fact("replay of", &format!("{first}: nothing ran")));
        if let Some(job) = &record.worker_job {
            self.fact("worker job", &format!("of {}, a call at another server", job.call));
            return self.trace_ids();
        }
        let caller = [
            ("org", &record.org.as_ref().map(|id| id.as_str())),
            ("project", &record.project.as_ref().map(|id| id.as_str())),
            ("key", &record.key.as_ref().map(|id| id.as_str())),
        ];
        let caller: Vec<String> =
            caller.iter().filter_map(|(kind, id)| id.map(|id| format!("{kind} {id}"))).collect();
        if !caller.is_empty() {
            self.fact("caller", &caller.join(" · "));
        }
        record.token_user.iter().for_each(|user| self.fact("signed in", &plain(&user.to_string())));
        if let Some(user) = &record.user {
            self.fact("user", &plain(user.as_str()));
        }
        if let Some(client) = &record.client {
            self.fact("client", &client.to_string());
        }
        for (name, value) in record.labels.iter().flat_map(|labels| labels.iter()) {
            self.fact("metadata", &format!("{} = {}", plain(name), plain(value)));
        }
        self.trace_ids();
    }

    fn trace_ids(&mut self) {
        let record = self.record;
        if let Some(trace) = &record.trace_id {
            let parent = record.parent_span_id.as_ref().map(|span| format!(" · parent span {}", plain(span)));
            self.fact("trace", &format!("{}{}", plain(trace), parent.unwrap_or_default()));
        }
    }

    fn stages(&mut self) {
        let record = self.record;
        let width = self.options.columns().saturating_sub(self.columns_before());
        let axis = TimeAxis::new(&parts(record, width), width);
        let head = format!("{:NAME$}{}  ", "", self.figures_of("start", "took", "share", |text| text));
        let ruler: String = axis.ruler().into_iter().collect();
        self.line(&self.options.paint(WaterfallColor::Dim, format!("{head}{ruler}").trim_end()));
        let spans = grouped_spans(&record.stages);
        for group in SpanGroup::ALL {
            let own: Vec<&StageSpan> =
                spans.iter().filter(|(of, _)| *of == group).map(|(_, span)| *span).collect();
            if own.is_empty() {
                continue;
            }
            let whole = own.iter().filter(|span| span.inside.is_none());
            let took = whole.fold(0_u64, |sum, span| sum.saturating_add(span.duration_ns));
            self.row(
                StageRow { name: group.name(), ink: WaterfallColor::Bold, start: None, took },
                &axis,
                WaterfallColor::Dim,
                &axis.blank(),
            );
            let mut within = 0;
            for span in own {
                if span.inside.is_none() {
                    within = end_ns(span);
                }
                self.stage(span, within, group, &axis);
            }
        }
    }

    /// Draws the row of a span. A span inside another one is also marked up to `within_ns`, the end of the other span.
    fn stage(&mut self, span: &StageSpan, within_ns: u64, group: SpanGroup, axis: &TimeAxis) {
        let culprit = match &self.record.outcome {
            CallOutcome::Refused(refusal) => Some(refusal.stage),
            CallOutcome::Failed { stage, .. } => Some(*stage),
            _ => None,
        } == Some(span.stage);
        let mut bar = axis.bar(span.start_ns, end_ns(span));
        let (mark, start) = match span.inside {
            Some(_) => {
                axis.run_beside(&mut bar, span.start_ns, within_ns);
                (" ╰", None)
            }
            None => ("  ", Some(span.start_ns)),
        };
        let name = format!("{}{}", if culprit { "✗ " } else { mark }, span.stage.name());
        let (name_ink, bar_ink) = if culprit {
            (WaterfallColor::Bad, WaterfallColor::Bad)
        } else {
            (WaterfallColor::Of(group), WaterfallColor::Of(group))
        };
        let row = StageRow { name: &name, ink: name_ink, start, took: span.duration_ns };
        self.row(row, axis, bar_ink, &bar);
    }

    fn row(&mut self, row: StageRow<'_>, axis: &TimeAxis, bar_ink: WaterfallColor, bar: &[char]) {
        let name = self.options.paint(row.ink, &format!("{:NAME$}", row.name));
        let start = row.start.map(humane_duration).unwrap_or_default();
        let share = percent(row.took, self.record.duration_ns);
        let figures = self.figures_of(&start, &humane_duration(row.took), &share, |text| {
            self.options.paint(WaterfallColor::Dim, &text)
        });
        let bar = self.painted_bar(axis, bar_ink, bar);
        self.line(&format!("{name}{figures}  {bar}"));
    }

    /// Total width of the columns before the axis.
    fn columns_before(&self) -> usize {
        let columns = self.options.columns();
        let start = if columns >= WITH_START { START } else { 0 };
        let share = if columns >= WITH_SHARE { SHARE } else { 0 };
        NAME + start + TOOK + share + GAP
    }

    /// The figures of a row, as many as fit.
    fn figures_of(&self, start: &str, took: &str, share: &str, dim: impl Fn(String) -> String) -> String {
        let columns = self.options.columns();
        let start = if columns >= WITH_START { dim(format!("{start:>START$}")) } else { String::new() };
        let share = if columns >= WITH_SHARE { dim(format!("{share:>SHARE$}")) } else { String::new() };
        format!("{start}{took:>TOOK$}{share}")
    }

    /// The bar in its colour, with the guide marks dimmed.
    fn painted_bar(&self, axis: &TimeAxis, ink: WaterfallColor, bar: &[char]) -> String {
        let guide = axis.blank();
        let mut out = String::new();
        let mut at = 0;
        let pairs: Vec<(char, bool)> = bar
            .iter()
            .enumerate()
            .map(|(i, c)| (*c, guide.get(i) == Some(c) || *c == crate::axis::BESIDE))
            .collect();
        for run in pairs.chunk_by(|a, b| a.1 == b.1) {
            at += run.len();
            let text: String = run.iter().map(|(c, _)| c).collect();
            let text = if at == pairs.len() { text.trim_end().to_owned() } else { text };
            let dim = run.first().is_some_and(|(_, dim)| *dim);
            out.push_str(&if text.trim().is_empty() {
                text
            } else {
                self.options.paint(if dim { WaterfallColor::Dim } else { ink }, &text)
            });
        }
        out
    }

    fn figures(&mut self) {
        let record = self.record;
        if record.usage.total() > 0 {
            self.fact("tokens", &tokens_text(record));
        }
        self.attempts();
        self.rounds();
        if let Some(upstream) = &record.upstream {
            let model = record
                .upstream_model
                .as_deref()
                .map_or_else(String::new, |model| format!(" · {}", plain(model)));
            let why = record.why_estimated.as_deref().map_or_else(String::new, |why| format!(" ({why})"));
            self.fact(
                "upstream",
                &format!("{}{model} · tokens {}{why}", plain(upstream), record.usage_source.name()),
            );
            for note in &record.answer_notes {
                self.fact("note", &plain(note));
            }
        }
        if let Some(engine) = &record.engine {
            let why = engine.miss.map(|miss| miss_words(&miss));
            if engine.prompt_blocks > 0 {
                let (hit, all) = (engine.cached_blocks, engine.prompt_blocks);
                let found =
                    format!("{hit} of {all} prompt blocks found ({})", percent(hit.into(), all.into()));
                let why = why.map(|why| format!(" · {why}")).unwrap_or_default();
                self.fact("cache", &format!("{found}{why}"));
            } else if let Some(why) = why {
                self.fact("cache", &why);
            }
            if let Some(kept) = kept_text(engine) {
                self.fact("kept", &kept);
            }
            for (name, text) in past::facts(record) {
                self.fact(name, &text);
            }
            self.fact(
                "queue",
                &format!("{} ahead · waited {}", engine.queue_depth, humane_duration(engine.queue_ns)),
            );
            self.fact("batch", &batch_text(engine));
            if let Some(text) = steps_text(engine) {
                self.fact("steps", &text);
            }
        }
        if let Some(speed) = speed_text(record) {
            self.fact("speed", &speed);
        }
        if record.held.get() != 0 || record.cost.get() != 0 || record.loss.get() != 0 {
            let lost = format!(" · {} to the loss account", record.loss);
            let lost = if record.loss.get() == 0 { "" } else { &lost };
            let tier = price_terms(record);
            self.fact("money", &format!("{} charged of {} held{lost}{tier}", record.cost, record.held));
        }
        if let Some(paid) = record.paid {
            self.fact("paid", &format!("{paid} to others"));
        }
        if record.after_ns > 0 {
            let took = humane_duration(record.after_ns);
            self.fact("after", &format!("{took} more to find the place of the miss, after the call"));
        }
        if let Some(moderation) = &record.moderation {
            self.fact("moderated", &plain(moderation));
        }
        output_verdict_lines(record).for_each(|line| self.fact("answer", &line));
        judge_lines(record).for_each(|line| self.fact("judge", &line));
    }

    /// Lists the attempts, if a prompt had several or an attempt failed, and the continued answers.
    fn attempts(&mut self) {
        let attempts = &self.record.attempts;
        let again = |one: &Attempt| attempts.iter().any(|other| one.prompt == other.prompt && one != other);
        let in_vain = |one: &Attempt| {
            matches!(one.outcome, AttemptOutcome::Refused { .. } | AttemptOutcome::Failed { .. })
        };
        if !attempts.iter().any(|one| again(one) || in_vain(one)) {
            return;
        }
        let several = attempts.iter().any(|attempt| attempt.prompt > 0);
        for (at, attempt) in attempts.iter().enumerate() {
            self.fact(if at == 0 { "workers" } else { "" }, &attempt_text(attempt, several));
        }
        for (at, continued) in self.record.continued.iter().enumerate() {
            let ContinuedAnswer { choice, after_tokens, worker } = continued;
            let worker = plain(worker);
            let text = format!(
                "choice {choice} after {} tokens, in its own way, by {worker}",
                grouped(*after_tokens)
            );
            self.fact(if at == 0 { "continued" } else { "" }, &text);
        }
    }

    /// Lists the rounds, if there were several.
    fn rounds(&mut self) {
        for (at, line) in round_lines(self.record).iter().enumerate() {
            self.fact(if at == 0 { "rounds" } else { "" }, line);
        }
    }

    fn ending(&mut self) {
        match &self.record.outcome {
            CallOutcome::Completed { finish } => {
                let reasons: Vec<String> = finish.iter().map(|reason| plain(reason)).collect();
                self.fact("finish", &reasons.join(", "));
            }
            CallOutcome::Cancelled { why } => self.fact("cancelled", &plain(why)),
            CallOutcome::Failed { stage, message } => {
                let failure = self.record.failure();
                let error = failure.map(|of| format!(" · HTTP {} {}", of.status, plain(&of.code)));
                self.fact("failed", &format!("at {stage}{}", error.unwrap_or_default()));
                self.fact("", &plain(message));
            }
            CallOutcome::Refused(refusal) => {
                let (stage, rule) = (refusal.stage, plain(&refusal.rule));
                self.fact(
                    "refused",
                    &format!("at {stage} by {rule} · HTTP {} {}", refusal.status, plain(&refusal.code)),
                );
                self.fact("", &plain(&refusal.message));
            }
        }
    }

    /// A label and its text, wrapped at spaces and indented below the label.
    fn fact(&mut self, label: &str, text: &str) {
        let mut label = self.options.paint(WaterfallColor::Dim, &format!("  {label:<0$}", LABEL - 2));
        let room = self.options.columns() - LABEL;
        // A cut id could not be copied. If it does not fit beside the label, it goes below the label.
        if text.split(' ').any(|word| cells(word) > room) {
            self.line(&label);
            for line in wrapped(text, self.options.columns() - BELOW) {
                self.line(&format!("{:BELOW$}{line}", ""));
            }
            return;
        }
        for line in wrapped(text, room) {
            self.line(&format!("{label}{line}"));
            label = " ".repeat(LABEL);
        }
    }

    fn line(&mut self, line: &str) {
        self.out.push_str(line.trim_end());
        self.out.push('\n');
    }
}

/// One line of the stage table, without its bar.
struct StageRow<'a> {
    name: &'a str,
    ink: WaterfallColor,
    start: Option<u64>,
    took: u64,
}

fn model_text(record: &TraceRecord) -> Option<String> {
    let asked = record.model_asked.as_deref().map(plain);
    let served = record.model_served.as_deref().map(plain);
    let name = match (asked, served) {
        (Some(asked), Some(served)) if asked != served => format!("{served} (asked for as {asked})"),
        (_, Some(name)) | (Some(name), None) => name,
        (None, None) => return None,
    };
    Some(match &record.numerics {
        Some(numerics) => format!("{name} · {}", plain(numerics)),
        None => name,
    })
}

fn tokens_text(record: &TraceRecord) -> String {
    let usage = &record.usage;
    let mut parts = vec![format!("{} computed", grouped(usage.input))];
    for (count, word) in [
        (usage.cached_input, "cached"),
        (usage.cache_write, "written to cache"),
        (usage.cache_write_1h, "written to cache for an hour"),
    ] {
        if count > 0 {
            parts.push(format!("{} {word}", grouped(count)));
        }
    }
    let prompt = grouped(usage.prompt_tokens());
    let mut text = format!("{prompt} prompt");
    if usage.input < usage.prompt_tokens() {
        text.push_str(&format!(" ({})", parts.join(" + ")));
    }
    text.push_str(&format!(" · {} generated", grouped(usage.completion_tokens())));
    if usage.reasoning > 0 {
        text.push_str(&format!(" ({} of them reasoning)", grouped(usage.reasoning)));
    }
    text
}

/// `b@eu answered after 1.20 s`, with the prompt's number if there are several.
fn attempt_text(attempt: &Attempt, several: bool) -> String {
    let prompt = if several { format!("prompt {}: ", attempt.prompt) } else { String::new() };
    let (worker, took) = (plain(&attempt.worker), humane_duration(attempt.duration_ns));
    let outcome = match &attempt.outcome {
        AttemptOutcome::Answered => format!("answered after {took}"),
        AttemptOutcome::Refused { why, .. } => format!("refused after {took}: {}", plain(why)),
        AttemptOutcome::Failed { why, .. } => format!("failed after {took}: {}", plain(why)),
        AttemptOutcome::Outrun => format!("was outrun after {took}"),
        AttemptOutcome::CutShort => format!("was at work for {took}, until the call ended"),
    };
    let model = attempt.model.as_deref().map(|model| format!(" ({})", plain(model))).unwrap_or_default();
    let paid = attempt.paid.map(|paid| format!(" · {paid} paid")).unwrap_or_default();
    format!("{prompt}{worker}{model} {outcome}{paid}")
}

fn speed_text(record: &TraceRecord) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(nanos) = record.time_to_first_token_ns() {
        let upload = record.first_token_ns.unwrap_or(nanos).saturating_sub(nanos);
        let upload = match upload > nanos / 10 {
            true => format!(" ({} with the upload)", humane_duration(upload.saturating_add(nanos))),
            false => String::new(),
        };
        parts.push(format!("first token after {}{upload}", humane_duration(nanos)));
    }
    if let Some(gap) = inter_token_ns(record).filter(|gap| *gap > 0) {
        parts.push(format!("{} tokens/s", three_digits(1e9 / gap as f64)));
        parts.push(format!("{} between tokens", humane_duration(gap)));
    }
    (!parts.is_empty()).then(|| parts.join(" · "))
}

fn end_ns(span: &StageSpan) -> u64 {
    span.start_ns.saturating_add(span.duration_ns)
}

/// The parts that must stay visible beside the longest part: the upload, the rest of the gateway, the engine, the way
/// back.
fn parts(record: &TraceRecord, width: usize) -> [AxisPart; 4] {
    let spans = grouped_spans(&record.stages);
    let end_of = |group: SpanGroup| {
        spans.iter().filter(|(of, _)| *of == group).map(|(_, span)| end_ns(span)).max().unwrap_or(0)
    };
    let total = record.duration_ns;
    let (gateway, engine) = (end_of(SpanGroup::Gateway), end_of(SpanGroup::Engine));
    let upload = record.span(Stage::Receive).or_else(|| record.span(Stage::Connect)).map_or(0, end_ns);
    // A slow upload would compress what follows it. A quick one stays on the gateway's scale.
    let upload = if upload > gateway / 2 && upload < gateway { upload } else { 0 };
    let gateway_least = if engine == 0 { 0.25 } else { 0.35 };
    // At least eight cells, so that the length can be written there. Zero if the way back was not reached.
    let back_least = if end_of(SpanGroup::Back) == 0 { 0.0 } else { (8.0 / width as f64).max(0.1) };
    let (gateway, engine) = match (back_least > 0.0, engine) {
        (true, engine) => (gateway, engine),
        (false, 0) => (total, 0),
        (false, _) => (gateway, total),
    };
    [
        AxisPart { end_ns: upload, least: 0.15 },
        AxisPart { end_ns: gateway, least: gateway_least },
        AxisPart { end_ns: engine, least: 0.3 },
        AxisPart { end_ns: total, least: back_least },
    ]
}
