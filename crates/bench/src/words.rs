//! Text of a given number of words. Words are dealt from a shuffled deck, so that texts of one length weigh almost the
//! same for any tokenizer, and two texts differ from their first words on.

use crate::random::Random;

/// Plain words, none of which a tokenizer or a template could take for something else, and each a single token with the
/// space before it in every usual vocabulary. Few, so that any text of more than a deck has the deck's mean.
const WORDS: [&str; 64] = [
    "about", "above", "after", "again", "answer", "ask", "back", "because", "before", "behind", "best",
    "between", "big", "blue", "body", "book", "both", "call", "came", "car", "change", "city", "cold",
    "come", "common", "could", "cut", "day", "door", "during", "early", "end", "even", "every", "eye",
    "fact", "far", "fast", "father", "few", "field", "final", "first", "fish", "five", "follow", "food",
    "form", "found", "free", "friend", "front", "full", "game", "gave", "give", "good", "green", "group",
    "grow", "hand", "house", "night", "paper",
];

/// All words once, in an order of `random`'s, over and over until there are `count`; a space before each but the very
/// first of `out`.
pub(crate) fn deal(mut random: Random, count: u64, out: &mut String) {
    let mut deck = WORDS;
    for at in 0..count {
        let place = at % WORDS.len() as u64;
        // Fisher and Yates: the next card is drawn from those that are left.
        let left = (WORDS.len() as u64).saturating_sub(place);
        let drawn = place.saturating_add(random.below(left));
        let (Ok(place), Ok(drawn)) = (usize::try_from(place), usize::try_from(drawn)) else { return };
        if place < deck.len() && drawn < deck.len() {
            deck.swap(place, drawn);
        }
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(deck.get(place).copied().unwrap_or("and"));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::random::Stream;

    fn text(seed: u64, count: u64) -> String {
        let mut out = String::new();
        deal(Random::new(seed, Stream::OwnText, 0), count, &mut out);
        out
    }

    #[test]
    fn every_word_comes_once_before_any_comes_twice() {
        assert_eq!(WORDS.iter().collect::<HashSet<_>>().len(), WORDS.len());
        let words = text(1, 128);
        let words: Vec<&str> = words.split(' ').collect();
        assert_eq!(words.len(), 128);
        for half in words.chunks(64) {
            assert_eq!(half.iter().collect::<HashSet<_>>().len(), 64);
        }
        assert_ne!(words[..64], words[64..]);
    }

    #[test]
    fn a_longer_text_begins_with_the_shorter_and_another_seed_gives_another() {
        assert!(text(1, 300).starts_with(&text(1, 20)));
        assert_ne!(text(1, 8), text(2, 8));
        assert_eq!(text(1, 0), "");
    }
}
