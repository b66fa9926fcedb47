//! The forms in which words and regular expressions are matched. Must not know rules.

use std::collections::BTreeSet;

use regex::{Regex, RegexBuilder};

use crate::config::limits;
use crate::fold;

/// Compiles a regular expression within the limits on its size.
///
/// # Errors
/// Why it does not compile.
pub(crate) fn compile_regex(pattern: &str) -> Result<Regex, String> {
    RegexBuilder::new(pattern)
        .size_limit(limits::MAX_REGEX_PROGRAM_BYTES)
        .dfa_size_limit(limits::MAX_REGEX_CACHE_BYTES)
        .nest_limit(limits::MAX_REGEX_NESTING)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(limit) => format!("compiles to more than {limit} bytes"),
            other => format!("does not compile: {other}"),
        })
}

/// The forms of a word in another script after its look-alike letters are replaced by Latin ones, in either case. Omits
/// forms that become entirely Latin, since English texts would match them.
pub(crate) fn masked_forms(word: &str) -> BTreeSet<String> {
    let forms = [word.to_owned(), word.to_lowercase(), word.to_uppercase()];
    let forms = forms.iter().filter_map(|form| fold::unmasked_for_words(form));
    forms.map(|form| form.trim().to_owned()).filter(|form| !form.is_ascii()).collect()
}
