//! The generated-id cache: token ids of finished answers, kept for a while by the conversation that they belong to.
//! If a later prompt repeats an answer, it reuses the generated ids, which the prefix cache holds. Encoding the
//! answer's text anew could give other ids. Generated ids replace only ids that stand for the same text. Stores ids,
//! no texts. Must not know templates, or what is cached where.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use headrace_domain::{CacheSalt, UnixNanos};
use headrace_tokenizer::Tokenizer;
use parking_lot::Mutex;

/// The most bytes that are kept, for all tenants and for one tenant.
const MOST_BYTES: usize = 64 << 20;
const MOST_BYTES_OF_ONE: usize = 8 << 20;
/// The most answers that are kept.
const MOST_ANSWERS: usize = 65_536;
/// The most answers that are kept for one prompt.
const MOST_PER_PROMPT: usize = 4;
/// The longest answer that is kept, in tokens.
pub const MOST_ANSWER_TOKENS: usize = 65_536;
/// The most tokens after the last markup token of a prompt whose answers are kept. Typically `assistant`, a line
/// break and perhaps the beginning of the answer.
const MOST_TAIL_TOKENS: usize = 64;
/// How long an answer is kept, in nanoseconds since its call arrived.
const KEPT_FOR_NS: u64 = 3_600_000_000_000;
/// Approximate bytes that an answer takes besides its ids.
const EACH_BYTES: usize = 192;

/// The cache, shared by all calls.
#[derive(Debug, Default)]
pub struct GeneratedIdCache(Mutex<CacheState>);

#[derive(Debug, Default)]
struct CacheState {
    tenants: HashMap<CacheSalt, TenantAnswers, RandomState>,
    /// All answers in order of arrival. Some may be gone already.
    order: VecDeque<(CacheSalt, AnswerKey)>,
    bytes: usize,
    next: u64,
}

/// The answers of one tenant.
#[derive(Debug, Default)]
struct TenantAnswers {
    answers: HashMap<u64, Vec<CachedAnswer>, RandomState>,
    order: VecDeque<AnswerKey>,
    bytes: usize,
}

/// Identifies a kept answer: a hash of what precedes it, and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AnswerKey {
    before: u64,
    number: u64,
}

#[derive(Debug)]
struct CachedAnswer {
    number: u64,
    ids: Arc<[u32]>,
    at: UnixNanos,
}

impl CachedAnswer {
    fn bytes(&self) -> usize {
        EACH_BYTES + size_of_val(&*self.ids)
    }

    fn is_over(&self, now: UnixNanos) -> bool {
        now.get().saturating_sub(self.at.get()) > KEPT_FOR_NS
    }
}

/// A prompt in which known answers have been replaced by their generated ids.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ReusedPrompt {
    /// The changed prompt. `None` if nothing was replaced.
    pub ids: Option<Vec<u32>>,
    /// Number of answers that were replaced by their generated ids.
    pub answers: u32,
    /// Number of ids that these answers have.
    pub tokens: u32,
    /// The position under which the answer to this prompt can be kept. `None` if it cannot be kept.
    pub end: Option<AnswerStart>,
}

/// The position at which the answer to a prompt begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerStart {
    /// Hash of everything up to and including the last markup token.
    before: u64,
    /// The ids after that token.
    tail: Vec<u32>,
}

/// Keeps the answers of one call.
#[derive(Debug, Clone)]
pub struct AnswerRecorder {
    kept: Arc<GeneratedIdCache>,
    salt: CacheSalt,
    end: AnswerStart,
}

impl AnswerRecorder {
    /// A keeper for a call with this salt whose prompt ends at `end`.
    pub const fn new(kept: Arc<GeneratedIdCache>, salt: CacheSalt, end: AnswerStart) -> Self {
        Self { kept, salt, end }
    }

    /// Keeps the ids of a finished answer.
    pub fn keep(&self, answer: &[u32], now: UnixNanos) {
        self.kept.put(&self.salt, &self.end, answer, now);
    }
}

impl GeneratedIdCache {
    /// Keeps the ids of an answer to a prompt that ended at `end`. Evicts the oldest answers if there is no space.
    pub fn put(&self, salt: &CacheSalt, end: &AnswerStart, answer: &[u32], now: UnixNanos) {
        if answer.is_empty() || answer.len() > MOST_ANSWER_TOKENS {
            return;
        }
        let ids: Arc<[u32]> = end.tail.iter().chain(answer).copied().collect();
        self.0.lock().put(*salt, end.before, ids, now);
    }

    /// Replaces the answers in a prompt by their generated ids, wherever both stand for the same text. `said` is the
    /// text of the prompt, if the caller has it. Reading it is faster than reading the text of each token.
    pub fn continued(
        &self,
        salt: &CacheSalt,
        tokenizer: &Tokenizer,
        (prompt, said): (&[u32], Option<&str>),
        now: UnixNanos,
    ) -> ReusedPrompt {
        if !tokenizer.is_bytewise() {
            return ReusedPrompt::default();
        }
        let knows_any = self.0.lock().tenants.contains_key(salt);
        let mut walk = PromptWalk::new(salt, tokenizer, prompt, said);
        while walk.step() {
            if knows_any && walk.is_behind_markup() {
                let known = self.0.lock().find(salt, walk.hash.value(), now);
                walk.go_on_with(&known);
            }
        }
        walk.end()
    }
}

impl CacheState {
    fn put(&mut self, salt: CacheSalt, before: u64, ids: Arc<[u32]>, now: UnixNanos) {
        let place = AnswerKey { before, number: self.next };
        self.next += 1;
        let kept = CachedAnswer { number: place.number, ids, at: now };
        let bytes = kept.bytes();
        let tenant = self.tenants.entry(salt).or_default();
        let same = tenant.answers.entry(before).or_default();
        let again = same.iter().position(|other| other.ids == kept.ids);
        let gone = match again {
            Some(at) => Some(same.remove(at)),
            None if same.len() >= MOST_PER_PROMPT => Some(same.remove(0)),
            None => None,
        };
        same.push(kept);
        let gone = gone.map_or(0, |gone| gone.bytes());
        tenant.bytes = (tenant.bytes + bytes).saturating_sub(gone);
        self.bytes = (self.bytes + bytes).saturating_sub(gone);
        tenant.order.push_back(place);
        self.order.push_back((salt, place));
        self.make_room(&salt, now);
    }

    /// Evicts the oldest answers of this tenant while it exceeds its bound. Then evicts answers of all tenants that
    /// have expired, or the oldest ones while a common bound is exceeded.
    fn make_room(&mut self, salt: &CacheSalt, now: UnixNanos) {
        while let Some(tenant) = self.tenants.get(salt).filter(|tenant| tenant.bytes > MOST_BYTES_OF_ONE) {
            let Some(oldest) = tenant.order.front().copied() else { break };
            self.forget(salt, oldest);
        }
        while let Some((salt, oldest)) = self.order.front().copied() {
            let kept = self.kept(&salt, oldest);
            let is_over = kept.is_none_or(|kept| kept.is_over(now));
            if !is_over && self.bytes <= MOST_BYTES && self.order.len() <= MOST_ANSWERS {
                return;
            }
            self.order.pop_front();
            self.forget(&salt, oldest);
        }
    }

    fn kept(&self, salt: &CacheSalt, place: AnswerKey) -> Option<&CachedAnswer> {
        let same = self.tenants.get(salt)?.answers.get(&place.before)?;
        same.iter().find(|kept| kept.number == place.number)
    }

    fn forget(&mut self, salt: &CacheSalt, place: AnswerKey) {
        let Some(tenant) = self.tenants.get_mut(salt) else { return };
        // If this is the oldest answer of all, it is also its tenant's oldest.
        if tenant.order.front() == Some(&place) {
            tenant.order.pop_front();
        }
        if let Some(same) = tenant.answers.get_mut(&place.before) {
            if let Some(at) = same.iter().position(|kept| kept.number == place.number) {
                let bytes = same.remove(at).bytes();
                tenant.bytes = tenant.bytes.saturating_sub(bytes);
                self.bytes = self.bytes.saturating_sub(bytes);
            }
            if same.is_empty() {
                tenant.answers.remove(&place.before);
            }
        }
        if tenant.answers.is_empty() {
            self.tenants.remove(salt);
        }
    }

    fn find(&self, salt: &CacheSalt, before: u64, now: UnixNanos) -> Vec<Arc<[u32]>> {
        let same = self.tenants.get(salt).and_then(|tenant| tenant.answers.get(&before));
        let known = same.into_iter().flatten().filter(|kept| !kept.is_over(now));
        known.map(|kept| Arc::clone(&kept.ids)).collect()
    }
}

/// Reads a prompt from its beginning to its end.
struct PromptWalk<'a> {
    tokenizer: &'a Tokenizer,
    prompt: &'a [u32],
    /// Number of ids of the prompt that have been read.
    at: usize,
    /// Text of the ids that have not been read yet, if it is known.
    rest: Option<&'a [u8]>,
    hash: TextHash,
    /// The new prompt so far. `None` as long as nothing was replaced.
    other: Option<Vec<u32>>,
    /// State after the last markup token: the hash, and the number of ids up to there.
    markup: Option<(u64, usize)>,
    answers: u32,
    tokens: u32,
}

impl<'a> PromptWalk<'a> {
    fn new(salt: &CacheSalt, tokenizer: &'a Tokenizer, prompt: &'a [u32], said: Option<&'a str>) -> Self {
        let (hash, rest) = (TextHash::of(salt), said.map(str::as_bytes));
        Self { tokenizer, prompt, at: 0, rest, hash, other: None, markup: None, answers: 0, tokens: 0 }
    }

    /// Reads on, at most to just after the next markup token. Returns `false` at the end of the prompt.
    fn step(&mut self) -> bool {
        self.read_run() || self.read_one()
    }

    /// Reads to just after the next markup token, or to the end. Succeeds only if the known text continues with
    /// exactly the texts of these tokens.
    fn read_run(&mut self) -> bool {
        // If it does not, for example if the tokenizer composes characters, the rest of the prompt is read token by
        // token.
        let Some(text) = self.rest.take() else { return false };
        let (tokenizer, ids) = (self.tokenizer, self.prompt.get(self.at..).unwrap_or(&[]));
        let (mut bytes, mut markup) = (0, None);
        let mut count = 0;
        for id in ids {
            bytes += match tokenizer.short_length(*id) {
                0 => match self::text(tokenizer, *id) {
                    Some(bytes) => bytes.len(),
                    None => {
                        markup = Some(*id);
                        break;
                    }
                },
                length => length,
            };
            count += 1;
        }
        let Some((run, rest)) = text.split_at_checked(bytes) else { return false };
        let spelt = markup.map_or(Some(&[][..]), |id| tokenizer.token_bytes(id));
        let Some(rest) = spelt.and_then(|spelt| rest.strip_prefix(spelt)) else { return false };
        if count == 0 && markup.is_none() || markup.is_none() && !rest.is_empty() {
            return false;
        }
        self.rest = Some(rest);
        let count = count + usize::from(markup.is_some());
        if let Some(other) = &mut self.other {
            other.extend(ids.iter().take(count));
        }
        self.at += count;
        self.hash.bytes(run);
        if let Some(id) = markup {
            self.take_markup(id);
        }
        true
    }

    /// Reads one id.
    fn read_one(&mut self) -> bool {
        let Some(id) = self.prompt.get(self.at).copied() else { return false };
        self.at += 1;
        if let Some(other) = &mut self.other {
            other.push(id);
        }
        self.take(id);
        true
    }

    fn take(&mut self, id: u32) {
        if let Some((word, bytes)) = self.tokenizer.short_text(id) {
            return self.hash.word(word, bytes);
        }
        match text(self.tokenizer, id) {
            Some(bytes) => self.hash.bytes(bytes),
            None => self.take_markup(id),
        }
    }

    fn take_markup(&mut self, id: u32) {
        self.hash.markup(id);
        let ids = self.other.as_ref().map_or(self.at, Vec::len);
        self.markup = Some((self.hash.value(), ids));
    }

    fn is_behind_markup(&self) -> bool {
        let ids = self.other.as_ref().map_or(self.at, Vec::len);
        self.markup.is_some_and(|(_, behind)| behind == ids)
    }

    /// Continues with the known answer that matches most of what follows, as far as both match.
    fn go_on_with(&mut self, known: &[Arc<[u32]>]) {
        let rest = self.prompt.get(self.at..).unwrap_or(&[]);
        let said = known.iter().map(|ids| (ids, in_common(self.tokenizer, ids, rest)));
        // If several match equally far, `max_by_key` takes the last one.
        let Some((ids, (own, said))) = said.max_by_key(|(_, (_, said))| *said) else { return };
        let (Some(own), Some(read)) = (ids.get(..own), rest.get(..said)) else { return };
        if own == read {
            return;
        }
        let other = self.other.get_or_insert_with(|| self.prompt.iter().take(self.at).copied().collect());
        let before = other.len();
        other.extend_from_slice(own);
        self.at += said;
        self.rest = self.rest.and_then(|rest| {
            let length = |id: &u32| self.tokenizer.token_bytes(*id).map_or(0, <[u8]>::len);
            rest.get(own.iter().map(length).sum()..)
        });
        self.answers += 1;
        self.tokens = self.tokens.saturating_add(u32::try_from(own.len()).unwrap_or(u32::MAX));
        for (index, id) in own.iter().enumerate() {
            match text(self.tokenizer, *id) {
                Some(bytes) => self.hash.bytes(bytes),
                None => {
                    self.hash.markup(*id);
                    self.markup = Some((self.hash.value(), before + index + 1));
                }
            }
        }
    }

    fn end(self) -> ReusedPrompt {
        let Self { prompt, other, markup, answers, tokens, .. } = self;
        let ids = other.as_deref().unwrap_or(prompt);
        let tail = markup.and_then(|(before, behind)| Some((before, ids.get(behind..)?)));
        let end = tail
            .filter(|(_, tail)| tail.len() <= MOST_TAIL_TOKENS)
            .map(|(before, tail)| AnswerStart { before, tail: tail.to_vec() });
        ReusedPrompt { ids: other, answers, tokens, end }
    }
}

/// The bytes of a token that is a piece of text. `None` for markup, and for ids without bytes.
fn text(tokenizer: &Tokenizer, id: u32) -> Option<&[u8]> {
    if tokenizer.is_markup(id) { None } else { tokenizer.token_bytes(id) }
}

/// The longest matching prefixes that end at a token boundary in both lists. Returns the number of ids in each
/// prefix.
fn in_common(tokenizer: &Tokenizer, one: &[u32], other: &[u32]) -> (usize, usize) {
    let (mut at, mut common) = ((0, 0), (0, 0));
    let mut left: (&[u8], &[u8]) = (&[], &[]);
    loop {
        if left.0.is_empty() && left.1.is_empty() {
            common = at;
            if let (Some(own), Some(its)) = (one.get(at.0), other.get(at.1))
                && own == its
            {
                at = (at.0 + 1, at.1 + 1);
                continue;
            }
        }
        if left.0.is_empty() {
            let Some(bytes) = one.get(at.0).and_then(|id| text(tokenizer, *id)) else { return common };
            (left.0, at.0) = (bytes, at.0 + 1);
        }
        if left.1.is_empty() {
            let Some(bytes) = other.get(at.1).and_then(|id| text(tokenizer, *id)) else { return common };
            (left.1, at.1) = (bytes, at.1 + 1);
        }
        let both = left.0.len().min(left.1.len());
        let ((own, own_rest), (its, its_rest)) = (left.0.split_at(both), left.1.split_at(both));
        if own != its {
            return common;
        }
        left = (own_rest, its_rest);
    }
}

/// A hash of the text of ids, independent of how it is cut into tokens. Markup is hashed by its id. The hash only
/// finds candidates, which are then compared. It takes eight bytes at a time, because every token of every prompt
/// passes through it.
#[derive(Debug, Clone, Copy)]
struct TextHash {
    state: u64,
    /// Bytes that are not in the state yet, the first one lowest.
    word: u64,
    /// The number of these bytes, fewer than eight.
    bytes: usize,
}

/// Odd, with as many ones as zeros: the fraction of the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl TextHash {
    fn of(salt: &CacheSalt) -> Self {
        let mut hash = Self { state: 0xcbf2_9ce4_8422_2325, word: 0, bytes: 0 };
        hash.bytes(&salt.to_bytes());
        hash
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(8) {
            self.word(word_of(piece), piece.len());
        }
    }

    /// Adds `count` bytes, at most eight. The first byte is the lowest of `new`, and the bytes above them are zero.
    fn word(&mut self, new: u64, count: usize) {
        // The bytes of `word` above `self.bytes` are zero, so the new bytes can be put there.
        self.word |= new << (8 * self.bytes);
        let bytes = self.bytes + count;
        if bytes < 8 {
            self.bytes = bytes;
            return;
        }
        self.mix(self.word);
        // The bytes that did not fit.
        self.word = if self.bytes == 0 { 0 } else { new >> (8 * (8 - self.bytes)) };
        self.bytes = bytes - 8;
    }

    /// Adds a markup token, so that it cannot equal any bytes.
    fn markup(&mut self, id: u32) {
        // The number of pending bytes distinguishes a short word from one that ends in zeros.
        let (word, bytes) = (std::mem::take(&mut self.word), std::mem::take(&mut self.bytes));
        self.mix(word);
        self.mix(u64::from(id) << 8 | 1 << 40 | bytes as u64);
    }

    fn mix(&mut self, word: u64) {
        self.state = (self.state.rotate_left(29) ^ word).wrapping_mul(MULTIPLIER);
    }

    /// The hash directly after a markup token. Bytes that came since are not included.
    fn value(self) -> u64 {
        self.state ^ (self.state >> 32)
    }
}

/// At most eight bytes as a number, the first one lowest.
fn word_of(piece: &[u8]) -> u64 {
    if let Some(whole) = piece.first_chunk() {
        return u64::from_le_bytes(*whole);
    }
    let (mut word, mut rest, mut shift) = (0, piece, 0);
    if let Some((four, behind)) = rest.split_first_chunk() {
        (word, rest, shift) = (u64::from(u32::from_le_bytes(*four)), behind, 32);
    }
    if let Some((two, behind)) = rest.split_first_chunk() {
        word |= u64::from(u16::from_le_bytes(*two)) << shift;
        (rest, shift) = (behind, shift + 16);
    }
    rest.first().map_or(word, |last| word | u64::from(*last) << shift)
}

#[cfg(test)]
mod tests;
