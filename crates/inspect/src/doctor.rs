//! [`diagnose`] checks whether a checkpoint's tokenizer, template and configuration agree. The checks test their
//! behaviour: they render conversations, tokenize prompts and parse tool calls. Each finding contains its evidence and
//! a remedy. Must not know which engine computes the model, or how findings are drawn.

mod calls;
mod context;
mod ends;
mod markers;
mod patient;
mod turns;
mod usual;

use headrace_checkpoint::ModelRefusal;

use crate::finding::{Diagnosis, Examined, Facts, Finding, Severity};
use crate::words::{Words, WordsError};
use patient::Patient;

/// Runs all checks. The limits on templates and files bound the work.
pub fn diagnose(examined: &Examined<'_>) -> Diagnosis {
    let mut findings = Vec::new();
    refused(examined, &mut findings);
    findings.extend(examined.warnings.iter().map(|warning| left_open(warning)));
    // An encoder gets texts as they are, and gives no answers that could end.
    let template = examined.template.filter(|_| !examined.is_encoder);
    let words = Words::read(examined.tokenizer_json, examined.tokenizer_config, template, examined.family);
    let facts = match words {
        Ok(words) => {
            let patient = Patient::new(examined, &words);
            context::check(&patient, &mut findings);
            if !examined.is_encoder {
                ends::check_ids(&patient, &mut findings);
            }
            if words.template.is_some() {
                turns::check(&patient, &mut findings);
                ends::check_turns(&patient, &mut findings);
                markers::check(&patient, &mut findings);
                calls::check(&patient, &mut findings);
                usual::check(&patient, &mut findings);
            } else if !examined.is_encoder {
                findings.push(no_template());
            }
            patient.facts()
        }
        Err(error) => {
            findings.push(unusable(&error));
            let vocabulary = examined.vocab_size;
            Facts { vocabulary, context: examined.max_positions, family: "unknown", ..Facts::default() }
        }
    };
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Diagnosis { facts, findings }
}

fn refused(examined: &Examined<'_>, findings: &mut Vec<Finding>) {
    findings.extend(examined.refused.map(ModelRefusal::from).map(|refusal| Finding {
        code: "not_computed_here",
        severity: Severity::Warning,
        what: "no engine in this program computes it".to_owned(),
        evidence: refusal.message,
        way_out: refusal.way_out,
    }));
}

fn left_open(warning: &str) -> Finding {
    Finding {
        code: "files_leave_open",
        severity: Severity::Warning,
        what: "the files do not say how texts are cut into words".to_owned(),
        evidence: warning.to_owned(),
        way_out:
            "download a newer file of this model, or convert it anew with a present convert_hf_to_gguf.py"
                .to_owned(),
    }
}

fn no_template() -> Finding {
    Finding {
        code: "no_template",
        severity: Severity::Warning,
        what: "there is no chat template, so /v1/chat/completions and /v1/messages refuse the model".to_owned(),
        evidence: "neither chat_template.jinja nor `chat_template` in tokenizer_config.json".to_owned(),
        way_out: "a base model has none: use /v1/completions. Otherwise download chat_template.jinja with the rest of the \
                  repository"
            .to_owned(),
    }
}

fn unusable(error: &WordsError) -> Finding {
    let refusal = ModelRefusal::from(error);
    Finding {
        code: refusal.code,
        severity: Severity::Fault,
        what: "the model cannot be served".to_owned(),
        evidence: refusal.message,
        way_out: refusal.way_out,
    }
}
