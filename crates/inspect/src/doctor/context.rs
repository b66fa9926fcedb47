//! Checks whether the files agree on the length of the context and the number of ids. Must not know templates.

use headrace_checkpoint::RopeScaling;

use super::patient::Patient;
use crate::finding::{Finding, Severity};

pub(super) fn check(patient: &Patient<'_>, findings: &mut Vec<Finding>) {
    vocabulary(patient, findings);
    let Some(context) = patient.examined.max_positions else {
        findings.push(Finding {
            code: "context_unknown",
            severity: Severity::Warning,
            what: "nothing says how long a context may be".to_owned(),
            evidence: "config.json has no `max_position_embeddings`".to_owned(),
            way_out: "say it in the configuration: `context_window` of the model".to_owned(),
        });
        return;
    };
    check_declared_context(patient, context, findings);
    beyond_rope(patient, context, findings);
    if let Some(answer) = patient.examined.generation.max_new_tokens.filter(|answer| *answer >= context) {
        findings.push(Finding {
            code: "answer_beyond_context",
            severity: Severity::Warning,
            what: "the answer that is recommended leaves no room for a prompt".to_owned(),
            evidence: format!("generation_config.json: `max_new_tokens` {answer}; config.json: a context of {context} positions"),
            way_out: "set `default_max_tokens` of the model to what an answer may take".to_owned(),
        });
    }
}

fn vocabulary(patient: &Patient<'_>, findings: &mut Vec<Finding>) {
    let (rows, ids) = (patient.examined.vocab_size, patient.words.tokenizer.vocab_size());
    if ids <= rows {
        return;
    }
    let first = u32::try_from(rows).unwrap_or(u32::MAX);
    let example = (first..u32::try_from(ids).unwrap_or(u32::MAX))
        .find(|id| patient.words.tokenizer.token_bytes(*id).is_some());
    findings.push(Finding {
        code: "ids_beyond_vocabulary",
        severity: Severity::Fault,
        what: "the tokenizer has ids for which the model has no embedding".to_owned(),
        evidence: format!(
            "config.json: `vocab_size` {rows}; tokenizer.json has ids up to {}, such as {}",
            ids.saturating_sub(1),
            example.map_or_else(|| "none with a text".to_owned(), |id| patient.show(id))
        ),
        way_out: "tokens were added and the embedding was not resized, or the tokenizer is another model's: take both from \
                  one repository"
            .to_owned(),
    });
}

fn check_declared_context(patient: &Patient<'_>, context: usize, findings: &mut Vec<Finding>) {
    let told = patient.examined.tokenizer_config.model_max_length.filter(|told| *told != context);
    let Some(told) = told else { return };
    let (what, way_out) = match told > context {
        true => (
            "the tokenizer's file claims a longer context than the model has positions",
            format!(
                "{context} positions are served. A longer context needs the scaling that the model's card describes, in \
                 config.json"
            ),
        ),
        false => (
            "the tokenizer's file knows a shorter context than config.json claims",
            format!(
                "{context} positions are served. Where the model was taught no more than {told}, set `max_positions = {told}`"
            ),
        ),
    };
    findings.push(Finding {
        code: "context_disagrees",
        severity: Severity::Warning,
        what: what.to_owned(),
        evidence: format!(
            "tokenizer_config.json: `model_max_length` {told}; config.json: `max_position_embeddings` {context}"
        ),
        way_out,
    });
}

/// Checks for a context that is longer than the positions were scaled for.
fn beyond_rope(patient: &Patient<'_>, context: usize, findings: &mut Vec<Finding>) {
    let Some(rope) = patient.examined.rope else { return };
    let (factor, original) = match &rope.scaling {
        RopeScaling::Llama3 { factor, original_max_positions, .. }
        | RopeScaling::Yarn { factor, original_max_positions, .. } => (*factor, *original_max_positions),
        _ => return,
    };
    #[allow(clippy::cast_precision_loss, reason = "no context comes near 2^53")]
    let reaches = factor * original as f64;
    #[allow(clippy::cast_precision_loss, reason = "no context comes near 2^53")]
    let claimed = context as f64;
    if claimed <= reaches * 1.001 {
        return;
    }
    findings.push(Finding {
        code: "context_beyond_scaling",
        severity: Severity::Warning,
        what: "the context is longer than its positions were scaled for".to_owned(),
        evidence: format!(
            "`max_position_embeddings` {context}; rope scaling reaches {reaches:.0}: {original} times {factor}"
        ),
        way_out: format!("set `max_positions = {reaches:.0}`, or the scaling that the model's card describes"),
    });
}
