//! Formats and shortens the models that an upstream lists. Must not know how they are used.

use headrace_upstream::ModelListing;

use headrace_config::{ServerSettings, without_ending};

/// Maximum number of models that are named in a message.
pub(super) const NAMES_LISTED: usize = 8;

/// The names of some models, and how many more there are.
pub(super) fn describe(models: &ModelListing) -> String {
    if models.is_empty() {
        return "it lists no model".to_owned();
    }
    let names: Vec<&str> = models.iter().take(NAMES_LISTED).map(|model| model.id.as_str()).collect();
    let more = match models.len().saturating_sub(NAMES_LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let left_out = match models.left_out {
        0 => String::new(),
        left_out => format!("; {left_out} further entries are left out"),
    };
    format!("{}{more}{left_out}", names.join(", "))
}

/// The name under which a listed model is served. A server of one file lists the file's path. The path is shortened to
/// the name without folders and extension, unless a configured price names the whole path.
pub(super) fn short_id<'a>(config: &ServerSettings, upstream: &str, id: &'a str) -> &'a str {
    let whole = format!("{upstream}/{id}");
    if config.prices.iter().any(|price| price.model.as_str() == whole) { id } else { without_folders(id) }
}

/// If the id is a path, the file's name without folders and extension; otherwise the id.
fn without_folders(id: &str) -> &str {
    let is_file = id.rsplit_once('.').is_some_and(|(_, ending)| ending.eq_ignore_ascii_case("gguf"));
    if !is_file && !id.starts_with('/') {
        return id;
    }
    let last = without_ending(id.rsplit(['/', '\\']).next().unwrap_or(id));
    if last.is_empty() { id } else { last }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_called_by_its_file_and_a_name_stays() {
        for (id, name) in [
            ("/path/to/tiny.gguf", "tiny"),
            ("models/tiny-Q8_0.GGUF", "tiny-Q8_0"),
            ("C:\\models\\tiny.gguf", "tiny"),
            ("/models/Qwen3-0.6B", "Qwen3-0.6B"),
            ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B"),
            ("gpt-4.1", "gpt-4.1"),
            ("/", "/"),
        ] {
            assert_eq!(without_folders(id), name, "{id}");
        }
    }
}
