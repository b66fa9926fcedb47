//! A record as the API shows it to its owner, with units in the field names and money in two spellings. The stored
//! format belongs to the codec and may differ. Does not know who may see the record.

use headrace_domain::{
    Attempt, AttemptOutcome, BilledLine, CacheMiss, CallOutcome, ContinuedAnswer, EngineTrace, NanoDollars,
    PriceTier, RoundOutcome, ShadowOf, TokenClass, TraceRecord, TraceRound, Usage,
};
use serde_json::{Map, Value, json};

use crate::group::grouped_spans;
use crate::metrics::inter_token_ns;
use crate::output_verdicts::{judge_use_json, verdict_json};
use crate::units::{bare_dollars as dollars, format_utc, micros, utc_date};

/// The record as operators see it: [`record_json`] plus facts that its owner must not see. These are how busy an engine
/// was, what other tenants have in its cache, upstreams' messages about failed attempts, and what upstreams charge. The
/// charges are `paid_…` of the `cost` and of each of the `attempts`, if they are known. `judges` has what content rules asked
/// judges on other servers.
pub fn operator_json(record: &TraceRecord) -> Value {
    let mut json = record_json(record);
    note_paid(&mut json["cost"], record.paid);
    if !record.judge_uses.is_empty() {
        json["judges"] = record.judge_uses.iter().map(judge_use_json).collect();
    }
    for (at, attempt) in record.attempts.iter().enumerate() {
        note_paid(&mut json["attempts"][at], attempt.paid);
        if let AttemptOutcome::Refused { why, .. } | AttemptOutcome::Failed { why, .. } = &attempt.outcome {
            json["attempts"][at]["outcome"]["message"] = why.as_str().into();
        }
    }
    if let (Some(engine), Some(shown)) = (&record.engine, json.get_mut("engine")) {
        shown["queue_depth"] = engine.queue_depth.into();
        shown["batch_min"] = engine.batch_min.into();
        shown["batch_mean"] = mean_batch(engine).into();
        shown["batch_max"] = engine.batch_max.into();
        if let Some(miss) = engine.miss {
            shown["cache_miss"]["cached_for_another_tenant"] = miss.elsewhere.into();
        }
        note_around(shown, engine);
    }
    json
}

/// Adds the work that was queued ahead of the call and computed beside it, if it is known.
fn note_around(shown: &mut Value, engine: &EngineTrace) {
    if let Some(ahead) = &engine.ahead {
        shown["ahead"] = json!({
            "running": ahead.running,
            "own": ahead.own,
            "own_prefill_us": micros(ahead.own_prefill_ns),
            "own_decode_us": micros(ahead.own_decode_ns),
            "others_prefill_us": micros(ahead.others_prefill_ns),
            "others_decode_us": micros(ahead.others_decode_ns),
            "prefill_tokens": ahead.prefill_tokens,
        });
    }
    if let Some(beside) = &engine.beside {
        shown["beside"] = json!({
            "prefill_tokens": beside.prefill_tokens,
            "decode_prefill_tokens": beside.decode_prefill_tokens,
            "decode_prefill_us": micros(beside.decode_prefill_ns),
        });
    }
}

fn note_paid(shown: &mut Value, paid: Option<NanoDollars>) {
    if let Some(paid) = paid {
        shown["paid_nano_dollars"] = paid.get().into();
        shown["paid_dollars"] = dollars(paid).into();
    }
}

/// The record as JSON, as its owner may see it. It reveals neither other tenants' requests nor how many of them wait or
/// run beside this one.
///
/// Durations are microseconds with nanosecond decimals (`…_us`). Start times count from the request's first byte; the
/// first token counts from the complete request. Stages that are not `inside` another stage follow each other and sum
/// to `duration_us`, which is `server_us` plus `client_us`. Money is integer nano-dollars and a string of dollars.
///
/// - `region`: the region of the server that handled the call, if it has one.
/// - `client_address`: the client's network or address, as far as the settings allow it to be recorded.
/// - `attempts`: one entry per attempt to answer a prompt, with the prompt, the worker, the times and the `outcome`.
///   The outcome is `answered`, `refused` before any work, `failed`, `outrun` by a faster attempt, or `cut_short`
///   because the call ended earlier. `refused` and `failed` include the code and the reason. `model` is set if a
///   different model handled the call.
/// - `continued`: set if an answer broke off and another worker continued it in its own way, as the model's policy
///   allows. Has the choice, the number of tokens before the break, and the worker.
/// - `rounds`: one entry per round, with the model, the worker and upstream, the times, the tokens, the engine's times and
///   the `outcome`. The outcome is `answered` (with the finish reason of the first choice), `failed` (with the code) or
///   `cut_short`. Tokens of a round that failed before a further one are not part of the call's `usage`.
/// - `upstream`: set if an upstream answered. Has the upstream's name, the model that it reports, and the source of the
///   usage: `reported` by it, or `estimated` (then with `why_estimated`). `notes` lists oddities of its answer.
/// - `kept_answers`: the number of earlier answers, and of their tokens, whose generated ids the prompt reuses because
///   their text alone would become other ids.
/// - `told_of_cache`: the cache diagnosis for a caller that named an earlier answer to compare its prompt with.
/// - `terms` of the `cost`: the bill, class by class, at the prices of the day `priced_at`. `tier` of the `cost` is the
///   service tier, if it is not the standard one.
/// - `input_moderation` and `output_moderation`: the content rules that matched the request and the answer, with what each
///   did (`action`), its `kind`, the `place`, and the action that it would have taken in a `dry_run`.
/// - `connection`: the number of earlier requests on the connection, and for how long it had been open.
/// - `replay_of`: set if the request got the stored answer of this request, because both have one idempotency key.
/// - `sent`: `sha256` and number of `bytes` of the answer's body as the client got it. Set if `receipts.answer_hash` is on.
/// - `worker_job`: set if the record is a job that was run for another server. Has the `call` there.
pub fn record_json(record: &TraceRecord) -> Value {
    let stages: Vec<Value> = grouped_spans(&record.stages)
        .into_iter()
        .map(|(group, span)| {
            json!({
                "stage": span.stage.name(),
                "group": group.name(),
                "inside": span.inside.map(|stage| stage.name()),
                "start_us": micros(span.start_ns),
                "duration_us": micros(span.duration_ns),
            })
        })
        .collect();
    let mut whole = json!({
        "id": record.request_id.to_string(),
        "object": "request.trace",
        "version": record.version,
        "started": format_utc(record.started, "%Y-%m-%dT%H:%M:%S%.6fZ"),
        "started_unix_us": record.started.get() / 1_000,
        "duration_us": micros(record.duration_ns),
        "server_us": micros(record.server_ns()),
        "client_us": micros(record.client_ns()),
        "after_us": micros(record.after_ns),
        "time_to_first_token_us": record.time_to_first_token_ns().map(micros),
        "inter_token_us": inter_token_ns(record).map(micros),
        "trace_id": record.trace_id,
        "parent_span_id": record.parent_span_id,
        "org": record.org.as_ref().map(|id| id.as_str()),
        "project": record.project.as_ref().map(|id| id.as_str()),
        "key": record.key.as_ref().map(|id| id.as_str()),
        "token_user": record.token_user,
        "region": record.region,
        "user": record.user,
        "metadata": record.labels,
        "endpoint": record.endpoint.map(|endpoint| endpoint.name()),
        "stream": record.stream,
        "model": {
            "asked": record.model_asked,
            "served": record.model_served,
            "numerics": record.numerics,
        },
        "stages": stages,
        "attempts": record.attempts.iter().map(attempt).collect::<Vec<_>>(),
        "rounds": record.rounds.iter().map(|round| round_json(round, record)).collect::<Vec<_>>(),
        "usage": usage(&record.usage),
        "engine": record.engine.as_ref().map(engine),
        "cost": {
            "held_nano_dollars": record.held.get(),
            "held_dollars": dollars(record.held),
            "charged_nano_dollars": record.cost.get(),
            "charged_dollars": dollars(record.cost),
            "loss_nano_dollars": record.loss.get(),
            "loss_dollars": dollars(record.loss),
        },
        "moderation": record.moderation,
        "outcome": outcome(&record.outcome),
    });
    if let Some(failure) = record.failure() {
        whole["outcome"]["status"] = failure.status.into();
        whole["outcome"]["code"] = failure.code.into();
    }
    let verdicts =
        [("input_moderation", &record.input_verdicts), ("output_moderation", &record.output_verdicts)];
    for (name, verdicts) in verdicts.into_iter().filter(|(_, verdicts)| !verdicts.is_empty()) {
        whole[name] = verdicts.iter().map(verdict_json).collect();
    }
    if let Some(billed) = &record.billed {
        whole["cost"]["priced_at"] = utc_date(billed.at).into();
        // There is no bill before the settlement.
        if !billed.lines.is_empty() {
            whole["cost"]["terms"] = billed.lines.iter().map(cost_term).collect();
        }
    }
    if let Some(client) = &record.client {
        whole["client_address"] = client.to_string().into();
    }
    if record.form_ns > 0 {
        whole["form_us"] = micros(record.form_ns).into();
    }
    if let Some(connection) = &record.connection {
        whole["connection"] = json!({
            "requests_before": connection.requests_before,
            "open_us": micros(connection.open_ns),
        });
    }
    if let Some(tier) = record.billed.as_ref().and_then(|billed| billed.holder_tier.as_ref()) {
        whole["cost"]["holder_tier"] = tier.as_str().into();
    }
    if record.price_tier != PriceTier::Standard {
        whole["cost"]["tier"] = record.price_tier.name().into();
    }
    if !record.continued.is_empty() {
        whole["continued"] = record.continued.iter().map(continued).collect();
    }
    if let Some(kept) = &record.kept_answers {
        whole["kept_answers"] = json!({"answers": kept.answers, "tokens": kept.tokens});
    }
    if let Some(diagnosis) = &record.cache_diagnosis {
        whole["told_of_cache"] = json!({"word": diagnosis.word, "missed_tokens": diagnosis.missed_tokens, "place": diagnosis.place});
    }
    if let Some(upstream) = &record.upstream {
        whole["upstream"] = json!({
            "name": &**upstream,
            "model": record.upstream_model,
            "id": record.upstream_id,
            "usage": record.usage_source.name(),
        });
        if let Some(why) = &record.why_estimated {
            whole["upstream"]["why_estimated"] = why.to_string().into();
        }
        if !record.answer_notes.is_empty() {
            whole["upstream"]["notes"] = json!(record.answer_notes);
        }
    }
    if let Some(shadow) = &record.shadow_of {
        whole["shadow_of"] = shadow.call.to_string().into();
        whole["shadow"] = shadow_json(shadow);
    }
    if let Some(first) = &record.replay_of {
        whole["replay_of"] = first.to_string().into();
    }
    if let Some(sent) = &record.sent {
        whole["sent"] = json!(sent);
    }
    if let Some(job) = &record.worker_job {
        whole["worker_job"] = json!({ "call": job.call.to_string() });
    }
    whole
}

/// One line of the bill: a token class with its number of tokens and its price per million.
fn cost_term(line: &BilledLine) -> Value {
    json!({
        "class": line.class.name(),
        "tokens": line.tokens,
        "price_per_million_dollars": dollars(NanoDollars::new(line.price.get())),
        "nano_dollars": line.amount.get(),
        "dollars": dollars(line.amount),
    })
}

/// The JSON of a shadow copy: the figures of the original call, and how the answers compare. The original's value comes
/// first.
fn shadow_json(shadow: &ShadowOf) -> Value {
    let ShadowOf { call: _, model, went, compared } = shadow;
    json!({
        "model": model,
        "time_to_first_token_us": went.first_token_ns.map(micros),
        "server_us": micros(went.server_ns),
        "completion_tokens": went.output_tokens,
        "charged_nano_dollars": went.cost.get(),
        "compared": compared,
    })
}

/// The record as an answer carries it before its last event: [`record_json`] without the fields that are known only
/// after the call.
pub fn answer_json(record: &TraceRecord) -> Value {
    let mut json = record_json(record);
    if let Some(fields) = json.as_object_mut() {
        for late in ["duration_us", "server_us", "after_us", "inter_token_us", "outcome"] {
            fields.remove(late);
        }
    }
    if let Some(cost) = json.get_mut("cost").and_then(Value::as_object_mut) {
        cost.retain(|name, _| !name.starts_with("loss_"));
    }
    json
}

fn usage(usage: &Usage) -> Value {
    let mut tokens: Map<String, Value> = TokenClass::ALL
        .into_iter()
        .map(|class| (format!("{}_tokens", class.name()), usage.of(class).into()))
        .collect();
    tokens.insert("prompt_tokens".to_owned(), usage.prompt_tokens().into());
    tokens.insert("completion_tokens".to_owned(), usage.completion_tokens().into());
    tokens.insert("total_tokens".to_owned(), usage.total().into());
    Value::Object(tokens)
}

/// The part of an attempt's reason that the owner of the call may read. The text after the first colon may quote an
/// upstream or name a server's address, which would reveal the operator's account or network.
pub(crate) fn owners_words(why: &str) -> &str {
    why.split_once(": ").map_or(why, |(ours, _)| ours)
}

fn attempt(attempt: &Attempt) -> Value {
    let mut outcome = json!({ "kind": attempt.outcome.name() });
    if let AttemptOutcome::Refused { code, why } | AttemptOutcome::Failed { code, why } = &attempt.outcome {
        outcome["code"] = code.as_str().into();
        outcome["message"] = owners_words(why).into();
    }
    let mut shown = json!({
        "prompt": attempt.prompt,
        "worker": &*attempt.worker,
        "start_us": micros(attempt.start_ns),
        "duration_us": micros(attempt.duration_ns),
        "outcome": outcome,
    });
    if let Some(model) = &attempt.model {
        shown["model"] = (**model).into();
    }
    shown
}

fn continued(continued: &ContinuedAnswer) -> Value {
    json!({"choice": continued.choice, "after_tokens": continued.after_tokens, "worker": &*continued.worker})
}

/// A round of the call that `record` is of.
fn round_json(round: &TraceRound, record: &TraceRecord) -> Value {
    let TraceRound { model, upstream, worker, start_ns, duration_ns, usage: used, engine, outcome } = round;
    let mut ended = json!({ "kind": outcome.name() });
    match outcome {
        RoundOutcome::Answered { finish } => ended["finish_reason"] = json!(finish),
        RoundOutcome::Failed { code } => ended["code"] = json!(code),
        RoundOutcome::CutShort => {}
    }
    json!({
        "model": model.as_deref().or(record.model_served.as_deref()),
        "upstream": upstream,
        "worker": worker,
        "start_us": micros(*start_ns),
        "duration_us": micros(*duration_ns),
        "usage": usage(used),
        "engine": engine.map(|times| json!({
            "queue_us": micros(times.queue_ns),
            "prefill_us": micros(times.prefill_ns),
            "decode_us": micros(times.decode_ns),
        })),
        "outcome": ended,
    })
}

fn engine(engine: &EngineTrace) -> Value {
    json!({
        "queue_us": micros(engine.queue_ns),
        "prefill_us": micros(engine.prefill_ns),
        "decode_us": micros(engine.decode_ns),
        "steps": engine.steps,
        "prefill_chunks": engine.prefill_chunks,
        "preemptions": engine.preemptions,
        "thoughts_cut": engine.thoughts_cut,
        "pinned_blocks": engine.pinned_blocks,
        "unpinned_blocks": engine.unpinned_blocks,
        "cached_blocks": engine.cached_blocks,
        "prompt_blocks": engine.prompt_blocks,
        "cache_miss": engine.miss.as_ref().map(miss),
        "step_us": micros(engine.step_ns),
        "forward_us": micros(engine.forward_ns),
        "sample_us": micros(engine.sample_ns),
        "paused_us": micros(engine.paused_ns),
    })
}

fn miss(miss: &CacheMiss) -> Value {
    json!({ "reason": miss.reason.name(), "token": miss.token, "place": miss.place })
}

fn outcome(outcome: &CallOutcome) -> Value {
    match outcome {
        CallOutcome::Completed { finish } => json!({ "kind": "completed", "finish_reasons": finish }),
        CallOutcome::Cancelled { why } => json!({ "kind": "cancelled", "why": why }),
        CallOutcome::Failed { stage, message } => {
            json!({ "kind": "failed", "stage": stage.name(), "message": message })
        }
        CallOutcome::Refused(refusal) => json!({
            "kind": "refused",
            "stage": refusal.stage.name(),
            "rule": refusal.rule,
            "status": refusal.status,
            "code": refusal.code,
            "message": refusal.message,
        }),
    }
}

/// Mean number of sequences over the steps that computed any part of the call.
pub(crate) fn mean_batch(engine: &EngineTrace) -> Option<f64> {
    (engine.steps > 0).then(|| engine.batch_sum as f64 / f64::from(engine.steps))
}
