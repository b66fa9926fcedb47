//! Describes the treatment of a parameter that is known but not honoured. Knows no endpoint.

use headrace_wire::common::refused::AcceptedValue;

/// Describes the treatment of a parameter that is known but not honoured.
pub(super) fn fate(accept: &AcceptedValue, why: &str) -> String {
    let unless =
        |what: String| format!("accepted as {what}, which is what happens anyway; refused otherwise: {why}");
    match accept {
        AcceptedValue::Label | AcceptedValue::Labels => format!("accepted: {why}, and changes no answer"),
        AcceptedValue::Hint => format!("accepted: {why}, and changes no answer"),
        AcceptedValue::Words(words) => {
            let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
            unless(words.join(" or "))
        }
        AcceptedValue::Only(word) => unless(format!("`[\"{word}\"]`")),
        AcceptedValue::Bool(value) => unless(format!("`{value}`")),
        AcceptedValue::Number(value) => unless(format!("`{value}`")),
        AcceptedValue::Empty => unless("nothing".to_owned()),
        AcceptedValue::Nothing => format!("refused: {why}"),
    }
}
