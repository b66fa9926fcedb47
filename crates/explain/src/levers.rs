//! Levers: what would have helped a call, and the saving. Savings are forecast from the call's own record and from
//! those of other calls. Must not know how a forecast is tested.

use std::fmt;

use headrace_domain::{
    BLOCK_TOKENS, BilledLine, CallOutcome, MissReason, NanoDollars, Rounding, TokenClass, TraceRecord,
};
use headrace_trace::{grouped, humane_duration, percent, plain};
use serde::{Serialize, Serializer};

use crate::cut::Cut;
use crate::shape::CallShape;
use crate::term::TermName;
use crate::usual::Usual;
use crate::words::count;

/// A saving below this part of the call is not mentioned, in per mille.
const LEAST_PERMILLE: u64 = 20;
/// Prompts and answers with fewer tokens get no advice to be shorter.
const LEAST_TOKENS: u64 = 16;

/// A change that could make a call faster or cheaper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeverName {
    /// Drop half of the computed prompt.
    ShorterPrompt,
    /// Send the same prompt with its blocks in the prefix cache.
    CachedPrefix,
    /// Generate half of the answer.
    FewerTokens,
    /// Stream the answer.
    Stream,
    /// Use the fastest other model served here.
    SmallerModel,
    /// Use a client that is nearer, or sends and reads faster.
    Nearer,
    /// Keep the connection open.
    KeepConnection,
    /// Avoid failed attempts.
    FewerRetries,
    /// Have no work of the same organisation ahead in the queue.
    FewerAtOnce,
}

impl LeverName {
    /// Every lever.
    pub const ALL: [Self; 9] = [
        Self::ShorterPrompt,
        Self::CachedPrefix,
        Self::FewerTokens,
        Self::Stream,
        Self::SmallerModel,
        Self::Nearer,
        Self::KeepConnection,
        Self::FewerRetries,
        Self::FewerAtOnce,
    ];

    /// The name in commands and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ShorterPrompt => "shorter-prompt",
            Self::CachedPrefix => "cached-prefix",
            Self::FewerTokens => "fewer-tokens",
            Self::Stream => "stream",
            Self::SmallerModel => "smaller-model",
            Self::Nearer => "nearer",
            Self::KeepConnection => "keep-connection",
            Self::FewerRetries => "fewer-retries",
            Self::FewerAtOnce => "fewer-at-once",
        }
    }

    /// The lever with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|lever| lever.name() == name)
    }

    /// Whether it can be tested on an engine.
    pub const fn can_be_tried(self) -> bool {
        matches!(self, Self::ShorterPrompt | Self::CachedPrefix | Self::FewerTokens | Self::Stream)
    }
}

impl fmt::Display for LeverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for LeverName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A lever, with the saving that it would have had.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lever {
    /// The lever's name.
    pub name: LeverName,
    /// A description.
    pub text: String,
    /// Microseconds saved.
    pub saves_us: f64,
    /// What is saved: part of the `total`, of the time until the `first_words` could be read, or of the time `before`
    /// the call began.
    pub saves_of: &'static str,
    /// Nano-dollars saved, as a string. `None` if no prices are known, or nothing would be saved.
    pub saves_nano_dollars: Option<String>,
    /// Dollars saved.
    pub saves_dollars: Option<String>,
    /// Whether `--try` can rerun it.
    #[serde(rename = "try")]
    pub can_be_tried: bool,
}

/// Every lever with a saving worth mentioning, the largest first.
pub(crate) fn levers(record: &TraceRecord, cut: &Cut, usual: &Usual) -> Vec<Lever> {
    let call = Call { record, cut, shape: CallShape::of(record) };
    let found = [
        call.shorter_prompt(),
        call.cached_prefix(),
        call.fewer_tokens(),
        call.stream(),
        call.smaller_model(usual),
        call.nearer(),
        call.keep_connection(),
        call.fewer_retries(),
        call.fewer_at_once(),
    ];
    let least = record.duration_ns / 1000 * LEAST_PERMILLE;
    let mut levers: Vec<(u64, i64, Lever)> = found
        .into_iter()
        .flatten()
        .filter(|saving| saving.nanos >= least.max(1) || saving.is_worth_its_money(record.cost))
        .map(|saving| (saving.nanos, saving.money.map_or(0, NanoDollars::get), saving.into_lever()))
        .collect();
    levers.sort_by(|a, b| (b.0, b.1, a.2.name).cmp(&(a.0, a.1, b.2.name)));
    levers.into_iter().map(|(_, _, lever)| lever).collect()
}

struct Call<'a> {
    record: &'a TraceRecord,
    cut: &'a Cut,
    shape: CallShape,
}

struct Saving {
    name: LeverName,
    text: String,
    nanos: u64,
    of: &'static str,
    money: Option<NanoDollars>,
}

impl Saving {
    fn new(name: LeverName, nanos: u64, money: Option<NanoDollars>, text: String) -> Self {
        Self { name, text, nanos, of: "total", money }
    }

    /// Whether it saves at least [`LEAST_PERMILLE`] of the call's price.
    fn is_worth_its_money(&self, cost: NanoDollars) -> bool {
        let least = cost.get() / 1000 * LEAST_PERMILLE as i64;
        self.money.is_some_and(|money| money.get() > 0 && money.get() >= least)
    }

    fn into_lever(self) -> Lever {
        let Self { name, text, nanos, of, money } = self;
        let money = money.filter(|money| money.get() > 0);
        Lever {
            name,
            text,
            saves_us: nanos as f64 / 1e3,
            saves_of: of,
            saves_nano_dollars: money.map(|money| money.get().to_string()),
            saves_dollars: money.map(crate::cost::dollars),
            can_be_tried: name.can_be_tried(),
        }
    }
}

impl Call<'_> {
    fn nanos(&self, terms: &[TermName]) -> u64 {
        terms.iter().filter_map(|term| self.cut.get(term)).fold(0, |sum, nanos| sum.saturating_add(*nanos))
    }

    fn line(&self, class: TokenClass) -> Option<&BilledLine> {
        self.record.billed.as_ref()?.lines.iter().find(|line| line.class == class)
    }

    /// The price of at most `tokens` charged tokens of a class.
    fn money(&self, class: TokenClass, tokens: u64) -> Option<NanoDollars> {
        let line = self.line(class)?;
        line.price.cost(tokens.min(line.tokens), Rounding::Nearest).ok()
    }

    fn shorter_prompt(&self) -> Option<Saving> {
        let less = self.shape.computed_tokens / 2;
        if less < LEAST_TOKENS {
            return None;
        }
        // Waiting for another server's first output includes its queue, so half of it is the most that a prompt can
        // save.
        let nanos = self.nanos(&[TermName::Prefill, TermName::Render, TermName::Upstream]) / 2;
        let text = format!(
            "Half of the {} that were computed, left out",
            count(self.shape.computed_tokens, "prompt token")
        );
        Some(Saving::new(LeverName::ShorterPrompt, nanos, self.money(TokenClass::Input, less), text))
    }

    /// Counts the missed blocks as hits. Only whole blocks can hit, and the last token is always computed.
    fn cached_prefix(&self) -> Option<Saving> {
        let engine = self.record.engine.as_ref()?;
        let miss = engine.miss.as_ref()?;
        let missed = u64::from(engine.prompt_blocks.saturating_sub(engine.cached_blocks));
        let tokens = (missed * BLOCK_TOKENS as u64).min(self.shape.computed_tokens.saturating_sub(1));
        let can_be =
            !matches!(miss.reason, MissReason::BelowBlock | MissReason::Disabled | MissReason::Bypassed);
        if !can_be || tokens < LEAST_TOKENS {
            return None;
        }
        let part = |nanos: u64| {
            let whole = u128::from(self.shape.computed_tokens.max(1));
            u64::try_from(u128::from(nanos) * u128::from(tokens) / whole).unwrap_or(nanos)
        };
        let money = self.record.billed.as_ref().and_then(|billed| {
            let [computed, cached] = billed.prompt_prices?;
            let cost = |price: headrace_domain::NanoDollarsPerMillion| price.cost(tokens, Rounding::Nearest);
            cost(computed).ok()?.checked_sub(cost(cached).ok()?).ok()
        });
        let way = match miss.reason {
            MissReason::Evicted | MissReason::Expired => {
                "asked again sooner, or with a cache marker that keeps it"
            }
            MissReason::Differs => "with what changes put behind what stays",
            MissReason::StateNotKept | MissReason::WindowFreed => {
                "with a cache marker where prompts part, so that the model's state is kept there"
            }
            _ => "asked a second time with the same beginning",
        };
        let text = format!("{} from the prefix cache: {way}", count(tokens, "prompt token"));
        Some(Saving::new(
            LeverName::CachedPrefix,
            part(self.nanos(&[TermName::Prefill, TermName::Upstream])),
            money,
            text,
        ))
    }

    fn fewer_tokens(&self) -> Option<Saving> {
        let less = self.shape.output_tokens / 2;
        if less < LEAST_TOKENS / 2 {
            return None;
        }
        let made = self.nanos(&[TermName::Decode, TermName::DecodeBehindPrompts]);
        let written = self.nanos(&[TermName::Postprocess, TermName::Deliver]);
        // An upstream that does not stream does not report the time for the answer. Half of the wait is the most.
        let made = if made == 0 { self.nanos(&[TermName::Upstream]) } else { made };
        let nanos = made.saturating_add(written) / 2;
        let reasoning = self.record.usage.reasoning;
        let thought = self.money(TokenClass::Reasoning, reasoning / 2);
        let said = self.money(TokenClass::Output, less - (reasoning / 2).min(less));
        let money = match (thought, said) {
            (Some(a), Some(b)) => a.checked_add(b).ok(),
            (a, b) => a.or(b),
        };
        let mut text = format!("Half of the {} generated", count(self.shape.output_tokens, "token"));
        if reasoning > 0 {
            text += &format!(" ({} of them thought)", grouped(reasoning));
        }
        text += ": a lower `max_tokens`, or a prompt that asks for less";
        Some(Saving::new(LeverName::FewerTokens, nanos, money, text))
    }

    fn stream(&self) -> Option<Saving> {
        let first = self.record.first_token_ns?;
        let answered = matches!(self.record.outcome, CallOutcome::Completed { .. });
        if self.record.stream || !answered || self.shape.output_tokens < 2 {
            return None;
        }
        let nanos = self.record.duration_ns.saturating_sub(first);
        let text = format!(
            "Streamed, its first words could have been read after {} instead of {}; the whole takes as long",
            humane_duration(first),
            humane_duration(self.record.duration_ns)
        );
        Some(Saving { of: "first_words", ..Saving::new(LeverName::Stream, nanos, None, text) })
    }

    fn smaller_model(&self, usual: &Usual) -> Option<Saving> {
        let decode = self.nanos(&[TermName::Decode, TermName::DecodeBehindPrompts]);
        let prefill = self.nanos(&[TermName::Prefill, TermName::Upstream]);
        let other = usual.speeds.first()?;
        let there = other.decode_ns * self.shape.output_tokens as f64
            + other.prefill_ns * self.shape.computed_tokens as f64;
        let here = decode.saturating_add(prefill);
        let nanos = here.saturating_sub(there as u64);
        if nanos == 0 || self.shape.output_tokens < 2 {
            return None;
        }
        let text = format!(
            "`{}` took {} less for as much, by the last {}; what it answers is another matter",
            plain(&other.model),
            percent(nanos, here),
            count(other.calls as u64, "call")
        );
        Some(Saving::new(LeverName::SmallerModel, nanos, None, text))
    }

    fn nearer(&self) -> Option<Saving> {
        let nanos = self.nanos(&[TermName::Receive, TermName::Reader]);
        let text = format!(
            "A nearer client, or one that sends and reads faster: the server waited {} for it",
            humane_duration(nanos)
        );
        (nanos > 0).then(|| Saving::new(LeverName::Nearer, nanos, None, text))
    }

    fn keep_connection(&self) -> Option<Saving> {
        let connection = self.record.connection.filter(|connection| connection.requests_before == 0)?;
        let text = "The same on a connection that is kept open: no connection and no TLS handshake, before its own time begins"
            .to_owned();
        let saving = Saving::new(LeverName::KeepConnection, connection.open_ns, None, text);
        Some(Saving { of: "before", ..saving })
    }

    fn fewer_retries(&self) -> Option<Saving> {
        let nanos = self.nanos(&[TermName::Retries]);
        let text = "Workers that fail, drained or mended before they are asked".to_owned();
        (nanos > 0).then(|| Saving::new(LeverName::FewerRetries, nanos, None, text))
    }

    fn fewer_at_once(&self) -> Option<Saving> {
        let nanos = self.nanos(&[TermName::QueueOwn, TermName::QueueOwnPrompts]);
        let text = "Fewer calls of the same organisation at once".to_owned();
        (nanos > 0).then(|| Saving::new(LeverName::FewerAtOnce, nanos, None, text))
    }
}
