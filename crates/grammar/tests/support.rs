//! Shared by the tests of answers: the demo model's vocabulary, and random walks within the masks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code,
    reason = "a test fails by panicking; each binary uses a part"
)]

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use headrace_checkpoint::Checkpoint;
use headrace_domain::{JsonForm, ResponseFormat};
use headrace_engine_api::{GrammarState, SharedGrammar};
use headrace_grammar::{FormCompiler, FormLimits, GrammarFault};
use headrace_tokenizer::Tokenizer;
use serde_json::Value;

pub(crate) struct Demo {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) compiler: FormCompiler,
    ends: Vec<u32>,
    words: usize,
}

pub(crate) fn demo() -> &'static Demo {
    static DEMO: OnceLock<Demo> = OnceLock::new();
    DEMO.get_or_init(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint");
        let checkpoint = Checkpoint::open(&dir).unwrap();
        let tokenizer =
            Arc::new(Tokenizer::new(checkpoint.tokenizer_json(), checkpoint.tokenizer_config()).unwrap());
        let ends = vec![tokenizer.id_of("<|im_end|>").unwrap()];
        let size = u32::try_from(tokenizer.vocab_size()).unwrap();
        let compiler = FormCompiler::new(Arc::clone(&tokenizer), &ends, size);
        Demo { tokenizer, compiler, ends, words: size.div_ceil(32) as usize }
    })
}

/// Compiles within a server's limits except the time limit, because parallel tests slow the machine down.
/// Tests of one program share the compile slots, so it asks again while all slots are taken.
pub(crate) fn compile(form: ResponseFormat) -> Result<SharedGrammar, GrammarFault> {
    let (form, began) = (Arc::new(form), Instant::now());
    loop {
        match demo().compiler.compile(&form, &patient()) {
            Err(GrammarFault::Busy) if began.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            told => return told,
        }
    }
}

/// The limits of [`compile`].
pub(crate) fn patient() -> FormLimits {
    FormLimits { compile_time: Duration::from_secs(20), ..FormLimits::default() }
}

/// Compiles within all of a server's limits.
pub(crate) fn compile_in_time(form: ResponseFormat) -> Result<SharedGrammar, GrammarFault> {
    demo().compiler.compile(&Arc::new(form), &FormLimits::default())
}

pub(crate) fn schema(schema: Value) -> ResponseFormat {
    ResponseFormat::JsonSchema(JsonForm {
        name: None,
        schema,
        strict: false,
        compact: false,
        white_space: None,
    })
}

pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

pub(crate) fn allowed(mask: &[u32]) -> Vec<u32> {
    (0..mask.len() as u32 * 32).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect()
}

/// Walks at random, and from `most` ids on prefers tokens that close. Returns `None` if the walk found no end.
pub(crate) fn walk(state: &mut dyn GrammarState, rng: &mut Rng, most: usize) -> Option<String> {
    let Demo { tokenizer, ends, words, .. } = demo();
    let mut mask = vec![0; *words];
    let mut ids = Vec::new();
    while !state.is_over() {
        state.mask(&mut mask).unwrap();
        let open = allowed(&mask);
        let forced = state.forced().first().copied();
        assert!(!open.is_empty(), "nothing may come after {:?}", tokenizer.decode(&ids, false));
        if let Some(forced) = forced {
            assert_eq!(open, [forced]);
        }
        let close = |id: &&u32| {
            let text = tokenizer.token_bytes(**id).unwrap_or_default();
            ends.contains(id) || [&b"\""[..], b"}", b"]", b"\"}", b"0", b"null", b"\":"].contains(&text)
        };
        let closing: Vec<u32> = open.iter().filter(close).copied().collect();
        let from = if ids.len() > most && !closing.is_empty() { closing } else { open };
        let from: Vec<u32> =
            if ids.len() > most && from.iter().any(|id| ends.contains(id)) { ends.clone() } else { from };
        let id = from[rng.below(from.len() as u64) as usize];
        if ends.contains(&id) {
            break;
        }
        state.accept(id).unwrap();
        ids.push(id);
        if ids.len() > most + 2000 {
            return None;
        }
    }
    Some(tokenizer.decode(&ids, false))
}
