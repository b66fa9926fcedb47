//! Bounds an upstream's answer: its size, from what was requested, and the memory of the call's key for everything that
//! is kept of it. Must not know dialects or sockets.

use std::sync::Arc;

use headrace_call_api::{MemoryReservation, NoRoom};
use headrace_call_state::{NoMemory, Rejection, mib};
use headrace_catalog::OffForm;
use headrace_domain::{Code, Endpoint, Stage};
use headrace_engine_api::{AnswerBounds, AnswerMemory, AnswerMemoryFull};
use parking_lot::Mutex;

use crate::request_context::RequestContext;
use crate::state::RenderedWork;

/// An answer is cut at this multiple of the longest one that the request asks for.
const TIMES: u64 = 4;
/// Bytes of an answer that are no token's: its head, its usage, results of tools that run at the upstream.
const FIXED_BYTES: u64 = 1 << 20;
/// Bytes for each byte of the request: upstreams repeat instructions and prompts, with log-probabilities if asked for.
const BYTES_PER_REQUEST_BYTE: u64 = 64;
/// Bytes around one token: an event of its own, or its log-probability with twenty alternatives.
const BYTES_PER_TOKEN: u64 = 4 << 10;
/// The most bytes per token that are plausible throughout an answer.
const TEXT_BYTES_PER_TOKEN: u64 = 32;
/// Bytes of text that a reader counts as one token, if the upstream sends no ids.
const COUNTED_BYTES_PER_TOKEN: u64 = 4;
/// Bytes of text that are accepted beyond the longest plausible text.
const FREE_TEXT_BYTES: u64 = 16 << 10;
/// Bytes of one vector in JSON (`VECTOR_BYTES`), and the least bytes of the request that one text takes
/// (`LEAST_TEXT_BYTES`).
const VECTOR_BYTES: u64 = 256 << 10;
const LEAST_TEXT_BYTES: u64 = 4;
/// Bytes of text per token that the call's memory estimate already covers.
const ESTIMATED_TEXT_BYTES: u64 = 16;
/// Memory for a text that is kept to the end of its answer, as a multiple of its bytes: in the encoder, as JSON, for
/// the store.
const TEXT_COPIES: u64 = 4;
/// Memory for text is reserved in steps of this size.
const TEXT_STEP_BYTES: u64 = 64 << 10;

/// The bounds of one answer.
pub(crate) struct AnswerAllowance {
    account: Arc<AnswerAccount>,
    most_bytes: u64,
    /// An answer with more tokens than this is cut. The tokens are counted as readers count them.
    most_tokens: u64,
    /// Bytes of text so far, and how many of them have reserved memory. `None` if no text is kept.
    text: Option<(u64, u64)>,
}

/// The memory reserved for one answer.
#[derive(Debug)]
struct AnswerAccount {
    reserved: Arc<MemoryReservation>,
    /// Copies of what the upstream's reader keeps.
    copies: u64,
    state: Mutex<AccountState>,
}

#[derive(Debug, Default)]
struct AccountState {
    sizes: KeptBytes,
    /// A part of the answer goes to the client, so its memory stays reserved until the call ends.
    is_calls: bool,
    full: Option<NoRoom>,
}

/// Bytes that are kept.
#[derive(Debug, Default, Clone, Copy)]
struct KeptBytes {
    raw: u64,
    text: u64,
}

impl AnswerAllowance {
    /// The bounds of an answer to `work`. With `as_is` it goes out as it comes, otherwise it is read and written anew.
    pub(crate) fn new(work: &RenderedWork, context: &RequestContext, as_is: bool) -> Self {
        let (stream, choices) = (work.call.stream, u64::from(work.choices()));
        let (tokens, request) = (work.most_output_tokens(), work.body_bytes as u64);
        let vectors = match work.call.endpoint {
            Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score => {
                VECTOR_BYTES.saturating_mul(1 + request / LEAST_TEXT_BYTES)
            }
            Endpoint::ChatCompletions | Endpoint::Completions | Endpoint::Messages | Endpoint::Responses => 0,
        };
        let asked = FIXED_BYTES
            .saturating_add(BYTES_PER_REQUEST_BYTE.saturating_mul(request).saturating_mul(choices))
            .saturating_add(BYTES_PER_TOKEN.saturating_mul(tokens))
            .saturating_add(vectors);
        let text = TIMES.saturating_mul(TEXT_BYTES_PER_TOKEN).saturating_mul(tokens);
        let is_kept = !stream
            || work.call.endpoint == Endpoint::Responses
            || context.turns.is_some()
            || work.rendered.messages().is_some_and(|messages| messages.may_resume);
        // A whole answer that is read has six: itself, its texts, the events, the encoder's copy, the JSON, the stored
        // one. An event of a stream is in a buffer of twice its size, and is read and written before the next one.
        let copies = match (as_is, stream) {
            (true, false) => 1,
            (true, true) => 2,
            (false, false) => 6,
            (false, true) => 3,
        };
        // The answer of a batch request is kept, assembled, and handed to the store. An answer that is checked is read
        // into events, and its text is kept.
        let of_batch = if context.batch.is_some() { 3 } else { 0 };
        let of_judged = if work.model.policy.off_form == OffForm::Pass { 0 } else { 2 };
        let copies = copies + of_batch + of_judged;
        let account =
            AnswerAccount { reserved: Arc::clone(&work.terms.memory), copies, state: Mutex::default() };
        Self {
            account: Arc::new(account),
            most_bytes: TIMES.saturating_mul(asked),
            most_tokens: text.saturating_add(FREE_TEXT_BYTES) / COUNTED_BYTES_PER_TOKEN,
            text: (is_kept && !as_is).then(|| (0, ESTIMATED_TEXT_BYTES.saturating_mul(tokens))),
        }
    }

    /// The bounds for the upstream's reader.
    pub(crate) fn bounds(&self) -> AnswerBounds {
        let memory: Arc<dyn AnswerMemory> = Arc::clone(&self.account) as _;
        AnswerBounds { memory: Some(memory), ..AnswerBounds::up_to(self.most_bytes) }
    }

    /// Reserves memory to read a whole answer of `bytes` if a stream was requested: it is written anew, as a stream.
    ///
    /// # Errors
    /// The memory of the key is full.
    pub(super) fn read_whole(&self, bytes: usize) -> Result<(), Rejection> {
        let sizes = |KeptBytes { raw, text }| KeptBytes { raw, text: text.saturating_add(bytes as u64) };
        self.account.take(sizes).map_err(|_| self.rejection())
    }

    /// Checks an answer that has `tokens` so far. `text` bytes of it have just been read.
    ///
    /// # Errors
    /// The answer is far longer than the request allows, or its text does not fit into the memory of its key.
    pub(super) fn check(&mut self, tokens: u64, text: usize) -> Result<(), Rejection> {
        if tokens > self.most_tokens {
            return Err(too_long(tokens, self.most_tokens));
        }
        if let Some((read, paid)) = &mut self.text {
            *read = read.saturating_add(text as u64);
            if *read > *paid {
                let next = read.checked_next_multiple_of(TEXT_STEP_BYTES).unwrap_or(*read);
                let more = next - std::mem::replace(paid, next);
                let sizes = |KeptBytes { raw, text }| KeptBytes { raw, text: text.saturating_add(more) };
                self.account.take(sizes).map_err(|_| self.rejection())?;
            }
        }
        Ok(())
    }

    /// Marks that a part of the answer goes to the client. From then on its memory is not given back until the call
    /// ends.
    pub(super) fn is_passed_on(&self) {
        self.account.state.lock().is_calls = true;
    }

    /// The rejection if there was no memory.
    pub(super) fn rejection(&self) -> Rejection {
        let AnswerAccount { reserved, state, .. } = &*self.account;
        let full = state.lock().full.clone();
        match full.map(|no_room| NoMemory::of(reserved, no_room)) {
            Some(NoMemory::Never { needed, bound }) => too_large(needed, bound),
            Some(full) => full.at(Stage::Upstream),
            None => Rejection::new(Code::MemoryFull, "The memory for calls is full. Try again.")
                .at(Stage::Upstream),
        }
    }
}

impl AnswerAccount {
    /// Reserves memory for the changed sizes. On failure the sizes are unchanged.
    fn take(&self, change: impl FnOnce(KeptBytes) -> KeptBytes) -> Result<(), AnswerMemoryFull> {
        let mut state = self.state.lock();
        let sizes = change(state.sizes);
        let more = self.bytes(sizes).saturating_sub(self.bytes(state.sizes));
        if let Err(no_room) = self.reserved.add(more) {
            state.full = Some(no_room);
            return Err(AnswerMemoryFull);
        }
        state.sizes = sizes;
        Ok(())
    }

    /// The memory to reserve for these sizes, in bytes.
    fn bytes(&self, sizes: KeptBytes) -> u64 {
        let raw = sizes.raw.saturating_sub(AnswerBounds::FREE_BYTES as u64);
        raw.saturating_mul(self.copies).saturating_add(sizes.text.saturating_mul(TEXT_COPIES))
    }
}

impl AnswerMemory for AnswerAccount {
    fn reserve(&self, bytes: u64) -> Result<(), AnswerMemoryFull> {
        self.take(|KeptBytes { raw, text }| KeptBytes { raw: raw.max(bytes), text })
    }
}

impl Drop for AnswerAccount {
    fn drop(&mut self) {
        let state = std::mem::take(self.state.get_mut());
        if !state.is_calls {
            self.reserved.give_back(self.bytes(state.sizes));
        }
    }
}

fn too_long(tokens: u64, most: u64) -> Rejection {
    let message = format!(
        "The upstream of the model ignored the bound on its answer: the answer was cut when its text had the length of {tokens} \
         tokens. At most {most} are taken, {TIMES} times the longest answer to the request. What was not delivered is not charged."
    );
    Rejection::new(Code::UpstreamAnswerTooLarge, message)
}

fn too_large(needed: u64, bound: u64) -> Rejection {
    let message = format!(
        "The answer of the model's upstream takes {} of memory, and no more than {} are ever given to the calls of a key \
         (`gateway.max_key_memory`). Ask for fewer or shorter answers, or stream. What was not delivered is not charged.",
        mib(needed),
        mib(bound)
    );
    Rejection::new(Code::UpstreamAnswerTooLarge, message)
}
