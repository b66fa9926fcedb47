//! What a prompt reuses from earlier calls: the generated ids of former answers, and the cache diagnosis that its
//! caller received. Knows no waterfall.

use headrace_domain::TraceRecord;

/// Fact lines, each with its label.
pub(crate) fn facts(record: &TraceRecord) -> impl Iterator<Item = (&'static str, String)> {
    let answers = record.kept_answers.map(|kept| {
        let answers = if kept.answers == 1 { "former answer is" } else { "former answers are" };
        let (count, tokens) = (kept.answers, kept.tokens);
        let text = format!(
            "{count} {answers} repeated as generated: {tokens} tokens that the text alone would not become"
        );
        ("answers", text)
    });
    let diagnosis = record.cache_diagnosis.as_deref().map(|diagnosis| {
        let missed = match diagnosis.missed_tokens {
            0 => String::new(),
            tokens => format!(" · {tokens} tokens of the former prompt are not reused"),
        };
        ("diagnosis", format!("sent to the caller: {}{missed}", diagnosis.word))
    });
    answers.into_iter().chain(diagnosis)
}

#[cfg(test)]
mod tests {
    use headrace_domain::{KeptAnswers, TracedDiagnosis};

    use super::*;

    #[test]
    fn repeated_answers_and_the_diagnosis_have_a_line_each() {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/completed.json"));
        let mut record: TraceRecord = serde_json::from_str(&text.unwrap()).unwrap();
        assert_eq!(facts(&record).count(), 0);
        record.kept_answers = Some(KeptAnswers { answers: 2, tokens: 57 });
        record.cache_diagnosis = Some(Box::new(TracedDiagnosis {
            word: "tools_changed".to_owned(),
            missed_tokens: 9,
            place: None,
        }));
        let lines: Vec<_> = facts(&record).collect();
        assert!(lines[0].1.starts_with("2 former answers are repeated as generated: 57 tokens"), "{lines:?}");
        assert_eq!(
            lines[1].1,
            "sent to the caller: tools_changed · 9 tokens of the former prompt are not reused"
        );
        let json = crate::record_json(&record);
        assert_eq!(json["kept_answers"]["tokens"], 57);
        assert_eq!(json["told_of_cache"]["word"], "tools_changed");
    }
}
