//! Text with a given number of words. Words are dealt from a shuffled deck, so texts of one length have almost the same
//! number of tokens in any tokenizer. Two texts differ from their first words on.

use crate::random::RunRandom;

/// Plain words that no tokenizer or template mistakes for something else. In every usual vocabulary, each word with the
/// space before it is a single token. The deck is small, so any text longer than a deck has the deck's mean.
const WORDS: [&str; 64] = [
    "about", "above", "after", "again", "answer", "ask", "back", "because", "before", "behind", "best",
    "between", "big", "blue", "body", "book", "both", "call", "came", "car", "change", "city", "cold",
    "come", "common", "could", "cut", "day", "door", "during", "early", "end", "even", "every", "eye",
    "fact", "far", "fast", "father", "few", "field", "final", "first", "fish", "five", "follow", "food",
    "form", "found", "free", "friend", "front", "full", "game", "gave", "give", "good", "green", "group",
    "grow", "hand", "house", "night", "paper",
];

/// Appends `count` words to `out`: all words once in an order drawn from `random`, again and again. A space precedes
/// each word except the first one of `out`.
pub(crate) fn deal(mut random: RunRandom, count: u64, out: &mut String) {
    let mut deck = WORDS;
    for at in 0..count {
        let place = at % WORDS.len() as u64;
        // Fisher-Yates: draws the next card from those that are left.
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
    use crate::random::RandomStream;

    fn text(seed: u64, count: u64) -> String {
        let mut out = String::new();
        deal(RunRandom::new(seed, RandomStream::OwnText, 0), count, &mut out);
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
