//! Remarks that a reader of the figures must know before trusting them. Knows only the report.

use crate::units::ratio;
use crate::{BenchReport, ConversationTurns, LoadShape};

/// With fewer calls than this, the 99th percentile is not meaningful.
const FEW_CALLS: u64 = 100;
/// A relative deviation of a length above this gets a remark.
const OFF: f64 = 0.05;

/// The remarks on a report, most important first. `planned` has the tokens of generated prompts, as planned and as
/// counted.
pub(crate) fn remarks(report: &BenchReport, planned: (u64, u64)) -> Vec<String> {
    let mut said = Remarks(Vec::new());
    said.of_run(report);
    said.of_events(report);
    said.of_lengths(report, planned);
    said.when((1..FEW_CALLS).contains(&report.calls.ok), || {
        format!("p99 of {} calls says little more than the greatest of them", report.calls.ok)
    });
    said.0
}

struct Remarks(Vec<String>);

impl Remarks {
    fn when(&mut self, it_is_so: bool, text: impl FnOnce() -> String) {
        if it_is_so {
            self.0.push(text());
        }
    }

    /// Whether the figures describe the server at all.
    fn of_run(&mut self, report: &BenchReport) {
        let (calls, generator) = (&report.calls, &report.generator);
        self.when(report.cut_short, || match calls.cut_off {
            0 => "the run was cut short".to_owned(),
            cut => {
                format!("the run was cut short: {cut} calls in flight were given up and are in no percentile")
            }
        });
        self.when(calls.sent > 0 && calls.ok == 0, || {
            "no call was answered: there are no latencies".to_owned()
        });
        self.when(!generator.kept_up, || {
        format!(
            "the generator could not keep up: at p99 it sent {:.1} ms late and woke {:.1} ms late; the figures contain that. \
             Give it processor time of its own, or run it on another machine",
            generator.own_lag_ms.p99, generator.wake_lag_ms.p99
        )
    });
        self.when(generator.waited_for_place > 0, || {
        format!(
            "{} calls waited for one of {} places in flight (--max-in-flight); latencies from due contain the wait",
            generator.waited_for_place, generator.in_flight_limit
        )
    });
        self.when(generator.sent_again > 0, || {
        format!(
            "{} calls were sent once more on another connection: the server closed theirs before it answered",
            generator.sent_again
        )
    });
        self.when(calls.unsent > 0, || {
        format!(
            "{} calls were due and never sent: {} were in flight already (--max-in-flight). Latencies lack them",
            calls.unsent, generator.in_flight_limit
        )
    });
    }

    /// Differences between events and tokens.
    fn of_events(&mut self, report: &BenchReport) {
        let (tokens, streamed) = (&report.tokens, report.parameters.stream);
        self.when(report.gauge.source == "assumed" && tokens.prompt > 0, || {
            "the server reports no usage for a probe: the length of prompts is a guess (--tokens-per-word)"
                .to_owned()
        });
        self.when(tokens.without_usage > 0, || {
            format!(
                "{} answers came without usage: their tokens are counted as events, their prompts not at all",
                tokens.without_usage
            )
        });
        self.when(streamed && tokens.per_event > 1.0 + OFF, || {
        format!(
            "the server sends {:.2} tokens per event: the time between events is not that between tokens (TPOT is)",
            tokens.per_event
        )
    });
        let (gap, pace) = (report.latency.itl_ms.p50, report.latency.tpot_ms.p50);
        self.when(streamed && tokens.per_event <= 1.0 + OFF && gap < pace / 4.0, || {
        format!(
            "events come in bunches: half of the gaps are below {gap:.2} ms while a token takes {pace:.2} ms. The server \
             sends several at once, or this machine is too busy to read them one by one; TPOT is the better figure"
        )
    });
    }

    /// Whether the calls had the planned lengths.
    fn of_lengths(&mut self, report: &BenchReport, planned: (u64, u64)) {
        let tokens = &report.tokens;
        self.when(
        ratio(tokens.output as f64, tokens.output_asked as f64) < 1.0 - OFF && tokens.output_asked > 0,
        || {
            let way = match report.parameters.ignore_eos {
                true => "in spite of --ignore-eos, which the server seems not to know",
                false => {
                    "as the model ended them; --ignore-eos keeps the planned length where the server knows it"
                }
            };
            let part = 100.0 * ratio(tokens.output as f64, tokens.output_asked as f64);
            format!("answers have {part:.0} % of the planned length, {way}")
        },
    );
        let off = ratio(planned.1 as f64, planned.0 as f64);
        self.when(planned.1 > 0 && (off - 1.0).abs() > OFF, || {
            format!(
                "prompts have {:.0} % of the planned length as the server counts them (--tokens-per-word)",
                100.0 * off
            )
        });
        let cached = ratio(tokens.cached.unwrap_or(0) as f64, tokens.prompt as f64);
        self.when(nothing_shared(report) && cached > 0.25, || {
        format!(
            "{:.0} % of the prompts was cached though they share nothing: the same words were sent before (--text-seed)",
            100.0 * cached
        )
    });
    }
}

/// Returns `true` if no two prompts share a prefix by plan.
fn nothing_shared(report: &BenchReport) -> bool {
    let shape = &report.parameters.shape;
    shape.prefix.is_none()
        && shape.turns == ConversationTurns::Single
        && !matches!(report.parameters.load, LoadShape::Replay { .. })
}
