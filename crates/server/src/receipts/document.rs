//! What a receipt says: the facts of one call, as JSON. The same record and settlement always give the same JSON, on every
//! gateway. Must not know keys or signatures.

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{CallOutcome, NanoDollars, TraceRecord};
use headrace_ledger::{ChargeLine, HoldSettled, JournaledSettlement, SettleOutcome};
use serde_json::{Value, json};

use crate::datadir::hexadecimal;

/// The type of the signed text (`typ` of its header).
pub const RECEIPT_TYPE: &str = "headrace-receipt+jwt";
/// The version of the content.
const VERSION: u32 = 1;
/// The issuer in every receipt.
const ISSUER: &str = "headrace";

/// The content of a receipt. Money is nano-dollars and dollars, both as text. Prices are for a million tokens.
///
/// - `lines`: what the ledger has, with the price of each class. Their sum may be above `charged`: a call is charged at
///   most its hold, and a failed call with an idempotency key nothing.
/// - `prices`: the day whose prices apply (UTC), the service tier, and the caller's tier if it has prices of its own.
/// - `journal`: number and checksum of the row with the settlement. The checksum covers all rows before it.
/// - `region`: the region of the gateway that answered, if it has one.
/// - `sent`: SHA-256 and length of the answer's body as the client got it, if they were taken.
/// - `answer`: status, length and BLAKE3 hash of the body, if the ledger has them: for calls with an idempotency key.
pub fn receipt_json(record: &TraceRecord, settlement: &JournaledSettlement) -> Value {
    let HoldSettled { hold, lines, charged, loss, outcome, answer } = &settlement.settled;
    let policy: Vec<Value> = record
        .output_verdicts
        .iter()
        .map(|verdict| json!({ "rule": verdict.rule, "action": verdict.action }))
        .collect();
    json!({
        "iss": ISSUER,
        "iat": settlement.time.seconds(),
        "jti": record.request_id.to_string(),
        "version": VERSION,
        "request": record.request_id.to_string(),
        "hold": hold.to_string(),
        "settled": Rfc3339(settlement.time).to_string(),
        "started": Rfc3339(record.started).to_string(),
        "org": record.org.as_ref().map(|id| id.as_str()),
        "project": record.project.as_ref().map(|id| id.as_str()),
        "key": record.key.as_ref().map(|id| id.as_str()),
        "endpoint": record.endpoint.map(|endpoint| endpoint.name()),
        "stream": record.stream,
        "model": { "asked": record.model_asked, "served": record.model_served },
        "usage": usage(lines),
        "usage_source": record.usage_source.name(),
        "lines": lines.iter().map(line).collect::<Vec<_>>(),
        "prices": {
            "day": record.billed.as_ref().map(|billed| headrace_trace::utc_date(billed.at)),
            "tier": record.price_tier.name(),
            "holder_tier": record
                .billed
                .as_ref()
                .and_then(|billed| billed.holder_tier.as_ref())
                .map(|tier| tier.as_str()),
        },
        "held": money(record.held),
        "charged": money(*charged),
        "loss": money(*loss),
        "outcome": {
            "ledger": match outcome {
                SettleOutcome::Completed => "completed",
                SettleOutcome::Cancelled => "cancelled",
                SettleOutcome::Failed => "failed",
            },
            "finish": match &record.outcome {
                CallOutcome::Completed { finish } => Some(finish.as_slice()),
                _ => None,
            },
        },
        "region": record.region,
        "cache": record.engine.as_ref().map(|engine| {
            json!({ "cached_blocks": engine.cached_blocks, "prompt_blocks": engine.prompt_blocks })
        }),
        "policy": { "input": record.moderation, "output": policy },
        "sent": record.sent,
        "answer": answer.as_ref().and_then(|answer| {
            let (hash, bytes) = digest_of(&answer.body)?;
            Some(json!({
                "status": answer.status,
                "content_type": answer.content_type,
                "blake3": hash,
                "bytes": bytes,
            }))
        }),
        "journal": {
            "sequence": settlement.sequence,
            "checksum": hexadecimal(&settlement.checksum),
        },
    })
}

/// The hash and the length of an answer's body, as a settlement has them: 32 bytes, then 8 in little-endian order.
fn digest_of(body: &[u8]) -> Option<(String, u64)> {
    let (hash, length) = body.split_first_chunk::<32>()?;
    Some((hexadecimal(hash), u64::from_le_bytes(length.try_into().ok()?)))
}

/// Tokens by class. Classes without tokens are left out.
fn usage(lines: &[ChargeLine]) -> Value {
    let mut usage = serde_json::Map::new();
    for line in lines {
        let before = usage.get(line.class.name()).and_then(Value::as_u64).unwrap_or(0);
        usage.insert(line.class.name().to_owned(), before.saturating_add(line.tokens).into());
    }
    Value::Object(usage)
}

fn line(line: &ChargeLine) -> Value {
    let ChargeLine { model, class, tokens, price, amount } = line;
    json!({
        "model": model.as_str(),
        "class": class.name(),
        "tokens": tokens,
        "price_per_million": money(NanoDollars::new(price.get())),
        "amount": money(*amount),
    })
}

fn money(amount: NanoDollars) -> Value {
    let dollars = amount.to_string().replacen('$', "", 1);
    json!({ "nano_dollars": amount.get().to_string(), "dollars": dollars })
}
