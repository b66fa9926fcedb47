//! Decoding id by id gives whole text, for any ids.

use std::sync::Arc;

use headrace_checkpoint::TokenizerConfig;
use headrace_tokenizer::Tokenizer;
use proptest::prelude::*;

use crate::common::{NAMES, data, load};

fn streamed(tokenizer: &std::sync::Arc<Tokenizer>, ids: &[u32], skip: bool) -> String {
    let mut decoder = tokenizer.decoder(skip);
    let mut text: String = ids.iter().map(|id| decoder.push(*id)).collect();
    text += &decoder.flush();
    text
}

#[test]
fn ids_without_text_give_nothing() {
    for name in NAMES {
        let tokenizer = load(name);
        let beyond = u32::try_from(tokenizer.vocab_size()).unwrap();
        assert!(tokenizer.token_bytes(beyond).is_none());
        assert!(!tokenizer.is_control(beyond));
        assert_eq!(streamed(&tokenizer, &[beyond, u32::MAX], false), "");
        let ids = tokenizer.encode("ab é", false).unwrap();
        let mut padded = Vec::new();
        ids.iter().for_each(|id| padded.extend([beyond, *id, u32::MAX]));
        assert_eq!(streamed(&tokenizer, &padded, false), tokenizer.decode(&ids, false), "{name}");
    }
}

#[test]
fn a_short_text_as_a_number_is_the_bytes_of_its_token() {
    for name in NAMES {
        let tokenizer = load(name);
        let size = u32::try_from(tokenizer.vocab_size()).unwrap();
        let mut short = 0;
        for id in (0..size + 2).chain([u32::MAX]) {
            let bytes = tokenizer.token_bytes(id).filter(|bytes| (1..=8).contains(&bytes.len()));
            let expected = bytes.filter(|_| !tokenizer.is_markup(id));
            let told = tokenizer.short_text(id).map(|(word, count)| word.to_le_bytes()[..count].to_vec());
            assert_eq!(told.as_deref(), expected, "{name} {id}");
            if let Some((word, count)) = tokenizer.short_text(id) {
                short += 1;
                assert!(word.to_le_bytes()[count..].iter().all(|byte| *byte == 0), "{name} {id}");
            }
        }
        assert!(short > 100, "{name}");
    }
}

#[test]
fn a_special_token_that_is_shown_stands_in_text_and_others_do_not() {
    for name in NAMES {
        let tokenizer = load(name);
        let special: Vec<u32> = (0..u32::try_from(tokenizer.vocab_size()).unwrap())
            .filter(|id| tokenizer.is_control(*id))
            .collect();
        let [mark, other, ..] = special[..] else { panic!("{name}") };
        let json = data(&format!("{name}/tokenizer.json"));
        let shown = Tokenizer::new(&json, &TokenizerConfig::default()).unwrap();
        let text =
            String::from_utf8(tokenizer.token_bytes(mark).unwrap().to_vec()).unwrap().trim().to_owned();
        let shown = Arc::new(shown.showing(|token| token == text));
        assert_eq!(shown.shown()[..], *std::slice::from_ref(&text));
        let word = tokenizer.encode("word", false).unwrap();
        let ids = [&word[..], &[mark, other], &word].concat();
        for decoder in [true, false] {
            let text_of = |tokenizer: &Arc<Tokenizer>, ids: &[u32]| match decoder {
                true => streamed(tokenizer, ids, true),
                false => tokenizer.decode(ids, true),
            };
            assert_eq!(text_of(&tokenizer, &ids).matches(&text).count(), 0, "{name}");
            let read = text_of(&shown, &ids);
            assert_eq!(read.matches(&text).count(), 1, "{name} {read}");
            if name.starts_with("bytebpe") {
                assert_eq!(read.replace(&text, ""), text_of(&tokenizer, &ids), "{name}");
            }
        }
        assert_eq!(shown.encode("word", true).unwrap(), tokenizer.encode("word", true).unwrap());
    }
}

#[test]
fn lone_continuation_bytes_come_out_as_replacement_characters() {
    let tokenizer = load("bytebpe-qwen");
    let byte = |wanted: u8| (0..1024).find(|id| tokenizer.token_bytes(*id) == Some(&[wanted])).unwrap();
    let mut decoder = tokenizer.decoder(false);
    assert_eq!(decoder.push(byte(0x80)), "");
    assert_eq!(decoder.push(byte(0xe2)), "");
    assert_eq!(decoder.push(byte(b'a')), "\u{fffd}\u{fffd}a");
    assert_eq!(decoder.push(byte(0xf0)), "");
    assert_eq!(decoder.push(byte(0x9f)), "");
    assert_eq!(decoder.flush(), "\u{fffd}");
    assert_eq!(decoder.flush(), "");
}

#[test]
fn a_continued_text_keeps_its_first_space() {
    for name in ["spbpe-llama2", "unigram-xlmr", "wordpiece-uncased"] {
        let tokenizer = load(name);
        let ids = tokenizer.encode("the", false).unwrap();
        let text = |mut decoder: headrace_tokenizer::TextDecoder| {
            ids.iter().map(|id| decoder.push(*id)).collect::<String>() + &decoder.flush()
        };
        assert_eq!(text(tokenizer.decoder(false)), "the", "{name}");
        assert_eq!(text(tokenizer.decoder_in_text(false)), " the", "{name}");
    }
}

#[test]
fn long_runs_of_broken_bytes_take_linear_time() {
    for name in ["bytebpe-qwen", "spbpe-llama2"] {
        let tokenizer = load(name);
        let id = (0..1024).find(|id| tokenizer.token_bytes(*id) == Some(&[0x80])).unwrap();
        let ids = vec![id; 200_000];
        assert_eq!(streamed(&tokenizer, &ids, false).chars().count(), ids.len(), "{name}");
    }
}

#[test]
fn special_tokens_are_skipped_on_demand() {
    let tokenizer = load("bytebpe-qwen");
    let ids = tokenizer.encode("<|im_start|>hi<tool_call>x</tool_call><|im_end|>", false).unwrap();
    assert_eq!(streamed(&tokenizer, &ids, true), "hi<tool_call>x</tool_call>");
    assert!(tokenizer.is_control(tokenizer.id_of("<|im_end|>").unwrap()));
    assert!(!tokenizer.is_control(tokenizer.id_of("<tool_call>").unwrap()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// For decoders that join bytes or text, any sequence of ids streams to the text of the whole sequence.
    #[test]
    fn any_ids_stream_to_their_text(
        ids in prop::collection::vec(0u32..1030, 0..40),
        which in prop::sample::select(vec![0usize, 1, 4, 5]),
        skip: bool,
    ) {
        let tokenizer = load(NAMES[which]);
        prop_assert_eq!(streamed(&tokenizer, &ids, skip), tokenizer.decode(&ids, skip));
    }

    /// With byte fallback, the same holds if the text has no broken bytes.
    #[test]
    fn texts_stream_to_themselves(text in "\\PC{0,20}", which in 2usize..4) {
        let tokenizer = load(NAMES[which]);
        let ids = tokenizer.encode_plain(&text, false).unwrap();
        prop_assert_eq!(streamed(&tokenizer, &ids, false), tokenizer.decode(&ids, false));
    }
}
