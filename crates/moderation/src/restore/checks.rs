//! What a rule that redacts the input must not set. Must not know how the rule is compiled.

use super::placeholder_map::is_placeholder;
use crate::{Action, RuleConfig};

/// Calls `add` with each field of a rule that does not fit to the redaction of the input, and why.
pub(crate) fn check_input_redaction(config: &RuleConfig, add: &mut dyn FnMut(&'static str, String)) {
    if config.replacement.as_deref().is_some_and(is_placeholder) {
        let why = "looks like a placeholder of `restore`, such as `<EMAIL_1>`; choose another text";
        add("replacement", why.to_owned());
    }
    if !config.restore {
        return;
    }
    if config.action != Action::Redact {
        add("restore", "belongs to rules with `action = \"redact\"`".to_owned());
    }
    if !config.applies_to.input {
        let why = "puts back what was redacted in the input; let `applies_to` name `input`";
        add("restore", why.to_owned());
    }
    if config.dry_run {
        add("restore", "changes calls, and a rule with `dry_run = true` changes nothing".to_owned());
    }
    if config.replacement.is_some() {
        let why = "does not fit to `restore`, which replaces matches by numbered placeholders; leave it out";
        add("replacement", why.to_owned());
    }
}
