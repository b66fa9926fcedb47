//! What a prompt reuses from earlier calls: the generated ids of former answers, and the cache diagnosis that its
//! caller received. Knows no waterfall.

use headrace_domain::TraceRecord;

/// Fact lines, each with its label.
pub(crate) fn facts(record: &TraceRecord) -> impl Iterator<Item = (&'static str, String)> {
    let answers = record.kept_answers.map(|kept| {
        let (answers, goes) =
            if kept.answers == 1 { ("former answer", "goes") } else { ("former answers", "go") };
        let (count, tokens) = (kept.answers, kept.tokens);
        let text = format!(
            "{count} {answers} {goes} on as generated: {tokens} tokens that the text alone would not become"
        );
        ("answers", text)
    });
    let told = record.told_of_cache.as_deref().map(|told| {
        let missed = match told.missed_tokens {
            0 => String::new(),
            tokens => format!(" · {tokens} tokens of the former prompt are lost by it"),
        };
        ("told", format!("its caller: {}{missed}", told.word))
    });
    answers.into_iter().chain(told)
}

#[cfg(test)]
mod tests {
    use headrace_domain::{KeptAnswers, ToldOfCache};

    use super::*;

    #[test]
    fn what_went_on_and_what_was_told_have_a_line_each() {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/completed.json"));
        let mut record: TraceRecord = serde_json::from_str(&text.unwrap()).unwrap();
        assert_eq!(facts(&record).count(), 0);
        record.kept_answers = Some(KeptAnswers { answers: 2, tokens: 57 });
        record.told_of_cache =
            Some(Box::new(ToldOfCache { word: "tools_changed".to_owned(), missed_tokens: 9, place: None }));
        let told: Vec<_> = facts(&record).collect();
        assert!(told[0].1.starts_with("2 former answers go on as generated: 57 tokens"), "{told:?}");
        assert_eq!(told[1].1, "its caller: tools_changed · 9 tokens of the former prompt are lost by it");
        let json = crate::record_json(&record);
        assert_eq!(json["kept_answers"]["tokens"], 57);
        assert_eq!(json["told_of_cache"]["word"], "tools_changed");
    }
}
