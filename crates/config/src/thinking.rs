//! `thinking = { … }` of a model: the reasoning budget in tokens per effort, and the text that ends reasoning at its
//! budget. Must not know which efforts callers ask for.

use headrace_catalog::ThinkingPolicy;

use super::table::TableReader;
use super::value::{ParsedValue, SettingKind};

/// Maximum length of `last_words` in bytes. They are inserted into the context, not read from it.
const MOST_LAST_WORDS_BYTES: usize = 500;

/// Reads the `thinking` of a table.
pub(super) fn thinking(table: &mut TableReader) -> ThinkingPolicy {
    const SHAPE: &str = "must be a table such as { low = 1024, high = 8192 }";
    let mut policy = ThinkingPolicy::default();
    let Some(value) = table.raw("thinking") else { return policy };
    let toml::Value::Table(left) = value else {
        table.problem("thinking", SHAPE.to_owned());
        return policy;
    };
    let mut inner = TableReader::within(table, "thinking", left);
    for (effort, budget) in ThinkingPolicy::EFFORTS.into_iter().zip(&mut policy.budgets) {
        if let Some(ParsedValue::Count(most)) =
            inner.take(effort, SettingKind::Count { least: 0, most: u64::from(u32::MAX) })
        {
            *budget = u32::try_from(most).ok();
        }
    }
    let words = inner.take_text("last_words", SettingKind::Text).filter(|words| !words.is_empty());
    if let Some(long) = words.as_ref().filter(|words| words.len() > MOST_LAST_WORDS_BYTES) {
        inner.problem("last_words", format!("{} bytes; at most {MOST_LAST_WORDS_BYTES}", long.len()));
    }
    policy.last_words = words.map(Into::into);
    table.problems.extend(inner.end());
    policy
}
