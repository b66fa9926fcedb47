//! A model's tokenizer, ready to be shared: the entry point of this crate. Knows `tokenizer.json` and the special
//! tokens that the configuration names. Must not know templates.

use std::panic::{UnwindSafe, catch_unwind};
use std::sync::Arc;

use headrace_checkpoint::TokenizerConfig;
use serde::Deserialize;
use tokenizers::Tokenizer as Inner;

use crate::added::AddedTokens;
use crate::bpe::Bpe;
use crate::direct::Direct;
use crate::error::TokenizerError;
use crate::pieces::Cuts;
use crate::vocabulary::Vocabulary;
use crate::wordpiece::WordPiece;

/// Converts text to ids and back, for one model.
///
/// Reads Hugging Face's `tokenizer.json` and gives the same ids as the `tokenizers` library. Sharing behind an `Arc` is
/// cheap, because all methods take `&self`.
#[derive(Debug)]
pub struct Tokenizer {
    pub(crate) inner: Inner,
    pub(crate) added: AddedTokens,
    /// Our own byte-pair encoder, if it supports this tokenizer.
    pub(crate) bpe: Option<Bpe>,
    /// The short way through the library, if it supports this tokenizer.
    pub(crate) direct: Option<Direct>,
    /// Our own WordPiece vocabulary, used in place of the library's.
    pub(crate) wordpiece: Option<WordPiece>,
    /// The positions at which texts may be cut before the library encodes them.
    pub(crate) cuts: Option<Cuts>,
    vocabulary: Vocabulary,
    /// Ids added before and after a single text.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    pair: Pair,
    /// The token that the model writes for unknown characters. It is the only markup token that plain text may become.
    pub(crate) unknown: Option<u32>,
    most_bytes_per_token: Option<usize>,
    /// Special tokens that decoded text shows.
    shown: Arc<[String]>,
}

/// The part of `tokenizer.json` that names the unknown token.
#[derive(Deserialize)]
struct Probe {
    model: ProbeModel,
}

#[derive(Deserialize)]
struct ProbeModel {
    unk_token: Option<String>,
    unk_id: Option<u32>,
}

impl Tokenizer {
    /// Builds a tokenizer from the bytes of a `tokenizer.json`. `config` may override whether the beginning and end
    /// tokens are added.
    ///
    /// # Errors
    /// [`TokenizerError::Load`] if the file does not describe a tokenizer or exceeds the limits.
    pub fn new(tokenizer_json: &[u8], config: &TokenizerConfig) -> Result<Self, TokenizerError> {
        contained(|| Self::build(tokenizer_json, config))
    }

    fn build(tokenizer_json: &[u8], config: &TokenizerConfig) -> Result<Self, TokenizerError> {
        // This check comes first, because the library panics if some of its parts are not JSON.
        let text = std::str::from_utf8(tokenizer_json).map_err(TokenizerError::load)?;
        let probe: Probe = serde_json::from_str(text).map_err(TokenizerError::load)?;
        let mut inner = Inner::from_bytes(tokenizer_json).map_err(TokenizerError::load)?;
        // Limits on a text's length are decided elsewhere. A tokenizer that silently truncates or pads would hide them.
        inner.with_truncation(None).map_err(TokenizerError::load)?;
        inner.with_padding(None);
        let unknown = probe.model.unk_id.or_else(|| inner.token_to_id(probe.model.unk_token.as_deref()?));
        let tokens = inner.get_added_tokens_decoder();
        let added = AddedTokens::new(tokens.into_iter(), inner.get_normalizer())?;
        let vocabulary = Vocabulary::new(&inner)?;
        let (prefix, suffix) = surroundings(&inner, config)?;
        let pair = Pair::of(&inner).unwrap_or_else(|| Pair::of_one(&prefix, &suffix));
        let direct = Direct::new(&inner).filter(|_| added.normalized.is_empty());
        let bpe = Bpe::new(&inner, tokenizer_json, |id| vocabulary.is_markup(id))
            .filter(|_| added.normalized.is_empty());
        let most_bytes_per_token =
            bpe.as_ref().and_then(|bpe| Some(bpe.most_bytes_per_token().max(added.raw.most_bytes()?)));
        let (cuts, wordpiece) = (Cuts::of(&inner, &added), WordPiece::new(&inner));
        Ok(Self {
            inner,
            added,
            bpe,
            direct,
            wordpiece,
            cuts,
            vocabulary,
            prefix,
            suffix,
            pair,
            unknown,
            most_bytes_per_token,
            shown: Arc::default(),
        })
    }

    /// Makes decoded text show the special tokens that `is_mark` selects, even if special tokens are skipped, because a
    /// reader needs them there. Encoding does not change.
    #[must_use]
    pub fn showing(mut self, is_mark: impl Fn(&str) -> bool) -> Self {
        let added = self.inner.get_added_tokens_decoder();
        let mut shown: Vec<(u32, String)> = added
            .into_iter()
            .filter(|(id, token)| self.vocabulary.is_special(*id) && is_mark(&token.content))
            .map(|(id, token)| (id, token.content))
            .collect();
        shown.sort();
        shown.iter().for_each(|(id, _)| self.vocabulary.show(*id));
        self.shown = shown.into_iter().map(|(_, text)| text).collect();
        self
    }

    /// The special tokens that decoded text shows even if special tokens are skipped, in the order of their ids.
    pub fn shown(&self) -> &Arc<[String]> {
        &self.shown
    }

    /// The ids added before a text with `add_special`, such as the token that begins every sequence.
    pub fn prefix(&self) -> &[u32] {
        &self.prefix
    }

    /// Returns the text of `ids`, with broken UTF-8 as replacement characters. With `skip_special`, special tokens are
    /// left out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let kept: Vec<u32>;
        let (ids, skip_special) = match skip_special && !self.shown.is_empty() {
            true => {
                kept = ids.iter().copied().filter(|id| !self.vocabulary.is_skipped(*id)).collect();
                (kept.as_slice(), false)
            }
            false => (ids, skip_special),
        };
        self.inner.decode(ids, skip_special).unwrap_or_else(|_| {
            let kept = ids.iter().filter(|id| !(skip_special && self.vocabulary.is_special(**id)));
            let bytes: Vec<u8> = kept.filter_map(|id| self.token_bytes(*id)).flatten().copied().collect();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }

    /// Returns the bytes of `id` in the middle of a text. They need not be whole UTF-8. `None` for an id without text.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocabulary.bytes(id)
    }

    /// Returns the bytes of a token as a number, with the first byte lowest, and their count. Returns `None` for markup
    /// and for tokens that do not have one to eight bytes; use [`Self::token_bytes`] for those.
    pub fn short_text(&self, id: u32) -> Option<(u64, usize)> {
        self.vocabulary.short_text(id)
    }

    /// The number of bytes that [`Self::short_text`] returns for a token, or 0 if it returns `None`.
    pub fn short_length(&self, id: u32) -> usize {
        self.vocabulary.short_length(id)
    }

    /// Returns the id of a token by its spelling in the vocabulary.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Returns the vocabulary's spelling of a token, which may differ from its text (`Ġthe`). `None` if no token has
    /// this id.
    pub fn spelling(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The maximum number of bytes of a text that one token can stand for. A text of more than `n` times as many bytes
    /// has more than `n` tokens. White space at the ends of the text does not count, because markup beside it may
    /// include it.
    ///
    /// `None` if no such bound is known. This is the case if the tokenizer shortens text in unknown ways (normalizers
    /// other than form C, unknown tokens for runs). It is also the case if plain tokens include the white space around
    /// them.
    pub fn most_bytes_per_token(&self) -> Option<usize> {
        self.most_bytes_per_token
    }

    /// Whether `id` is a special token, which is left out of text for people.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocabulary.is_special(id)
    }

    /// Whether `id` is a token that message text never becomes: every special token, and every other added token whose
    /// text is markup, such as `<tool_call>`.
    pub fn is_markup(&self, id: u32) -> bool {
        self.vocabulary.is_markup(id)
    }

    /// Returns the texts of all tokens for which [`Tokenizer::is_markup`] holds, in the order of their ids.
    pub fn markup_texts(&self) -> Vec<String> {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        let mut markup: Vec<_> = added.iter().filter(|(id, _)| self.is_markup(**id)).collect();
        markup.sort_by_key(|(id, _)| **id);
        markup.into_iter().map(|(_, token)| token.content.clone()).collect()
    }

    /// Whether a token has the same bytes at every position except the very beginning of a text. If so, the text of a
    /// run of tokens is the run of their bytes.
    pub fn is_bytewise(&self) -> bool {
        self.vocabulary.joining != crate::vocabulary::Joining::Window
    }

    /// One past the largest id with text. A model's own vocabulary may be larger, because it is padded.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    pub(crate) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The id that ends the first of two texts in one sequence ([`Tokenizer::encode_pair`]). `None` if the tokenizer
    /// does not distinguish the two texts by token types.
    pub fn pair_separator(&self) -> Option<u32> {
        self.pair.between.last().copied().filter(|_| self.pair.typed)
    }

    /// Ids added after a single text.
    pub(crate) fn suffix(&self) -> &[u32] {
        &self.suffix
    }

    pub(crate) fn pair(&self) -> &Pair {
        &self.pair
    }
}

/// The ids around and between two texts in one sequence.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) before: Vec<u32>,
    pub(crate) between: Vec<u32>,
    pub(crate) after: Vec<u32>,
    /// Whether the second text has another token type than the first.
    typed: bool,
}

impl Pair {
    /// Reads what the post-processor adds around and between two texts. `None` if it adds nothing, or rewrites the
    /// texts' tokens.
    fn of(inner: &Inner) -> Option<Self> {
        const PROBES: (&str, &str) = ("a", "b");
        let first = inner.encode_fast(PROBES.0, false).ok()?;
        let second = inner.encode_fast(PROBES.1, false).ok()?;
        let both = inner.encode_fast(PROBES, true).ok()?;
        let (ids, first, second) = (both.get_ids(), first.get_ids(), second.get_ids());
        let find = |part: &[u32], from: usize| {
            (from..=ids.len()).find(|at| ids.get(*at..).is_some_and(|rest| rest.starts_with(part)))
        };
        let at = find(first, 0)?;
        let first_end = at.saturating_add(first.len());
        let second_at = find(second, first_end)?;
        let part = |range: std::ops::Range<usize>| ids.get(range).unwrap_or_default().to_vec();
        let after = part(second_at.saturating_add(second.len())..ids.len());
        let (before, between) = (part(0..at), part(first_end..second_at));
        let typed = both.get_type_ids().get(second_at).is_some_and(|kind| *kind != 0);
        let bare = before.is_empty() && between.is_empty() && after.is_empty();
        (!bare).then_some(Self { before, between, after, typed })
    }

    /// Puts the ids that surround one text around both.
    fn of_one(prefix: &[u32], suffix: &[u32]) -> Self {
        Self { before: prefix.to_vec(), between: Vec::new(), after: suffix.to_vec(), typed: false }
    }
}

/// Returns the ids that belong before and after a text: those that the post-processor adds. The configuration overrides
/// them for `bos` and `eos` if it sets them.
fn surroundings(inner: &Inner, config: &TokenizerConfig) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    const PROBE: &str = "a";
    let bare = inner.encode_fast(PROBE, false).map_err(TokenizerError::load)?;
    let full = inner.encode_fast(PROBE, true).map_err(TokenizerError::load)?;
    let (bare, full) = (bare.get_ids(), full.get_ids());
    let at = (0..=full.len()).find(|at| full.get(*at..).is_some_and(|rest| rest.starts_with(bare)));
    let at = at.ok_or_else(|| TokenizerError::load("its post-processor rewrites the text's own tokens"))?;
    let mut prefix = full.get(..at).unwrap_or_default().to_vec();
    let mut suffix = full.get(at.saturating_add(bare.len())..).unwrap_or_default().to_vec();
    let id = |token: &Option<String>| token.as_deref().and_then(|token| inner.token_to_id(token));
    if let (Some(add), Some(bos)) = (config.add_bos_token, id(&config.bos_token)) {
        prefix.retain(|id| *id != bos);
        if add {
            prefix.insert(0, bos);
        }
    }
    if let (Some(add), Some(eos)) = (config.add_eos_token, id(&config.eos_token)) {
        suffix.retain(|id| *id != eos);
        if add {
            suffix.push(eos);
        }
    }
    Ok((prefix, suffix))
}

/// Returns the result of `build`. A panic of the library becomes a [`TokenizerError::Load`].
fn contained<T>(build: impl FnOnce() -> Result<T, TokenizerError> + UnwindSafe) -> Result<T, TokenizerError> {
    catch_unwind(build).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it does not say why");
        Err(TokenizerError::load(format_args!("the tokenizers library gave up: {said}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_while_building_is_a_refusal() {
        let refused =
            |reason: &str| -> Result<(), _> { Err(TokenizerError::Load { reason: reason.to_owned() }) };
        assert_eq!(contained(|| Ok(1)), Ok(1));
        assert_eq!(contained::<()>(|| refused("no")), refused("no"));
        let why = "why".to_owned();
        let gave_up = refused("the tokenizers library gave up: why");
        assert_eq!(contained(|| panic!("why")), gave_up);
        assert_eq!(contained(|| panic!("{why}")), gave_up);
    }
}
