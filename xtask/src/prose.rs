//! Formats paragraphs of generated pages. Knows no page.

/// Maximum width of a line, in characters.
const WIDTH: usize = 120;

/// Wraps a paragraph into lines of at most [`WIDTH`] characters.
pub(crate) fn wrapped(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}
