//! The models that an upstream lists, in words. Must not know what is done with them.

use headrace_upstream::Listing;

/// The most models that are told by name.
pub(super) const NAMES_TOLD: usize = 8;

/// Some names of models, and how many more there are.
pub(super) fn told(models: &Listing) -> String {
    if models.is_empty() {
        return "it lists no model".to_owned();
    }
    let names: Vec<&str> = models.iter().take(NAMES_TOLD).map(|model| model.id.as_str()).collect();
    let more = match models.len().saturating_sub(NAMES_TOLD) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let left_out = match models.left_out {
        0 => String::new(),
        left_out => format!("; {left_out} further entries are left out"),
    };
    format!("{}{more}{left_out}", names.join(", "))
}
