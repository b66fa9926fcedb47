//! Checks regular expressions before they are compiled: whether they are valid, and not too costly to unfold. Knows no
//! matching.

use regex_syntax::hir::{Hir, HirKind};

use crate::bounds::{MAX_DEPTH_LEVELS, MAX_PATTERN_BYTES, MAX_PATTERN_REPEATS};
use crate::fault::GrammarFault;

/// Checks a regular expression at the place `at`.
///
/// # Errors
/// A fault if the expression is invalid, uses look-around or back-references, repeats an endless repetition, or is too
/// large.
pub(crate) fn check(pattern: &str, at: &str) -> Result<(), GrammarFault> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(GrammarFault::TooLarge {
            what: "bytes of a regular expression",
            has: pattern.len() as u64,
            limit: MAX_PATTERN_BYTES as u64,
            path: at.to_owned(),
        });
    }
    let levels = MAX_DEPTH_LEVELS as u32;
    let parsed = regex_syntax::ParserBuilder::new().nest_limit(levels).build().parse(pattern);
    let parsed = parsed.map_err(|error| refused(&error, at))?;
    if repeats_a_repetition(&parsed) {
        let why = "it repeats without a bound what is nothing but such a repetition, as in `(a+)+`: write it once, as in `a+`";
        return Err(GrammarFault::unsupported("pattern", at, why));
    }
    let repeats = repeats(&parsed);
    if repeats > MAX_PATTERN_REPEATS {
        return Err(GrammarFault::TooLarge {
            what: "repetitions in a regular expression",
            has: repeats,
            limit: MAX_PATTERN_REPEATS,
            path: at.to_owned(),
        });
    }
    Ok(())
}

/// Writes a regular expression of a whole text as it is written between slashes in a Lark grammar. As in JSON Schema,
/// `\d` and `\w` are ASCII.
///
/// # Errors
/// As [`check`].
pub fn in_lark(pattern: &str) -> Result<String, GrammarFault> {
    check(pattern, "")?;
    Ok(llguidance::regex_to_lark(pattern, "dw"))
}

/// Whether every dialect rejects `pattern`: a group is not opened or not closed, or a repetition has nothing to repeat.
pub(crate) fn is_broken(pattern: &str) -> bool {
    use regex_syntax::ast::ErrorKind;
    match regex_syntax::Parser::new().parse(pattern) {
        Err(regex_syntax::Error::Parse(error)) => {
            matches!(
                error.kind(),
                ErrorKind::GroupUnclosed | ErrorKind::GroupUnopened | ErrorKind::RepetitionMissing
            )
        }
        _ => false,
    }
}

fn refused(error: &regex_syntax::Error, at: &str) -> GrammarFault {
    use regex_syntax::ast::ErrorKind;
    let kind = match error {
        regex_syntax::Error::Parse(error) => error.kind().clone(),
        other => return GrammarFault::invalid(at, last_line(&other.to_string())),
    };
    match kind {
        ErrorKind::UnsupportedLookAround | ErrorKind::UnsupportedBackreference => {
            let why = format!("{kind}; say what matches without it");
            GrammarFault::unsupported("pattern", at, why)
        }
        kind => GrammarFault::invalid(at, kind.to_string()),
    }
}

fn last_line(text: &str) -> String {
    text.lines().next_back().unwrap_or_default().to_owned()
}

/// Whether an unbounded repetition contains nothing but another one. The number of ways to match a text then grows with
/// every character. Automata follow all ways at once, but the caller's own validator may not.
fn repeats_a_repetition(hir: &Hir) -> bool {
    let endless = |hir: &Hir| match hir.kind() {
        HirKind::Repetition(repetition) => repetition.max.is_none(),
        _ => false,
    };
    match hir.kind() {
        HirKind::Repetition(repetition) => {
            let mut inner = &*repetition.sub;
            while let HirKind::Capture(capture) = inner.kind() {
                inner = &capture.sub;
            }
            endless(hir) && endless(inner) || repeats_a_repetition(inner)
        }
        HirKind::Capture(capture) => repeats_a_repetition(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().any(repeats_a_repetition),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => false,
    }
}

/// Upper bound on the copies of its parts that an expression unfolds to.
fn repeats(hir: &Hir) -> u64 {
    match hir.kind() {
        HirKind::Repetition(repetition) => {
            let times = u64::from(repetition.max.unwrap_or(repetition.min).max(1));
            times.saturating_mul(repeats(&repetition.sub))
        }
        HirKind::Capture(capture) => repeats(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().map(repeats).fold(0u64, u64::saturating_add)
        }
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_checked_before_they_cost_anything() {
        for fine in ["^a+$", r"\d{4}-\d{2}", "(a|b)*", "[^\"]{0,200}", "(a+b)+", "(a{2,3})+"] {
            assert_eq!(check(fine, "/p"), Ok(()), "{fine}");
        }
        let nested = format!("{}a{}", "(".repeat(60_000), ")".repeat(60_000));
        let deep = format!("{}a{}", "(".repeat(200), ")".repeat(200));
        let cases = [
            ("(?!a)b", "`pattern` at `/p` is not supported: look-around"),
            (r"(a)\1", "backreferences"),
            ("(a+)+$", "`pattern` at `/p` is not supported: it repeats without a bound"),
            ("^x((?:[a-z]*))+", "write it once"),
            ("(a", "unclosed group"),
            ("a{1000}{1000}", "1000000 repetitions"),
            (nested.as_str(), "bytes of a regular expression"),
            (deep.as_str(), "nested"),
        ];
        for (pattern, expected) in cases {
            let error = check(pattern, "/p").expect_err("a refusal").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
