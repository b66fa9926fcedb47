//! Whatever is chosen within the masks, the answer fits: random walks over the demo model's vocabulary, judged by others' readers
//! and validators.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use headrace_checkpoint::Checkpoint;
use headrace_domain::{Form, JsonForm};
use headrace_engine_api::{GrammarState, SharedGrammar};
use headrace_grammar::{Bounds, Compiler, GrammarFault};
use headrace_tokenizer::Tokenizer;
use serde_json::{Value, json};

struct Demo {
    tokenizer: Arc<Tokenizer>,
    compiler: Compiler,
    ends: Vec<u32>,
    words: usize,
}

fn demo() -> &'static Demo {
    static DEMO: OnceLock<Demo> = OnceLock::new();
    DEMO.get_or_init(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint");
        let checkpoint = Checkpoint::open(&dir).unwrap();
        let tokenizer =
            Arc::new(Tokenizer::new(checkpoint.tokenizer_json(), checkpoint.tokenizer_config()).unwrap());
        let ends = vec![tokenizer.id_of("<|im_end|>").unwrap()];
        let size = 2560u32;
        let compiler = Compiler::new(Arc::clone(&tokenizer), &ends, size);
        Demo { tokenizer, compiler, ends, words: size.div_ceil(32) as usize }
    })
}

fn compile(form: Form) -> Result<SharedGrammar, GrammarFault> {
    demo().compiler.compile(&Arc::new(form), &Bounds::default())
}

fn schema(schema: Value) -> Form {
    Form::JsonSchema(JsonForm { name: None, schema, strict: false, compact: false, white_space: None })
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

fn allowed(mask: &[u32]) -> Vec<u32> {
    (0..mask.len() as u32 * 32).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect()
}

/// Walks at random, and towards the end after `most` ids: of what may come then, what closes. `None`: it found no end.
fn walk(state: &mut dyn GrammarState, rng: &mut Rng, most: usize) -> Option<String> {
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

#[test]
fn json_objects_are_objects() {
    let grammar = compile(Form::JsonObject).unwrap();
    for seed in 0..300 {
        let text = walk(&mut *grammar.begin(), &mut Rng(seed), 60).unwrap();
        let value: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{seed}: {error}: {text}"));
        assert!(value.is_object(), "{text}");
    }
}

#[test]
fn some_schemas() {
    let cases = [
        json!({}),
        json!({"type": "number"}),
        json!({"type": "integer", "minimum": 3, "maximum": 10_000}),
        json!({"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 2, "maxItems": 4}),
        json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"], "additionalProperties": false}),
        json!({"type": "string", "format": "date-time"}),
    ];
    for schema_of in cases {
        let validator =
            jsonschema::draft202012::options().should_validate_formats(true).build(&schema_of).unwrap();
        let grammar = compile(schema(schema_of.clone())).unwrap();
        for seed in 0..50 {
            let text = walk(&mut *grammar.begin(), &mut Rng(seed), 60).unwrap();
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{seed}: {error}: {text}"));
            assert!(validator.is_valid(&value), "{schema_of}: {text}");
        }
    }
}
