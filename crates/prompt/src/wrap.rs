//! Wraps lines of text as Python's `textwrap` does, for Jinja2's filter `wordwrap`. Must not know templates.

/// The options for wrapping.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WrapOptions {
    /// The line width in characters, at least 1.
    pub(crate) width: usize,
    /// Whether to cut a word that is longer than a line.
    pub(crate) breaks_words: bool,
    /// Whether a line may end after a hyphen.
    pub(crate) breaks_hyphens: bool,
}

impl WrapOptions {
    /// Wraps one line. White space at the ends of the resulting lines is left out.
    pub(crate) fn line(self, text: &str) -> Vec<String> {
        let mut chunks = self.chunks(text);
        chunks.reverse();
        let mut lines: Vec<String> = Vec::new();
        while let Some(next) = chunks.last() {
            if !lines.is_empty() && next.iter().all(|c| c.is_whitespace()) {
                chunks.pop();
                continue;
            }
            let (mut line, mut length): (Vec<Vec<char>>, usize) = (Vec::new(), 0);
            while let Some(chunk) = chunks.pop() {
                let longer = length.saturating_add(chunk.len());
                if longer > self.width {
                    chunks.push(chunk);
                    break;
                }
                length = longer;
                line.push(chunk);
            }
            if let Some(long) = chunks.pop_if(|chunk| chunk.len() > self.width) {
                self.cut(long, length, &mut line, &mut chunks);
            }
            if line.last().is_some_and(|chunk| chunk.iter().all(|c| c.is_whitespace())) {
                line.pop();
            }
            if !line.is_empty() {
                lines.push(line.into_iter().flatten().collect());
            }
        }
        lines
    }

    /// Handles a chunk that is longer than a line.
    fn cut(self, long: Vec<char>, length: usize, line: &mut Vec<Vec<char>>, chunks: &mut Vec<Vec<char>>) {
        if !self.breaks_words {
            match line.is_empty() {
                true => line.push(long),
                false => chunks.push(long),
            }
            return;
        }
        let left = self.width.saturating_sub(length);
        let mut end = left;
        if self.breaks_hyphens && long.len() > left {
            let hyphen = long.iter().take(left).rposition(|c| *c == '-');
            if let Some(hyphen) = hyphen.filter(|at| long.iter().take(*at).any(|c| *c != '-')) {
                end = hyphen.saturating_add(1);
            }
        }
        let rest = long.iter().skip(end).copied().collect();
        let cut: Vec<char> = long.into_iter().take(end).collect();
        if !cut.is_empty() {
            line.push(cut);
        }
        chunks.push(rest);
    }

    /// Splits a text into words and the white space between them. A word is also split after a hyphen between letters.
    fn chunks(self, text: &str) -> Vec<Vec<char>> {
        let chars: Vec<char> = text.chars().collect();
        let mut chunks: Vec<Vec<char>> = Vec::new();
        let letter = |at: Option<usize>| at.and_then(|at| chars.get(at)).is_some_and(|c| c.is_alphabetic());
        for (at, c) in chars.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|before| chars.get(before));
            let spaces = before.is_some_and(|before| before.is_whitespace() == c.is_whitespace());
            // `well-known`: on each side of the hyphen there must be two letters, or a letter with a hyphen next to it.
            let hyphen = before == Some(&'-')
                && letter(at.checked_sub(2))
                && (letter(at.checked_sub(3))
                    || (chars.get(at.wrapping_sub(3)) == Some(&'-') && letter(at.checked_sub(4))))
                && letter(Some(at))
                && (letter(at.checked_add(1))
                    || (chars.get(at.saturating_add(1)) == Some(&'-') && letter(at.checked_add(2))));
            match chunks.last_mut() {
                Some(last) if spaces && !(self.breaks_hyphens && hyphen) => last.push(*c),
                _ => chunks.push(vec![*c]),
            }
        }
        chunks
    }
}
