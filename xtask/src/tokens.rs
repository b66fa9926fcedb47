//! Splits a Rust source into words and marks, without comments and literals. Knows no grammar.

/// A token of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token<'s> {
    /// A name, a keyword or a number.
    Word(&'s str),
    /// `::`.
    Path,
    /// Any other character that is not white space.
    Mark(char),
}

impl Token<'_> {
    /// The word, if this is one.
    pub(crate) fn word(&self) -> Option<String> {
        match self {
            Token::Word(word) => Some((*word).to_owned()),
            Token::Path | Token::Mark(_) => None,
        }
    }
}

/// All tokens of a source.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let skipped = literal(rest);
        if let Some(length) = skipped.filter(|length| *length > 0) {
            rest = rest.get(length..).unwrap_or("");
            continue;
        }
        let (token, length) = if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            (rest.get(..end).map(Token::Word), end)
        } else if rest.starts_with("::") {
            (Some(Token::Path), 2)
        } else {
            ((!first.is_whitespace()).then_some(Token::Mark(first)), first.len_utf8())
        };
        // The `$` of a macro's `$crate` has no meaning here.
        found.extend(token.filter(|token| *token != Token::Mark('$')));
        rest = rest.get(length..).unwrap_or("");
    }
    found
}

/// The byte length of the comment, string or character that the text starts with.
fn literal(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(text.find("*/").map_or(text.len(), |end| end + 2));
    }
    let raw = text.strip_prefix('b').unwrap_or(text);
    if let Some(raw) = raw.strip_prefix('r')
        && raw.trim_start_matches('#').starts_with('"')
    {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let close = format!("\"{}", "#".repeat(hashes));
        let open = text.len() - raw.len() + hashes + 1;
        let end = text.get(open..)?.find(&close).map_or(text.len(), |end| open + end + close.len());
        return Some(end);
    }
    if text.starts_with('"') {
        return Some(closing(text, '"'));
    }
    // A character, not a lifetime.
    let mut characters = text.strip_prefix('\'')?.chars();
    let escaped = characters.next()? == '\\';
    (escaped || characters.next() == Some('\'')).then(|| closing(text, '\''))
}

/// The end of a literal that starts with `quote`.
fn closing(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_leave_no_tokens() {
        let source = r##"use a::b; // c::d
            /* e::f */ let x = "g::h \" i" + r#"j::"k"# + '"' + '\'' + b"l"; fn m<'n>() {}"##;
        let words: Vec<String> = tokens(source).iter().filter_map(Token::word).collect();
        assert_eq!(words, ["use", "a", "b", "let", "x", "b", "fn", "m", "n"]);
    }
}
