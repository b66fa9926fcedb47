//! Compares the memory that texts take in a tokenizer with the reserved amount: the texts that cost each kind of
//! tokenizer the most.

use headrace_call_api::{Question, RequestTarget};
use headrace_call_state::{Answer, MemoryBounds};
use headrace_catalog::EncoderOutput;
use headrace_domain::Endpoint;
use serde_json::{Value, json};

use super::world::{MODEL, Script, Setup, World, capabilities};
use super::{ALONE, TRIES, hold_to_estimates, of_answer, rich};

const TOKENIZERS: [(&str, &[u8]); 4] = [
    ("WordPiece", include_bytes!("../../../tokenizer/tests/data/wordpiece-uncased/tokenizer.json")),
    ("Unigram", include_bytes!("../../../tokenizer/tests/data/unigram-xlmr/tokenizer.json")),
    ("byte pairs", include_bytes!("../../../tokenizer/tests/data/bytebpe-qwen/tokenizer.json")),
    ("marked pairs", include_bytes!("../../../tokenizer/tests/data/spbpe-gemma/tokenizer.json")),
];

/// Texts of about this many bytes.
fn texts(bytes: usize) -> Vec<String> {
    let parts = [
        "word ",
        "a ",
        ".",
        "a",
        "aB",
        "1",
        "<|",
        "[UNK]",
        "</s>",
        "\u{fdfa}",
        "\u{fdfa} ",
        "\u{344}",
        "a\u{301}",
        "\u{1f82}",
        "漢",
        "漢 ",
        "は",
        "они ",
        "\u{1f642}",
        "\u{200d}",
        "\u{3000}",
        " ",
        "\n",
        "\u{ac01}",
        "\u{2581}",
        "ﬃ",
        "\u{fb2c}",
    ];
    parts.iter().map(|part| part.repeat(bytes / part.len())).collect()
}

fn setup(json: &'static [u8], makes: Option<EncoderOutput>) -> Setup {
    let memory = MemoryBounds { call: 8 << 30, key: 16 << 30, all: 16 << 30 };
    Setup { memory, makes, tokenizer_json: Some(json), credit: rich(), ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_text_for_an_encoder_takes_more_than_was_reserved_for_it() {
    let _alone = ALONE.lock().await;
    for (name, json) in TOKENIZERS {
        println!("{name}");
        let world = World::new(setup(json, Some(EncoderOutput::Vectors { width: 4 })));
        world.script(Script::Encode(4));
        let long = texts(200_000).into_iter().map(|text| json!({"model": MODEL, "input": text}));
        let short = texts(400).into_iter().map(|text| json!({"model": MODEL, "input": vec![text; 64]}));
        let named = json!({"model": MODEL, "input": ".".repeat(100_000), "prompt_name": "query"});
        let rows: Vec<(Endpoint, Value)> =
            long.chain(short).chain([named]).map(|body| (Endpoint::Embeddings, body)).collect();
        hold_to_estimates(&world, &rows).await;

        let world = World::new(setup(json, Some(EncoderOutput::Scores)));
        world.script(Script::Encode(1));
        let pairs = texts(100_000).into_iter().flat_map(|text| {
            [
                (Endpoint::Rerank, json!({"model": MODEL, "query": text, "documents": vec!["a"; 64]})),
                (Endpoint::Rerank, json!({"model": MODEL, "query": "a", "documents": [text]})),
                (Endpoint::Score, json!({"model": MODEL, "text_1": text, "text_2": ["a", "b"]})),
            ]
        });
        hold_to_estimates(&world, &pairs.collect::<Vec<_>>()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_prompt_takes_more_than_was_reserved_for_it() {
    let _alone = ALONE.lock().await;
    for (name, json) in TOKENIZERS {
        println!("{name}");
        let capabilities = headrace_engine_api::Capabilities { context_window: 1 << 20, ..capabilities() };
        let world = World::new(Setup { capabilities, ..setup(json, None) });
        world.script(Script::Answer);
        let prompts = texts(100_000)
            .into_iter()
            .map(|text| (Endpoint::Completions, json!({"model": MODEL, "prompt": text, "max_tokens": 1})));
        hold_to_estimates(&world, &prompts.collect::<Vec<_>>()).await;
        let mut too_low = Vec::new();
        for text in texts(100_000) {
            let body = json!({"model": MODEL, "prompt": text, "return_token_strs": true});
            let body = bytes::Bytes::from(body.to_string());
            let (mut status, mut peak, mut taken, mut tries) = (0, 1, 0, 0);
            while peak as u64 > taken && tries < TRIES {
                (status, peak, taken) = of_answer(&world, tokenize(&world, body.clone())).await;
                tries += 1;
            }
            let shown = format!("{:.60}", String::from_utf8_lossy(&body));
            println!("{status} {peak:>12} of {taken:>12} bytes: {shown}");
            if peak as u64 > taken {
                too_low.push(format!("{name} {shown}"));
            }
        }
        assert!(too_low.is_empty(), "more was allocated than was reserved for {too_low:#?}");
    }
}

async fn tokenize(world: &World, body: bytes::Bytes) -> Answer {
    world.request(RequestTarget::Question(Question::Tokenize), body).await
}
