//! How a call's time was spent, as a partition: every nanosecond from its first byte to its end belongs to exactly one
//! span. Work that ran during a span is recorded as a share of it. Must not know a clock, an engine or how spans are
//! displayed.

use crate::stage::{Stage, StageSpan};

/// Builds the spans of one call. Times are nanoseconds from the call's first byte.
///
/// The spans follow each other without overlap or gap for any input, even for times that contradict each other.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// Ordered by time. Each span is followed by its shares.
    spans: Vec<StageSpan>,
    end_ns: u64,
}

/// One job of a call in an engine. The gateway's clock gives the time of submission, the engine's own clock the
/// durations that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineRun {
    /// When the job was submitted, in nanoseconds from the call's first byte.
    pub submitted_ns: u64,
    /// Nanoseconds from submission to the first step that computed any of the job.
    pub queue_ns: u64,
    /// Nanoseconds from that step to the first token.
    pub prefill_ns: u64,
    /// Nanoseconds from the first token to the last.
    pub decode_ns: u64,
    /// The part of `decode_ns` for which the job was paused because its output was not read.
    pub paused_ns: u64,
}

/// What the call's task observed while the engine worked.
#[derive(Debug, Clone, Copy)]
pub struct EngineSeen<'a> {
    /// When the task took the first token, if there was one.
    pub first_token_ns: Option<u64>,
    /// When the task had taken the engine's last event.
    pub until_ns: u64,
    /// When the task took no events because its reader was not reading.
    pub pauses: &'a ReaderPauses,
}

impl Timeline {
    /// Creates a timeline in which no time has passed.
    pub fn new() -> Self {
        Self { spans: Vec::with_capacity(Stage::ALL.len()), end_ns: 0 }
    }

    /// Returns the end of the last span.
    pub const fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// Ends `stage` at `now_ns`. It began when the previous span ended.
    pub fn mark(&mut self, stage: Stage, now_ns: u64) {
        let start_ns = self.end_ns;
        self.end_ns = start_ns.max(now_ns);
        let duration_ns = self.end_ns - start_ns;
        let last = self.spans.iter_mut().rfind(|span| span.inside.is_none());
        match last.filter(|last| last.stage == stage) {
            Some(last) => last.duration_ns += duration_ns,
            None => self.spans.push(StageSpan { stage, start_ns, duration_ns, inside: None }),
        }
    }

    /// Like [`Timeline::mark`], but adds no span if no time has passed.
    fn mark_if_any(&mut self, stage: Stage, now_ns: u64) {
        if now_ns > self.end_ns {
            self.mark(stage, now_ns);
        }
    }

    /// Adds the engine's spans, from here to the moment when the task had taken the engine's last event. `queue` lasts
    /// until the first of the call's jobs began, `prefill` until the first token. `decode` lasts until the last token
    /// of all jobs, without the time for which every job was paused for the reader. That paused time is `reader`. After
    /// the last token, the time that the task waited for its reader is `reader` as well, and the rest is `handover`.
    ///
    /// The task's own marks come from one clock, so they bound the engine's reports: no event is later than the task
    /// saw it.
    pub fn engine(&mut self, runs: impl Iterator<Item = EngineRun> + Clone, seen: &EngineSeen<'_>) {
        let from = self.end_ns;
        let until = seen.until_ns.max(from);
        let first_seen = seen.first_token_ns.unwrap_or(until).clamp(from, until);
        let begun = |run: EngineRun| run.submitted_ns.saturating_add(run.queue_ns);
        let first = |run: EngineRun| begun(run).saturating_add(run.prefill_ns);
        let last = |run: EngineRun| first(run).saturating_add(run.decode_ns);
        let (mut last_ns, mut paused) = (from, 0);
        if let Some(begun) = runs.clone().map(begun).min() {
            let begun = begun.clamp(from, first_seen);
            let first = runs.clone().map(first).min().unwrap_or(begun).clamp(begun, first_seen);
            last_ns = runs.clone().map(last).max().unwrap_or(first).clamp(first, until);
            paused = runs.map(|run| run.paused_ns).min().unwrap_or(0).min(last_ns - first);
            let ends = [(Stage::Queue, begun), (Stage::Prefill, first), (Stage::Decode, last_ns - paused)];
            for (stage, end) in ends {
                if stage == Stage::Queue || seen.first_token_ns.is_some() || end > self.end_ns {
                    self.mark(stage, end);
                }
            }
        }
        let beside = seen.pauses.within(from, last_ns).saturating_sub(paused);
        self.share(Stage::Reader, Stage::Decode, beside);
        let waited = paused.saturating_add(seen.pauses.within(last_ns, until));
        self.mark_if_any(Stage::Reader, self.end_ns.saturating_add(waited));
        self.mark_if_any(Stage::Handover, until);
    }

    /// Adds an upstream's spans, from here to the moment when the task had taken the last event: `upstream` until the
    /// first token, then `decode`. Time that the task waited for its reader becomes a share of `decode`.
    pub fn upstream(&mut self, seen: &EngineSeen<'_>) {
        let from = self.end_ns;
        let until = seen.until_ns.max(from);
        let first = seen.first_token_ns.map_or(until, |first| first.clamp(from, until));
        self.mark(Stage::Upstream, first);
        if seen.first_token_ns.is_some() {
            self.mark(Stage::Decode, until);
        }
        self.share(Stage::Reader, Stage::Decode, seen.pauses.within(from, until));
    }

    /// Records that `duration_ns` were spent on `stage` inside the last span of the stage `inside`. Returns the part
    /// that does not fit into that span beside its existing shares.
    pub fn share(&mut self, stage: Stage, inside: Stage, duration_ns: u64) -> u64 {
        let is_whole = |span: &StageSpan| span.stage == inside && span.inside.is_none();
        let Some(at) = self.spans.iter().rposition(is_whole) else { return duration_ns };
        let Some((whole, behind)) = self.spans.get(at..).and_then(<[_]>::split_first) else {
            return duration_ns;
        };
        let shares = behind.iter().take_while(|span| span.inside.is_some());
        let (count, taken) =
            shares.fold((0, 0_u64), |(count, sum), share| (count + 1, sum.saturating_add(share.duration_ns)));
        let fits = duration_ns.min(whole.duration_ns.saturating_sub(taken));
        if fits > 0 {
            let share =
                StageSpan { stage, start_ns: whole.start_ns, duration_ns: fits, inside: Some(inside) };
            self.spans.insert(at + 1 + count, share);
        }
        duration_ns - fits
    }

    /// Returns the spans ordered by time, each followed by its shares.
    pub fn spans(&self) -> &[StageSpan] {
        &self.spans
    }

    /// Returns the spans, as [`Timeline::spans`] does, and consumes the timeline.
    pub fn into_spans(self) -> Vec<StageSpan> {
        self.spans
    }

    /// Repairs spans that may overlap, leave gaps or outlast the call. Each span ends where the next one begins, and
    /// all of them end with the call.
    pub fn from_overlapping(spans: &[StageSpan], duration_ns: u64) -> Self {
        let mut line = Self::new();
        let is_share = |span: &&StageSpan| {
            span.inside.is_some() || matches!(span.stage, Stage::Postprocess | Stage::Deliver)
        };
        let mut steps: Vec<&StageSpan> = spans.iter().filter(|span| !is_share(span)).collect();
        steps.sort_by_key(|span| span.start_ns);
        for (at, span) in steps.iter().enumerate() {
            let next = steps.get(at + 1).map_or(duration_ns, |next| next.start_ns.min(duration_ns));
            line.mark_if_any(Stage::Handover, span.start_ns.min(next));
            line.mark(span.stage, span.start_ns.saturating_add(span.duration_ns).min(next));
        }
        line.mark_if_any(Stage::Handover, duration_ns);
        for span in spans.iter().filter(is_share) {
            line.share(span.stage, span.inside.unwrap_or(Stage::Decode), span.duration_ns);
        }
        line
    }
}

/// Returns whether spans partition a call's time: they follow each other from its first byte to its end, and no span
/// has more shares than its own length.
pub fn is_partition(spans: &[StageSpan], duration_ns: u64) -> bool {
    let mut end_ns = 0;
    let (mut last, mut room) = (None, 0);
    for span in spans {
        match span.inside {
            None if span.start_ns != end_ns => return false,
            None => {
                end_ns = end_ns.saturating_add(span.duration_ns);
                (last, room) = (Some(span.stage), span.duration_ns);
            }
            Some(stage) if Some(stage) != last || span.duration_ns > room => return false,
            Some(_) => room -= span.duration_ns,
        }
    }
    end_ns == duration_ns
}

/// Maximum number of pauses that are kept apart. Beyond it, neighbouring pauses are joined.
const PAUSES_KEPT: usize = 16;

/// The times at which a task was paused because its reader was not reading. Bounded: if there are too many pauses, the
/// two nearest ones are joined, and the gap between them counts as paused.
#[derive(Debug, Clone, Default)]
pub struct ReaderPauses {
    /// Ascending and disjoint.
    kept: Vec<(u64, u64)>,
    since_ns: Option<u64>,
}

impl ReaderPauses {
    /// Returns whether the task is paused now.
    pub const fn is_paused(&self) -> bool {
        self.since_ns.is_some()
    }

    /// Records that the task is paused from `now_ns` on, or continues at `now_ns`. Repeating the current state changes
    /// nothing.
    pub fn set(&mut self, paused: bool, now_ns: u64) {
        match (paused, self.since_ns) {
            (true, None) => self.since_ns = Some(now_ns),
            (false, Some(since)) => {
                self.since_ns = None;
                self.keep(since, now_ns);
            }
            _ => {}
        }
    }

    fn keep(&mut self, from: u64, to: u64) {
        let from = from.max(self.kept.last().map_or(0, |last| last.1));
        if to <= from {
            return;
        }
        self.kept.push((from, to));
        if self.kept.len() > PAUSES_KEPT {
            let gap = |at: &usize| match (self.kept.get(*at), self.kept.get(*at + 1)) {
                (Some(a), Some(b)) => b.0.saturating_sub(a.1),
                _ => u64::MAX,
            };
            let nearest = (0..PAUSES_KEPT).min_by_key(gap).unwrap_or(0);
            let (_, to) = self.kept.remove(nearest + 1);
            if let Some(joined) = self.kept.get_mut(nearest) {
                joined.1 = to;
            }
        }
    }

    /// Returns the paused nanoseconds between two times.
    fn within(&self, from: u64, to: u64) -> u64 {
        let now = self.since_ns.map(|since| (since, u64::MAX));
        let of = |pause: &(u64, u64)| pause.1.min(to).saturating_sub(pause.0.max(from));
        self.kept.iter().chain(&now).map(of).fold(0, u64::saturating_add).min(to.saturating_sub(from))
    }
}

#[cfg(test)]
mod tests;
