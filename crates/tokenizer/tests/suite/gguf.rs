//! Compares tokenizers from GGUF metadata with Hugging Face's recorded answers: the ids and the text must be the same.

use std::path::Path;
use std::sync::Arc;

use headrace_checkpoint::Checkpoint;
use headrace_tokenizer::Tokenizer;

use crate::common::oracle;

fn open(name: &str) -> (Checkpoint, Arc<Tokenizer>) {
    let path = format!("../checkpoint/tests/data/gguf/{name}.gguf");
    let checkpoint = Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let tokenizer = Tokenizer::new(checkpoint.tokenizer_json(), checkpoint.tokenizer_config()).unwrap();
    (checkpoint, Arc::new(tokenizer))
}

#[test]
fn ids_and_decodings_are_those_of_hugging_face() {
    for name in ["bytebpe-llama3", "bytebpe-qwen", "spbpe-llama2"] {
        let (_, tokenizer) = open(name);
        let rows = oracle(name);
        assert_eq!(rows.len(), 226);
        for row in rows {
            let at = format!("{name}: {:?}", row.text);
            assert_eq!(tokenizer.encode(&row.text, false).unwrap(), row.ids, "{at}");
            let special = row.ids_special.as_ref().unwrap_or(&row.ids);
            assert_eq!(&tokenizer.encode(&row.text, true).unwrap(), special, "{at}");
            assert_eq!(tokenizer.decode(&row.ids, false), row.decoded, "{at}");
            let skipped = row.decoded_skip.as_ref().unwrap_or(&row.decoded);
            assert_eq!(&tokenizer.decode(&row.ids, true), skipped, "{at}");
        }
    }
}
