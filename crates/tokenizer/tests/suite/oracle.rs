//! Compares the tokenizers with Hugging Face's recorded answers: ids, decoded texts and streamed pieces of 226 strings.

use crate::common::{NAMES, load, oracle};

#[test]
fn ids_and_decodings_are_those_of_hugging_face() {
    for name in NAMES {
        let (tokenizer, rows) = (load(name), oracle(name));
        assert_eq!(rows.len(), 226);
        for row in rows {
            let at = format!("{name}: {:?}", row.text);
            assert_eq!(tokenizer.encode(&row.text, false).unwrap(), row.ids, "{at}");
            let special = row.ids_special.as_ref().unwrap_or(&row.ids);
            assert_eq!(&tokenizer.encode(&row.text, true).unwrap(), special, "{at}");
            assert_eq!(tokenizer.decode(&row.ids, false), row.decoded, "{at}");
            assert_eq!(row.decoded == row.text, row.roundtrip, "{at}");
            let skipped = row.decoded_skip.as_ref().unwrap_or(&row.decoded);
            assert_eq!(&tokenizer.decode(&row.ids, true), skipped, "{at}");
        }
    }
}

#[test]
fn streamed_pieces_are_those_of_hugging_face() {
    for name in NAMES {
        let (tokenizer, rows) = (load(name), oracle(name));
        for row in rows {
            let mut decoder = tokenizer.decoder(false);
            let pieces: Vec<String> = row.ids.iter().map(|id| decoder.push(*id)).collect();
            let expected: Vec<String> = row.stream.iter().map(|p| p.clone().unwrap_or_default()).collect();
            assert_eq!(pieces, expected, "{name}: {:?}", row.text);
            let flush = decoder.flush();
            assert_eq!(flush, row.flush, "{name}: {:?}", row.text);
            if row.stream_ok {
                assert_eq!(pieces.concat() + &flush, row.decoded, "{name}: {:?}", row.text);
            }
            let mut decoder = tokenizer.decoder(true);
            let mut text: String = row.ids.iter().map(|id| decoder.push(*id)).collect();
            text += &decoder.flush();
            assert_eq!(&text, row.decoded_skip.as_ref().unwrap_or(&row.decoded), "{name}: {:?}", row.text);
        }
    }
}

#[test]
fn two_texts_stand_in_one_sequence_as_the_post_processor_has_it() {
    let ids = |name: &str, text: &str| load(name).encode(text, false).unwrap();
    let id = |name: &str, token: &str| load(name).id_of(token).unwrap();
    // `[CLS] a [SEP] b [SEP]`, distinguished by token types.
    let (name, bert) = ("wordpiece-uncased", load("wordpiece-uncased"));
    let [cls, sep] = ["[CLS]", "[SEP]"].map(|token| id(name, token));
    let want = [vec![cls], ids(name, "The quick server"), vec![sep], ids(name, "été"), vec![sep]].concat();
    assert_eq!(bert.encode_pair("The quick server", "été").unwrap(), want);
    assert_eq!(bert.pair_separator(), Some(sep));
    // A separator that the text spells does not end the text.
    let spelt = bert.encode_pair("a [SEP] b", "c").unwrap();
    assert_eq!(spelt.iter().filter(|id| **id == sep).count(), 2);
    // `<s> a </s> </s> b </s>`, without token types.
    let (name, roberta) = ("unigram-xlmr", load("unigram-xlmr"));
    let [begin, end] = ["<s>", "</s>"].map(|token| id(name, token));
    let want =
        [vec![begin], ids(name, "The quick server"), vec![end, end], ids(name, "été"), vec![end]].concat();
    assert_eq!(roberta.encode_pair("The quick server", "été").unwrap(), want);
    assert_eq!(roberta.pair_separator(), None);
}
