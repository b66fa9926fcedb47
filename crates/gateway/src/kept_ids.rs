//! The ids of finished answers, kept for a while by the conversation that they were given in: where a later prompt repeats an answer, it
//! goes on with the ids that were generated, which the cache has, and not with those that its text would become. Nothing is put in the place
//! of another text. Keeps ids, no texts; must not know templates, or what is cached where.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use headrace_domain::{CacheSalt, UnixNanos};
use headrace_tokenizer::Tokenizer;
use parking_lot::Mutex;

/// The most bytes that are kept, of all tenants and of one.
const MOST_BYTES: usize = 64 << 20;
const MOST_BYTES_OF_ONE: usize = 8 << 20;
/// The most answers that are kept.
const MOST_ANSWERS: usize = 65_536;
/// Answers to one and the same prompt.
const MOST_PER_PROMPT: usize = 4;
/// The longest answer that is kept, in tokens.
pub(crate) const MOST_ANSWER_TOKENS: usize = 65_536;
/// The most tokens that a prompt has behind its last token of markup, of one whose answers are kept: `assistant`, a line's end, perhaps
/// the beginning of the answer.
const MOST_TAIL_TOKENS: usize = 64;
/// For how long an answer is kept, in nanoseconds since its call came.
const KEPT_FOR_NS: u64 = 3_600_000_000_000;
/// What one takes beside its ids, near enough.
const EACH_BYTES: usize = 192;

/// See the top of the file.
#[derive(Debug, Default)]
pub(crate) struct KeptIds(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    tenants: HashMap<CacheSalt, Shelf, RandomState>,
    /// All answers in the order in which they came; some may be gone already.
    order: VecDeque<(CacheSalt, Place)>,
    bytes: usize,
    next: u64,
}

/// What is kept of one tenant's.
#[derive(Debug, Default)]
struct Shelf {
    answers: HashMap<u64, Vec<Kept>, RandomState>,
    order: VecDeque<Place>,
    bytes: usize,
}

/// Where an answer is kept: by what stands before it, and which one it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    before: u64,
    number: u64,
}

#[derive(Debug)]
struct Kept {
    number: u64,
    ids: Arc<[u32]>,
    at: UnixNanos,
}

impl Kept {
    fn bytes(&self) -> usize {
        EACH_BYTES + size_of_val(&*self.ids)
    }

    fn is_over(&self, now: UnixNanos) -> bool {
        now.get().saturating_sub(self.at.get()) > KEPT_FOR_NS
    }
}

/// A prompt with the ids of the answers in it that are known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Continued {
    /// The prompt, where it is another than the one that was given.
    pub(crate) ids: Option<Vec<u32>>,
    /// How many answers in it go on with the ids that were generated.
    pub(crate) answers: u32,
    /// How many ids they have.
    pub(crate) tokens: u32,
    /// Where its own answer can be kept.
    pub(crate) end: Option<End>,
}

/// Where the answer to a prompt begins, for whoever keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    /// A hash of all up to the last token of markup.
    before: u64,
    /// The ids behind that.
    tail: Vec<u32>,
}

/// Where the answers of one call are kept.
#[derive(Debug, Clone)]
pub(crate) struct Keeper {
    kept: Arc<KeptIds>,
    salt: CacheSalt,
    end: End,
}

impl Keeper {
    /// Of a call with such a salt, whose prompt ends so.
    pub(crate) const fn new(kept: Arc<KeptIds>, salt: CacheSalt, end: End) -> Self {
        Self { kept, salt, end }
    }

    /// Keeps the ids of an answer that has ended.
    pub(crate) fn keep(&self, answer: &[u32], now: UnixNanos) {
        self.kept.put(&self.salt, &self.end, answer, now);
    }
}

impl KeptIds {
    /// Keeps the ids of an answer to a prompt that ended so; the oldest ones make room for it.
    pub(crate) fn put(&self, salt: &CacheSalt, end: &End, answer: &[u32], now: UnixNanos) {
        if answer.is_empty() || answer.len() > MOST_ANSWER_TOKENS {
            return;
        }
        let ids: Arc<[u32]> = end.tail.iter().chain(answer).copied().collect();
        self.0.lock().put(*salt, end.before, ids, now);
    }

    /// The prompt with the ids of answers that were generated, wherever their text is what it says. `said` is the prompt's text, where
    /// that is at hand: it is faster to read than that of its tokens, one by one.
    pub(crate) fn continued(
        &self,
        salt: &CacheSalt,
        tokenizer: &Tokenizer,
        (prompt, said): (&[u32], Option<&str>),
        now: UnixNanos,
    ) -> Continued {
        if !tokenizer.is_bytewise() {
            return Continued::default();
        }
        let knows_any = self.0.lock().tenants.contains_key(salt);
        let mut walk = Walk::new(salt, tokenizer, prompt, said);
        while walk.step() {
            if knows_any && walk.is_behind_markup() {
                let known = self.0.lock().find(salt, walk.hash.value(), now);
                walk.go_on_with(&known);
            }
        }
        walk.end()
    }
}

impl Inner {
    fn put(&mut self, salt: CacheSalt, before: u64, ids: Arc<[u32]>, now: UnixNanos) {
        let place = Place { before, number: self.next };
        self.next += 1;
        let kept = Kept { number: place.number, ids, at: now };
        let bytes = kept.bytes();
        let shelf = self.tenants.entry(salt).or_default();
        let same = shelf.answers.entry(before).or_default();
        let again = same.iter().position(|other| other.ids == kept.ids);
        let gone = match again {
            Some(at) => Some(same.remove(at)),
            None if same.len() >= MOST_PER_PROMPT => Some(same.remove(0)),
            None => None,
        };
        same.push(kept);
        let gone = gone.map_or(0, |gone| gone.bytes());
        shelf.bytes = (shelf.bytes + bytes).saturating_sub(gone);
        self.bytes = (self.bytes + bytes).saturating_sub(gone);
        shelf.order.push_back(place);
        self.order.push_back((salt, place));
        self.make_room(&salt, now);
    }

    /// Forgets what is over, and the oldest of what is too much: of this tenant, then of all.
    fn make_room(&mut self, salt: &CacheSalt, now: UnixNanos) {
        while let Some(shelf) = self.tenants.get(salt).filter(|shelf| shelf.bytes > MOST_BYTES_OF_ONE) {
            let Some(oldest) = shelf.order.front().copied() else { break };
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

    fn kept(&self, salt: &CacheSalt, place: Place) -> Option<&Kept> {
        let same = self.tenants.get(salt)?.answers.get(&place.before)?;
        same.iter().find(|kept| kept.number == place.number)
    }

    fn forget(&mut self, salt: &CacheSalt, place: Place) {
        let Some(shelf) = self.tenants.get_mut(salt) else { return };
        // The oldest one of all is the oldest one of its tenant.
        if shelf.order.front() == Some(&place) {
            shelf.order.pop_front();
        }
        if let Some(same) = shelf.answers.get_mut(&place.before) {
            if let Some(at) = same.iter().position(|kept| kept.number == place.number) {
                let bytes = same.remove(at).bytes();
                shelf.bytes = shelf.bytes.saturating_sub(bytes);
                self.bytes = self.bytes.saturating_sub(bytes);
            }
            if same.is_empty() {
                shelf.answers.remove(&place.before);
            }
        }
        if shelf.answers.is_empty() {
            self.tenants.remove(salt);
        }
    }

    fn find(&self, salt: &CacheSalt, before: u64, now: UnixNanos) -> Vec<Arc<[u32]>> {
        let same = self.tenants.get(salt).and_then(|shelf| shelf.answers.get(&before));
        let known = same.into_iter().flatten().filter(|kept| !kept.is_over(now));
        known.map(|kept| Arc::clone(&kept.ids)).collect()
    }
}

/// A prompt that is read from its beginning to its end.
struct Walk<'a> {
    tokenizer: &'a Tokenizer,
    prompt: &'a [u32],
    /// Ids of it that were read.
    at: usize,
    /// What the others say, where that is known.
    rest: Option<&'a [u8]>,
    hash: Hash,
    /// What goes on instead of those, once it is something else.
    other: Option<Vec<u32>>,
    /// Behind the last token of markup: the hash there, and how many ids there are up to there.
    markup: Option<(u64, usize)>,
    answers: u32,
    tokens: u32,
}

impl<'a> Walk<'a> {
    fn new(salt: &CacheSalt, tokenizer: &'a Tokenizer, prompt: &'a [u32], said: Option<&'a str>) -> Self {
        let (hash, rest) = (Hash::of(salt), said.map(str::as_bytes));
        Self { tokenizer, prompt, at: 0, rest, hash, other: None, markup: None, answers: 0, tokens: 0 }
    }

    /// Reads on, no further than behind the next token of markup; whether there was anything.
    fn step(&mut self) -> bool {
        self.read_run() || self.read_one()
    }

    /// Reads to behind the next token of markup, or to the end, if all of that is in the text as its tokens have it.
    fn read_run(&mut self) -> bool {
        // Where it is not, as where the tokenizer composes characters, the rest is read token by token.
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

    /// Goes on with the one of these answers that says most of what follows, as far as it says that.
    fn go_on_with(&mut self, known: &[Arc<[u32]>]) {
        let rest = self.prompt.get(self.at..).unwrap_or(&[]);
        let said = known.iter().map(|ids| (ids, in_common(self.tokenizer, ids, rest)));
        // Of several that say as much, the last one.
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

    fn end(self) -> Continued {
        let Self { prompt, other, markup, answers, tokens, .. } = self;
        let ids = other.as_deref().unwrap_or(prompt);
        let tail = markup.and_then(|(before, behind)| Some((before, ids.get(behind..)?)));
        let end = tail
            .filter(|(_, tail)| tail.len() <= MOST_TAIL_TOKENS)
            .map(|(before, tail)| End { before, tail: tail.to_vec() });
        Continued { ids: other, answers, tokens, end }
    }
}

/// The bytes of a token that is a piece of a text; `None`: it is markup, and stands for itself alone.
fn text(tokenizer: &Tokenizer, id: u32) -> Option<&[u8]> {
    if tokenizer.is_markup(id) { None } else { tokenizer.token_bytes(id) }
}

/// How many ids of both, from the first on, say the same and end at the same place.
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

/// A hash of what ids say, however it is cut into tokens: of bytes, and of markup by its id. It only finds where to look; what is put in
/// the place of something is compared with it. It takes eight bytes at a time, as every token of every prompt goes through it.
#[derive(Debug, Clone, Copy)]
struct Hash {
    state: u64,
    /// Bytes that are not in the state yet, the first one lowest.
    word: u64,
    /// How many those are: fewer than eight.
    bytes: usize,
}

/// Odd, and with as many ones as zeros: the golden ratio's fraction.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hash {
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

    /// So many bytes, at most eight, the first one lowest in the word and zeros above them.
    fn word(&mut self, new: u64, count: usize) {
        // Zeros stand above the bytes of a word, so that those that come are put there.
        self.word |= new << (8 * self.bytes);
        let bytes = self.bytes + count;
        if bytes < 8 {
            self.bytes = bytes;
            return;
        }
        self.mix(self.word);
        // What did not fit.
        self.word = if self.bytes == 0 { 0 } else { new >> (8 * (8 - self.bytes)) };
        self.bytes = bytes - 8;
    }

    /// Apart from any byte.
    fn markup(&mut self, id: u32) {
        // How many bytes the word has tells it from one that ends in zeros.
        let (word, bytes) = (std::mem::take(&mut self.word), std::mem::take(&mut self.bytes));
        self.mix(word);
        self.mix(u64::from(id) << 8 | 1 << 40 | bytes as u64);
    }

    fn mix(&mut self, word: u64) {
        self.state = (self.state.rotate_left(29) ^ word).wrapping_mul(MULTIPLIER);
    }

    /// Right behind markup: bytes that came since are not in it.
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
