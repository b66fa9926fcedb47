//! The tokenizers against recorded answers of Hugging Face's: ids, decodings and streamed pieces of 226 strings.

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
