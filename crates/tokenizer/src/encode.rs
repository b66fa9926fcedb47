//! Text to ids. Added tokens are read where the text is trusted to contain them; all other text goes through
//! normalizer, pre-tokenizer and model. Untrusted text never becomes markup. Must not know what a segment is for.

use std::ops::Range;

use tokenizers::tokenizer::normalizer::Range as Within;
use tokenizers::{
    Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    Split, Token,
};

use crate::added::{Added, Found};
use crate::bounds::Bounds;
use crate::bpe::{Bpe, Workspace};
use crate::direct::Direct;
use crate::error::TokenizerError;
use crate::pieces::PIECE_BYTES;
use crate::tokenizer::{Pair, Tokenizer};

/// The parts of a text in which control tokens may be read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trust<'a> {
    /// The whole text, exactly as Hugging Face does it.
    Whole,
    /// Only within one of these byte ranges. The ranges are ascending and do not touch.
    Runs(&'a [Range<usize>]),
}

impl Trust<'_> {
    fn covers(self, span: &Range<usize>) -> bool {
        match self {
            Self::Whole => true,
            Self::Runs(runs) => {
                let after = runs.partition_point(|run| run.start <= span.start);
                after.checked_sub(1).and_then(|at| runs.get(at)).is_some_and(|run| span.end <= run.end)
            }
        }
    }
}

type Boxed = Box<dyn std::error::Error + Send + Sync>;

fn ours(error: Boxed) -> TokenizerError {
    match error.downcast::<TokenizerError>() {
        Ok(ours) => *ours,
        Err(theirs) => TokenizerError::encode(theirs),
    }
}

/// A piece of text. Its variant determines whether control tokens may be read from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment<'a> {
    /// Text of our own, such as a template's: control tokens spelt out in it become their ids.
    Trusted(&'a str),
    /// Text of another party, such as a message: it stays text, even if it spells a control token.
    Literal(&'a str),
}

impl<'a> Segment<'a> {
    /// Returns the text of either kind.
    pub const fn text(&self) -> &'a str {
        match self {
            Self::Trusted(text) | Self::Literal(text) => text,
        }
    }
}

impl Tokenizer {
    /// Returns the ids of `text` as Hugging Face gives them: control tokens spelt out in the text become their ids. The
    /// text must be trusted as a whole. With `add_special`, the beginning and end tokens are added around it.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] if the tokenizer fails.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_within(text, add_special, &Bounds::NONE)
    }

    /// Like [`Tokenizer::encode`], within bounds.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode`], [`TokenizerError::TooManyIds`] and [`TokenizerError::NoRoom`].
    pub fn encode_within(
        &self,
        text: &str,
        add_special: bool,
        within: &Bounds<'_>,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.surround(add_special, within, |ids| self.encode_into(text, Trust::Whole, ids, within))
    }

    /// Returns the ids of `text` as plain text: it never produces a control token, even if it spells one. The only
    /// exception is the token for unknown characters, in vocabularies that cannot write every character.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] if the tokenizer fails. [`TokenizerError::OnlyControl`] if the vocabulary can write a
    /// character only as a control token.
    pub fn encode_plain(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_plain_within(text, add_special, &Bounds::NONE)
    }

    /// Like [`Tokenizer::encode_plain`], within bounds.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode_plain`], [`TokenizerError::TooManyIds`] and [`TokenizerError::NoRoom`].
    pub fn encode_plain_within(
        &self,
        text: &str,
        add_special: bool,
        within: &Bounds<'_>,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.surround(add_special, within, |ids| self.encode_into(text, Trust::Runs(&[]), ids, within))
    }

    /// Returns the ids of two texts in one sequence, as a reranker reads them. Both are plain text. The tokenizer's
    /// post-processor decides on the special tokens around and between them.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode_plain`].
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_pair_within(&self.encode_plain(first, false)?, second, &Bounds::NONE)
    }

    /// Like [`Tokenizer::encode_pair`], within bounds. The first text is given as the ids that
    /// [`Tokenizer::encode_plain_within`] returns without special tokens, so that a query is encoded once for all its
    /// documents.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode_plain_within`].
    pub fn encode_pair_within(
        &self,
        first: &[u32],
        second: &str,
        within: &Bounds<'_>,
    ) -> Result<Vec<u32>, TokenizerError> {
        let Pair { before, between, after, .. } = self.pair();
        let mut ids = [before.as_slice(), first, between].concat();
        within.check(&ids)?;
        self.encode_into(second, Trust::Runs(&[]), &mut ids, within)?;
        ids.extend_from_slice(after);
        within.check(&ids)?;
        Ok(ids)
    }

    /// Returns the ids of `segments`, read as one text. A control token is found only if it lies completely in trusted
    /// text. The result equals [`Tokenizer::encode`] of the joined text, unless a literal piece spells a control token
    /// or part of one. The bytes of such a token become ordinary tokens.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode_plain`].
    pub fn encode_segments(
        &self,
        segments: &[Segment<'_>],
        add_special: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.encode_segments_within(segments, add_special, &Bounds::NONE)
    }

    /// Like [`Tokenizer::encode_segments`], within bounds.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode_plain_within`].
    pub fn encode_segments_within(
        &self,
        segments: &[Segment<'_>],
        add_special: bool,
        within: &Bounds<'_>,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut text = String::with_capacity(segments.iter().map(|segment| segment.text().len()).sum());
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        for segment in segments {
            let start = text.len();
            text.push_str(segment.text());
            if matches!(segment, Segment::Trusted(piece) if !piece.is_empty()) {
                match runs.last_mut() {
                    Some(run) if run.end == start => run.end = text.len(),
                    _ => runs.push(start..text.len()),
                }
            }
        }
        self.surround(add_special, within, |ids| self.encode_into(&text, Trust::Runs(&runs), ids, within))
    }

    fn surround(
        &self,
        add_special: bool,
        within: &Bounds<'_>,
        body: impl FnOnce(&mut Vec<u32>) -> Result<(), TokenizerError>,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        if add_special {
            ids.extend_from_slice(self.prefix());
        }
        body(&mut ids)?;
        if add_special {
            ids.extend_from_slice(self.suffix());
        }
        within.check(&ids)?;
        Ok(ids)
    }

    /// Appends the ids of `text` to `ids`.
    pub(crate) fn encode_into(
        &self,
        text: &str,
        trust: Trust<'_>,
        ids: &mut Vec<u32>,
        within: &Bounds<'_>,
    ) -> Result<(), TokenizerError> {
        if let Some(bpe) = self.bpe.as_ref().filter(|bpe| bpe.takes(text)) {
            let before = ids.len();
            if bpe.lengthens(text) {
                within.ask_for_ids(text.len())?;
            }
            if self.encode_by_pairs(bpe, text, trust, ids) {
                return Ok(());
            }
            ids.truncate(before);
        }
        if let (Some(cuts), Trust::Runs([])) = (self.cuts, trust) {
            within.ask(cuts.longest_piece(text, PIECE_BYTES))?;
            for piece in cuts.pieces(text, PIECE_BYTES) {
                self.encode_fully(piece, trust, ids).map_err(ours)?;
                within.check(ids)?;
            }
            return Ok(());
        }
        within.ask(text.len())?;
        let run = match &self.direct {
            Some(direct) if direct.takes(text) => self.encode_direct(direct, text, trust, ids),
            _ => self.encode_fully(text, trust, ids),
        };
        run.map_err(ours)
    }

    /// Encodes with our own byte-pair encoder. Returns `false` if the model wrote markup into untrusted text. The ids
    /// must then be discarded, and the library's way, which can split such tokens, must be used.
    fn encode_by_pairs(&self, bpe: &Bpe, text: &str, trust: Trust<'_>, ids: &mut Vec<u32>) -> bool {
        let found = self.find_raw(text, trust);
        let mut workspace = Workspace::new();
        let watched = bpe.writes_markup() && !matches!(trust, Trust::Whole);
        // Ordinary text has about one token per four bytes.
        ids.reserve(text.len() / 4 + 1);
        let mut from = 0;
        let end = Found { id: 0, span: text.len()..text.len() };
        for (at, Found { id, span }) in found.iter().chain([&end]).enumerate() {
            let before = ids.len();
            bpe.encode(text.get(from..span.start).unwrap_or(""), from == 0, &mut workspace, ids);
            if watched && ids.iter().skip(before).any(|id| self.is_markup(*id)) {
                return false;
            }
            if at < found.len() && !span.is_empty() {
                ids.push(*id);
            }
            from = span.end;
        }
        true
    }

    fn encode_direct(
        &self,
        direct: &Direct,
        text: &str,
        trust: Trust<'_>,
        ids: &mut Vec<u32>,
    ) -> Result<(), Boxed> {
        let found = self.find_raw(text, trust);
        let mut buffer = String::new();
        let mut from = 0;
        let end = Found { id: 0, span: text.len()..text.len() };
        for (at, Found { id, span }) in found.iter().chain([&end]).enumerate() {
            let piece = text.get(from..span.start).unwrap_or("");
            direct.words(piece, &mut buffer, &mut |word| {
                ids.extend(self.tokenize(word, trust)?.iter().map(|token| token.id));
                Ok(())
            })?;
            if at < found.len() && !span.is_empty() {
                ids.push(*id);
            }
            from = span.end;
        }
        Ok(())
    }

    fn encode_fully(&self, text: &str, trust: Trust<'_>, ids: &mut Vec<u32>) -> Result<(), Boxed> {
        let mut pieces = PreTokenizedString::from(text);
        let found = self.find_raw(text, trust);
        if !found.is_empty() {
            pieces.split(|_, whole| cut(&whole, &found))?;
        }
        self.normalize(text, trust, &mut pieces)?;
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| self.tokenize(piece.get(), trust))?;
        for (_, _, tokens) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            ids.extend(tokens.iter().flatten().map(|token| token.id));
        }
        Ok(())
    }

    /// Finds the added tokens that are matched in the text as written.
    fn find_raw(&self, text: &str, trust: Trust<'_>) -> Vec<Found> {
        let mut found = Vec::new();
        match trust {
            Trust::Whole => self.added.raw.find(text, 0..text.len(), &mut found, |_, _| true),
            Trust::Runs(runs) if self.added.raw.all_markup() => {
                for run in runs {
                    self.added.raw.find(text, run.clone(), &mut found, |_, _| true);
                }
            }
            Trust::Runs(_) => {
                let accept = |added: &Added, core: Range<usize>| !added.markup || trust.covers(&core);
                self.added.raw.find(text, 0..text.len(), &mut found, accept);
            }
        }
        found
    }

    /// Normalizes the remaining text, and finds the added tokens that are matched in normalized text. Untrusted text
    /// may normalize to markup, and trust is known only for the text as written. Markup therefore counts only if
    /// trusted text spells it exactly.
    fn normalize(&self, text: &str, trust: Trust<'_>, pieces: &mut PreTokenizedString) -> Result<(), Boxed> {
        let normalizer = self.inner.get_normalizer();
        let matcher = &self.added.normalized;
        if normalizer.is_none() && matcher.is_empty() {
            return Ok(());
        }
        pieces.split(|_, mut piece| {
            if let Some(normalizer) = normalizer {
                normalizer.normalize(&mut piece)?;
            }
            let accept = |added: &Added, core: Range<usize>| {
                if matches!(trust, Trust::Whole) || !added.markup {
                    return true;
                }
                let Some(source) = piece.convert_offsets(Within::Normalized(core)) else { return false };
                let shift = piece.offsets_original().0;
                let source = source.start.saturating_add(shift)..source.end.saturating_add(shift);
                text.get(source.clone()) == Some(added.token.content.as_str()) && trust.covers(&source)
            };
            let mut found = Vec::new();
            matcher.find(piece.get(), 0..piece.get().len(), &mut found, accept);
            if found.is_empty() { Ok(vec![Split::from(piece)]) } else { cut(&piece, &found) }
        })
    }

    /// Runs the model on one piece. A model's own vocabulary may contain added tokens, and the model may then write
    /// text with them. If the text is not trusted as a whole, such tokens are split into smaller parts.
    fn tokenize(&self, piece: &str, trust: Trust<'_>) -> Result<Vec<Token>, Boxed> {
        let tokens = match &self.wordpiece {
            Some(wordpiece) => wordpiece.tokenize(piece),
            None => self.inner.get_model().tokenize(piece)?,
        };
        let forbidden = |token: &Token| self.is_forbidden(token, piece);
        if matches!(trust, Trust::Whole) || !tokens.iter().any(forbidden) {
            return Ok(tokens);
        }
        let mut kept = Vec::with_capacity(tokens.len().saturating_mul(2));
        for token in tokens {
            if !self.is_forbidden(&token, piece) {
                kept.push(token);
                continue;
            }
            let span = piece.get(token.offsets.0..token.offsets.1).unwrap_or(piece);
            let first = span.chars().next().map_or(0, char::len_utf8);
            match (span.get(..first), span.get(first..)) {
                (Some(head), Some(tail)) if !head.is_empty() && !tail.is_empty() => {
                    kept.extend(self.tokenize(head, trust)?);
                    kept.extend(self.tokenize(tail, trust)?);
                }
                _ => {
                    let character = span.chars().next().unwrap_or(char::REPLACEMENT_CHARACTER);
                    return Err(Box::new(TokenizerError::OnlyControl { character }));
                }
            }
        }
        Ok(kept)
    }

    /// Whether the model wrote markup. The unknown token counts as markup only if the text spells it, and not if it
    /// replaces an unknown character.
    fn is_forbidden(&self, token: &Token, piece: &str) -> bool {
        if !self.is_markup(token.id) {
            return false;
        }
        if self.unknown != Some(token.id) {
            return true;
        }
        let span = piece.get(token.offsets.0..token.offsets.1).unwrap_or("").as_bytes();
        self.token_bytes(token.id).is_some_and(|bytes| bytes == span)
    }
}

/// Splits `piece` into the added tokens and the text between them.
fn cut(piece: &NormalizedString, found: &[Found]) -> Result<Vec<Split>, Boxed> {
    let slice = |span: Range<usize>| {
        piece.slice(Within::Normalized(span)).ok_or_else(|| Boxed::from("a token ends inside a character"))
    };
    let mut splits = Vec::with_capacity(found.len().saturating_mul(2).saturating_add(1));
    let mut from = 0;
    for Found { id, span } in found {
        if from < span.start {
            splits.push(Split::from(slice(from..span.start)?));
        }
        if span.start < span.end {
            let part = slice(span.clone())?;
            let token = Token::new(*id, String::new(), (0, part.get().len()));
            splits.push(Split::from((part, Some(vec![token]))));
        }
        from = span.end;
    }
    if from < piece.get().len() {
        splits.push(Split::from(slice(from..piece.get().len())?));
    }
    Ok(splits)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use headrace_checkpoint::TokenizerConfig;
    use proptest::prelude::*;

    use super::*;
    use crate::bounds::LIBRARY_BYTES_PER_BYTE;

    static TOKENIZERS: LazyLock<[Tokenizer; 4]> = LazyLock::new(|| {
        [
            &include_bytes!("../tests/data/bytebpe-qwen/tokenizer.json")[..],
            &include_bytes!("../tests/data/bytebpe-llama3/tokenizer.json")[..],
            &include_bytes!("../tests/data/spbpe-gemma/tokenizer.json")[..],
            &include_bytes!("../tests/data/spbpe-llama2/tokenizer.json")[..],
        ]
        .map(|json| Tokenizer::new(json, &TokenizerConfig::default()).unwrap())
    });

    static ENCODERS: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| {
        [
            &include_bytes!("../tests/data/wordpiece-uncased/tokenizer.json")[..],
            &include_bytes!("../tests/data/unigram-xlmr/tokenizer.json")[..],
        ]
        .map(|json| Tokenizer::new(json, &TokenizerConfig::default()).unwrap())
    });

    /// Returns the result of encoding `text`, and the number of bytes that the encoder asked for.
    fn asked(
        tokenizer: &Tokenizer,
        text: &str,
        most_ids: usize,
    ) -> (Result<Vec<u32>, TokenizerError>, usize) {
        let asked = std::cell::Cell::new(0);
        let room = |bytes| {
            asked.set(asked.get() + bytes);
            true
        };
        let ids = tokenizer.encode_plain_within(text, true, &Bounds { most_ids, room: &room });
        (ids, asked.get())
    }

    #[test]
    fn a_text_with_too_many_tokens_is_left_early_within_little_memory() {
        for (tokenizer, texts) in ENCODERS.iter().zip([
            ["word ".repeat(100_000), ".".repeat(500_000), "漢".repeat(100_000), "a ".repeat(200_000)],
            ["word ".repeat(100_000), "a b ".repeat(50_000), "они ".repeat(50_000), "a ".repeat(200_000)],
        ]) {
            for text in texts {
                let (ids, bytes) = asked(tokenizer, &text, 512);
                assert_eq!(ids, Err(TokenizerError::TooManyIds { most: 512 }));
                assert!(bytes <= 2 * PIECE_BYTES * LIBRARY_BYTES_PER_BYTE, "{bytes}: {:.20}", text);
            }
            // A word that cannot be cut is asked for as a whole, before any work.
            let word = "a".repeat(3 * PIECE_BYTES);
            assert_eq!(asked(tokenizer, &word, 512).1, word.len() * LIBRARY_BYTES_PER_BYTE);
            let none = Bounds { most_ids: usize::MAX, room: &|_| false };
            let refused = tokenizer.encode_pair_within(&[7], &word, &none).unwrap_err();
            assert_eq!(refused, TokenizerError::NoRoom { bytes: word.len() * LIBRARY_BYTES_PER_BYTE });
        }
        // Our own encoders ask for no memory, but respect the limit on ids.
        for tokenizer in TOKENIZERS.iter() {
            let (ids, bytes) = asked(tokenizer, &"word ".repeat(1_000), 512);
            assert_eq!((ids, bytes), (Err(TokenizerError::TooManyIds { most: 512 }), 0));
        }
    }

    proptest! {
        /// A text has the same ids, whether it is cut into pieces or not.
        #[test]
        fn pieces_become_the_ids_of_the_whole(
            text in "[ a-dA-D0-9'.,<\\[\\]!àéßñΣς\u{301}\u{344}\u{200d}\u{fe00}\u{3000}\u{fdfa}\u{2581}\n\tиעع\u{d4e}\u{600}\u{345}\u{37a}は漢字\u{f900}🙂]{0,60}",
            most in 1_usize..12,
        ) {
            for tokenizer in ENCODERS.iter() {
                let cuts = tokenizer.cuts.unwrap();
                let (mut whole, mut cut) = (Vec::new(), Vec::new());
                tokenizer.encode_fully(&text, Trust::Runs(&[]), &mut whole).unwrap();
                for piece in cuts.pieces(&text, most) {
                    tokenizer.encode_fully(piece, Trust::Runs(&[]), &mut cut).unwrap();
                }
                prop_assert_eq!(&cut, &whole, "{:?}", cuts.pieces(&text, most).collect::<Vec<_>>());
                prop_assert_eq!(&tokenizer.encode_plain(&text, false).unwrap(), &whole);
            }
        }

        /// Our own encoder, the short way, the long way and Hugging Face's encoder agree.
        #[test]
        fn all_ways_agree(text in "[ a-zA-Z0-9'.,<|>\\n\\tàéßñ\u{301}你🙂]{0,40}", marked: bool) {
            let text = if marked { text.replace('<', "<|im_end|>") } else { text };
            for tokenizer in TOKENIZERS.iter() {
                prop_assert!(tokenizer.bpe.is_some());
                let mut long = Vec::new();
                tokenizer.encode_fully(&text, Trust::Whole, &mut long).unwrap();
                prop_assert_eq!(&tokenizer.encode(&text, false).unwrap(), &long);
                if let Some(direct) = tokenizer.direct.as_ref().filter(|direct| direct.takes(&text)) {
                    let mut short = Vec::new();
                    tokenizer.encode_direct(direct, &text, Trust::Whole, &mut short).unwrap();
                    prop_assert_eq!(&short, &long);
                }
                let theirs = tokenizer.inner.encode_fast(text.as_str(), false).unwrap();
                prop_assert_eq!(theirs.get_ids(), &long);
            }
        }
    }
}
