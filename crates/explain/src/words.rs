//! All wording about calls, in one place: plain sentences, numbers with units. Must not know how a term was cut or
//! where a text is shown.

use headrace_domain::{Attempt, AttemptOutcome, CallOutcome, EngineTrace, TraceRecord};
use headrace_trace::{grouped, humane_duration, miss_words, percent, plain, three_digits};

use crate::shape::CallShape;
use crate::term::TermName;

/// What a term's time was spent on, in words that follow "went into".
pub(crate) const fn activity(term: TermName) -> &'static str {
    match term {
        TermName::Connect => "accepting the request",
        TermName::Authenticate => "looking up the key",
        TermName::Receive => "waiting for the client to send its body",
        TermName::Parse => "reading the request",
        TermName::Authorize => "checking what the key may use",
        TermName::Route => "choosing the model",
        TermName::Moderate => "checking the content rules",
        TermName::Render => "rendering and tokenizing the prompt",
        TermName::Form => "compiling the form of the answer",
        TermName::Cache => "hashing the prompt's blocks",
        TermName::Hold => "taking limits and a hold",
        TermName::Place => "finding a worker",
        TermName::Retries => "failed attempts at other workers",
        TermName::Upstream => "waiting for another server's first words",
        TermName::QueueOwn => "waiting behind calls of the same organisation",
        TermName::QueueOwnPrompts => "waiting behind prompts of the same organisation",
        TermName::QueueOthers => "waiting behind calls of others",
        TermName::QueueOthersPrompts => "waiting behind prompts of others",
        TermName::Queue => "waiting for the engine",
        TermName::Prefill => "computing the prompt",
        TermName::Decode => "generating the answer",
        TermName::DecodeBehindPrompts => "waiting for prompts of others during the answer",
        TermName::Postprocess => "finding tool calls in the answer",
        TermName::Deliver => "handing the answer over",
        TermName::Reader => "waiting for the client to read",
        TermName::Handover => "switching between tasks and threads",
        TermName::Settle => "settling the bill",
        TermName::Unaccounted => "time that the record does not explain",
    }
}

/// Why a term took that long, as far as the record shows.
pub(crate) fn reason(term: TermName, nanos: u64, record: &TraceRecord) -> String {
    let shape = CallShape::of(record);
    let engine = record.engine.as_ref();
    match term {
        TermName::Connect => connection(record),
        TermName::Authenticate => "the key was looked up".to_owned(),
        TermName::Receive => "the body came as fast as the client and its network sent it".to_owned(),
        TermName::Parse => "the body was read as JSON and every parameter checked".to_owned(),
        TermName::Authorize => "the rights of the key were checked".to_owned(),
        TermName::Route => "the model for the name was chosen".to_owned(),
        TermName::Moderate => match &record.moderation {
            Some(said) => format!("the content rules said: {}", plain(said)),
            None => "the content rules were checked".to_owned(),
        },
        TermName::Render => {
            each(shape.prompt_tokens, "prompt token", nanos, "written by the template and tokenized")
        }
        TermName::Form => {
            "the schema or grammar was compiled: the next call with the same one finds it compiled".to_owned()
        }
        TermName::Cache => {
            format!("the blocks of {} prompt tokens were hashed", grouped(shape.prompt_tokens))
        }
        TermName::Hold => format!("limits were taken, and {} held", record.held),
        TermName::Place => worker(record),
        TermName::Retries => retries(record),
        TermName::Upstream => upstream(record),
        TermName::QueueOwn => own_calls(engine),
        TermName::QueueOwnPrompts => "prompts of the same organisation were computed first".to_owned(),
        TermName::QueueOthers => others_calls(engine),
        TermName::QueueOthersPrompts => others_prompts(engine),
        TermName::Queue => queue(engine),
        TermName::Prefill => prefill(nanos, &shape, engine),
        TermName::Decode => decode(nanos, &shape, engine),
        TermName::DecodeBehindPrompts => behind_prompts(engine),
        TermName::Postprocess => "tool calls were looked for in the text".to_owned(),
        TermName::Deliver => "the answer was written in its dialect and handed to the transport".to_owned(),
        TermName::Reader => "the client did not read what was there for it".to_owned(),
        TermName::Handover => "tasks and threads waited to run, longer on a busy machine".to_owned(),
        TermName::Settle => "tokens became money, and what was not used was given back".to_owned(),
        TermName::Unaccounted => "the record does not explain this time".to_owned(),
    }
}

fn connection(record: &TraceRecord) -> String {
    match record.connection {
        None => "from the last byte of the head to the start of processing".to_owned(),
        Some(connection) if connection.requests_before == 0 => format!(
            "on a new connection, which had been open for {} by then",
            humane_duration(connection.open_ns)
        ),
        Some(connection) => format!(
            "on a connection that had carried {} before",
            count(connection.requests_before, "request")
        ),
    }
}

fn worker(record: &TraceRecord) -> String {
    record.attempts.last().map_or_else(
        || "no worker was found".to_owned(),
        |attempt| format!("`{}` was to take it", plain(&attempt.worker)),
    )
}

/// A text such as `2 workers were asked in vain: a (worker_lost), b (upstream_rate_limited)`.
fn retries(record: &TraceRecord) -> String {
    let in_vain = |attempt: &&Attempt| {
        matches!(attempt.outcome, AttemptOutcome::Refused { .. } | AttemptOutcome::Failed { .. })
    };
    let tried: Vec<String> = record
        .attempts
        .iter()
        .filter(in_vain)
        .take(MOST_NAMED)
        .map(|attempt| match &attempt.outcome {
            AttemptOutcome::Refused { code, .. } | AttemptOutcome::Failed { code, .. } => {
                format!("`{}` ({})", plain(&attempt.worker), plain(code))
            }
            _ => String::new(),
        })
        .collect();
    let all = record.attempts.iter().filter(in_vain).count() as u64;
    format!("{} came to nothing: {}", count(all, "try"), tried.join(", "))
}

/// Most workers that are named after many attempts.
const MOST_NAMED: usize = 4;

fn upstream(record: &TraceRecord) -> String {
    if let Some(fault) = last_fault(record) {
        return fault;
    }
    let whose = record.upstream.as_deref().map_or("the other server", |name| name);
    format!("`{}` does not report its queue and its prefill apart", plain(whose))
}

/// How the last attempt failed or was refused. `None` if it did neither.
pub(crate) fn last_fault(record: &TraceRecord) -> Option<String> {
    let last = record.attempts.last()?;
    let whose = record.upstream.as_deref().unwrap_or(&last.worker);
    fault_of(whose, &last.outcome)
}

/// A text such as `` `far` refused the connection `` or `` `far` answered 400: … ``, from an attempt's outcome.
pub(crate) fn fault_of(whose: &str, outcome: &AttemptOutcome) -> Option<String> {
    let (AttemptOutcome::Refused { code, why } | AttemptOutcome::Failed { code, why }) = outcome else {
        return None;
    };
    let (whose, why) = (plain(whose), plain(why));
    let bare = why.strip_prefix("no connection: ").unwrap_or(&why);
    Some(if let Some(at) = bare.strip_prefix("connection refused at ") {
        format!("`{whose}` refused the connection at {at}")
    } else if bare.len() < why.len() {
        format!("`{whose}` was not reached: {bare}")
    } else if let Some(status) = why.strip_prefix("status ") {
        let has_words = status.contains(": ");
        let unsaid = if has_words {
            ""
        } else {
            " (the upstream's text may repeat the call's text and is not stored)"
        };
        format!("`{whose}` answered {status}{unsaid}")
    } else {
        format!("`{whose}` failed (`{}`): {why}", plain(code))
    })
}

fn own_calls(engine: Option<&EngineTrace>) -> String {
    let own = engine.and_then(|engine| engine.ahead).map_or(0, |ahead| ahead.own);
    format!("{} of the same organisation came before it", count(own.into(), "answer"))
}

fn others_calls(engine: Option<&EngineTrace>) -> String {
    let Some((engine, ahead)) = engine.and_then(|engine| Some((engine, engine.ahead?))) else {
        return String::new();
    };
    let all = u64::from(engine.queue_depth) + u64::from(ahead.running);
    let others = all.saturating_sub(ahead.own.into());
    format!(
        "{} of others came before it ({} in the queue and {} running in all)",
        count(others, "answer"),
        engine.queue_depth,
        ahead.running
    )
}

fn others_prompts(engine: Option<&EngineTrace>) -> String {
    let tokens = engine.and_then(|engine| engine.ahead).map_or(0, |ahead| ahead.prefill_tokens);
    format!("{} were computed meanwhile", count(tokens, "prompt token"))
}

fn queue(engine: Option<&EngineTrace>) -> String {
    match engine {
        Some(engine) if engine.ahead.is_some() => {
            "until the engine's next step began, plus an unexplained part of the wait".to_owned()
        }
        Some(engine) if engine.queue_depth > 0 => {
            format!(
                "{} waited already; the record does not say whose",
                count(engine.queue_depth.into(), "call")
            )
        }
        _ => "no other call waited: until the engine's next step began".to_owned(),
    }
}

fn prefill(nanos: u64, shape: &CallShape, engine: Option<&EngineTrace>) -> String {
    let mut text = each(shape.computed_tokens, "prompt token", nanos, "computed");
    if let Some(engine) = engine {
        if engine.prefill_chunks > 1 {
            text += &format!(", in {} chunks", engine.prefill_chunks);
        }
        let beside = engine.beside.map_or(0, |beside| beside.prefill_tokens);
        if beside > 0 {
            text += &format!(", beside {} of others", grouped(beside));
        }
    }
    if shape.cached_tokens > 0 {
        text += &format!("; {} more came from the cache", grouped(shape.cached_tokens));
    }
    if let Some(miss) = engine.and_then(|engine| engine.miss.as_ref()) {
        text += &format!(" ({})", miss_words(miss));
    }
    text
}

fn decode(nanos: u64, shape: &CallShape, engine: Option<&EngineTrace>) -> String {
    let mut text = each(shape.output_tokens, "token", nanos, "generated");
    if let Some(engine) = engine.filter(|engine| engine.steps > 0) {
        text += &match engine.batch_max {
            0 | 1 => ", alone in the batch".to_owned(),
            most => format!(", in a batch of {} on average ({most} at most)", three_digits(shape.batch)),
        };
        if engine.preemptions > 0 {
            text += &format!(", preempted {}", times(engine.preemptions.into()));
        }
    }
    text + &format!(", behind a context of {}", count(shape.mean_context(), "token"))
}

fn behind_prompts(engine: Option<&EngineTrace>) -> String {
    let tokens = engine.and_then(|engine| engine.beside).map_or(0, |beside| beside.decode_prefill_tokens);
    format!("{} of others were computed in the steps that it generated in", count(tokens, "prompt token"))
}

/// A text such as `64 tokens generated, 188 µs each`.
fn each(of: u64, what: &str, nanos: u64, done: &str) -> String {
    match of {
        0 => format!("no {what}s {done}"),
        1 => format!("1 {what} {done}"),
        of => format!("{} {what}s {done}, {} each", grouped(of), humane_duration(nanos / of)),
    }
}

pub(crate) use headrace_trace::counted as count;

fn times(of: u64) -> String {
    match of {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        of => format!("{} times", grouped(of)),
    }
}

/// The term that most of a call's time went into.
#[derive(Clone, Copy)]
pub(crate) struct Dearest {
    /// The largest term of its family.
    pub(crate) term: TermName,
    /// Its nanoseconds.
    pub(crate) nanos: u64,
    /// Nanoseconds of its whole family: the parts of one wait, or of one answer.
    pub(crate) family_nanos: u64,
}

/// The first sentence: where most of the time went, or why the call did not complete.
pub(crate) fn sentence(record: &TraceRecord, dearest: Option<Dearest>, usual: Option<u64>) -> String {
    let whole = humane_duration(record.duration_ns);
    let spent = dearest.map(|dearest| spent_on(record, dearest, usual));
    let spent = spent.unwrap_or_else(|| format!("It took {whole}."));
    // A call that failed at an upstream waited for that and for nothing else.
    let fault = last_fault(record);
    let waited_for_fault = dearest.is_some_and(|dearest| {
        matches!(dearest.term, TermName::Upstream | TermName::Place | TermName::Retries)
    });
    let spent_besides = if fault.is_some() && waited_for_fault { String::new() } else { format!(" {spent}") };
    match &record.outcome {
        CallOutcome::Completed { .. } => spent,
        CallOutcome::Refused(refusal) => {
            let fault = fault.map(|fault| format!(" {}", ended(&fault))).unwrap_or_default();
            format!(
                "It was refused in `{}` with {} `{}` after {whole}: {}{fault}",
                refusal.stage.name(),
                refusal.status,
                plain(&refusal.code),
                ended(&plain(&refusal.message))
            )
        }
        CallOutcome::Failed { stage, message } => {
            let message = ended(&plain(message));
            let what = match fault {
                Some(fault) => format!("{} Its caller received: {message}", ended(&fault)),
                None => message,
            };
            format!("It failed in `{}` after {whole}: {what}{spent_besides}", stage.name())
        }
        CallOutcome::Cancelled { why } => {
            format!("It was cut off after {whole}: {} {spent}", ended(&plain(why)))
        }
    }
}

/// Where most of the time went. The figure is that of the whole family, because families are compared as one.
fn spent_on(record: &TraceRecord, dearest: Dearest, usual: Option<u64>) -> String {
    let Dearest { term, nanos, family_nanos } = dearest;
    let whole = record.duration_ns;
    let most = if family_nanos.saturating_mul(2) >= whole { "Most" } else { "The largest part" };
    let usual = usual.map(|usual| format!(", where {} is usual", humane_duration(usual))).unwrap_or_default();
    let (all, took) = (humane_duration(family_nanos), humane_duration(nanos));
    let went = if nanos == family_nanos {
        format!("{} ({all}, {}{usual})", activity(term), percent(nanos, whole))
    } else {
        let share = percent(family_nanos, whole);
        let parts = format!("{} ({took}{usual})", activity(term));
        format!("{} ({all}, {share}), most of that {parts}", activity_of_family(term))
    };
    format!("{most} of its {} went into {went}: {}.", humane_duration(whole), reason(term, nanos, record))
}

/// What the terms of a family have in common.
const fn activity_of_family(term: TermName) -> &'static str {
    match term.family() {
        TermName::Queue => "waiting for its turn",
        TermName::Decode => "generating the answer and waiting in between",
        other => activity(other),
    }
}

/// Ends a text with a full stop, unless it ends as a sentence already.
pub(crate) fn ended(text: &str) -> String {
    let text = text.trim_end();
    if text.ends_with(['.', '!', '?']) { text.to_owned() } else { format!("{text}.") }
}

/// Further remarks on a call, one sentence each.
pub(crate) fn notes(record: &TraceRecord) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(nanos) = record.time_to_first_token_ns() {
        notes.push(format!(
            "The first token was there {} after the request was whole.",
            humane_duration(nanos)
        ));
    }
    if let Some(client) = &record.client {
        let what = if client.address.is_some() { "address" } else { "network" };
        notes.push(format!("The client's {what} was {client}."));
    }
    if let CallOutcome::Completed { finish } = &record.outcome
        && finish.iter().any(|reason| reason == "length" || reason == "max_tokens")
    {
        notes.push("The answer was cut off at `max_tokens`: it was not finished.".to_owned());
    }
    if let Some(engine) = &record.engine {
        if let Some(miss) = &engine.miss
            && engine.cached_blocks < engine.prompt_blocks
        {
            notes.push(format!(
                "{} of {} prompt blocks came from the cache: {}.",
                engine.cached_blocks,
                engine.prompt_blocks,
                miss_words(miss)
            ));
        }
        if engine.preemptions > 0 {
            notes.push(format!(
                "It lost its place in memory {} and was computed again: the KV cache is too small for the load (engine.kv_memory).",
                times(engine.preemptions.into())
            ));
        }
    }
    if let Some(connection) = record.connection.filter(|connection| connection.requests_before == 0) {
        notes.push(format!(
            "It came on a new connection, {} old when the head was whole; that is no part of the call's own time.",
            humane_duration(connection.open_ns)
        ));
    }
    if record.engine.as_ref().is_some_and(|engine| engine.queue_ns > 0 && engine.ahead.is_none()) {
        notes.push(
            "The record does not say what the wait was for: it is of an older version, or of another host."
                .to_owned(),
        );
    }
    notes
}

/// Says that a term is unusual.
pub(crate) fn unusual(term: TermName, us: f64, usual_us: f64, why: &str) -> String {
    let nanos = |us: f64| humane_duration((us * 1e3) as u64);
    let times = match usual_us {
        usual if usual < 0.001 => "where nothing is usual".to_owned(),
        usual => format!("{} times the usual {}", three_digits(us / usual), nanos(usual)),
    };
    format!("`{}` took {}, {times}: {why}.", term.name(), nanos(us))
}
