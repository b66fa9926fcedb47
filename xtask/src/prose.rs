//! Paragraphs of generated pages. Knows no page.

/// Where a line of a paragraph is broken, in characters.
const WIDTH: usize = 120;

/// A paragraph in lines of at most [`WIDTH`] characters.
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
