//! Describes the treatment of a parameter that is known but not honoured. Knows no endpoint.

use crate::refused::Accept;

/// Describes the treatment of a parameter that is known but not honoured.
pub(super) fn fate(accept: &Accept, why: &str) -> String {
    let unless =
        |what: String| format!("accepted as {what}, which is what happens anyway; refused otherwise: {why}");
    match accept {
        Accept::Label | Accept::Labels => format!("accepted: {why}, and changes no answer"),
        Accept::Hint => format!("accepted: {why}, and changes no answer"),
        Accept::Words(words) => {
            let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
            unless(words.join(" or "))
        }
        Accept::Only(word) => unless(format!("`[\"{word}\"]`")),
        Accept::Bool(value) => unless(format!("`{value}`")),
        Accept::Number(value) => unless(format!("`{value}`")),
        Accept::Empty => unless("nothing".to_owned()),
        Accept::Nothing => format!("refused: {why}"),
    }
}
