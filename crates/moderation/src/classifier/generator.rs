//! Writes labelled texts for the classifier from templates and word lists. Every fifth template and every fourth word is
//! kept apart for the held-out texts, so these are made of sentences that training never saw. Must not know the model.

use super::templates::{COMMON, HARMLESS, INJECTIONS, INSULTS, LISTS, THREATS};

/// What a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextLabel {
    /// An insult to a person.
    Insult,
    /// A threat of harm to a person.
    Threat,
    /// An attempt to replace a model's instructions, or to read them.
    Injection,
    /// None of the others.
    Harmless,
}

/// The part of the generator that writes a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextSplit {
    /// Texts to train with.
    Training,
    /// Texts of templates and words that training does not use.
    HeldOut,
}

/// A generator of pseudo-random numbers (SplitMix64).
#[derive(Debug, Clone)]
pub(super) struct SeededRandom(u64);

impl SeededRandom {
    /// Starts a sequence.
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `bound`. 0 if `bound` is 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        usize::try_from(z % (bound.max(1) as u64)).unwrap_or(0)
    }
}

/// Writes one text of a label.
pub(super) fn text(label: TextLabel, split: TextSplit, random: &mut SeededRandom) -> String {
    let mut text = sentence(label, split, random);
    // Judged passages may have other sentences around.
    match random.below(4) {
        0 => text = format!("{} {text}", sentence(TextLabel::Harmless, split, random)),
        1 => text = format!("{text} {}", sentence(TextLabel::Harmless, split, random)),
        _ => {}
    }
    match random.below(8) {
        0 => text.to_lowercase(),
        1 => text.trim_end_matches(['.', '!', '?']).to_owned(),
        2 if label != TextLabel::Harmless || random.below(3) == 0 => text.to_uppercase(),
        _ => text,
    }
}

fn shuffled(split: TextSplit, random: &mut SeededRandom) -> String {
    let length = 4 + random.below(16);
    let words = (0..length).map(|_| pick(COMMON.split(' '), 4, split, random));
    words.collect::<Vec<_>>().join(" ") + "."
}

fn sentence(label: TextLabel, split: TextSplit, random: &mut SeededRandom) -> String {
    if label == TextLabel::Harmless && random.below(4) == 0 {
        return shuffled(split, random);
    }
    let templates = match label {
        TextLabel::Insult => INSULTS,
        TextLabel::Threat => THREATS,
        TextLabel::Injection => INJECTIONS,
        TextLabel::Harmless => HARMLESS,
    };
    let template = pick(templates.iter().copied(), 5, split, random);
    let (mut text, mut rest) = (String::new(), template);
    while let Some((before, behind)) = rest.split_once('{') {
        text.push_str(before);
        if let Some(behind) = behind.strip_prefix('{') {
            text.push('{');
            rest = behind;
            continue;
        }
        let (name, behind) = behind.split_once('}').unwrap_or((behind, ""));
        let words = LISTS.iter().find(|(known, _)| *known == name).map_or("", |(_, words)| words);
        let word = pick(words.split('|'), 4, split, random);
        let is_first = text.is_empty() || text.ends_with(". ") || text.ends_with(": ");
        let mut letters = word.chars();
        match letters.next().filter(|_| is_first) {
            Some(first) => text.extend(first.to_uppercase().chain(letters)),
            None => text.push_str(word),
        }
        rest = behind;
    }
    text.push_str(&rest.replace("}}", "}"));
    text
}

/// Chooses one of the items of a split: every `apart`-th item is held out.
fn pick<'t>(
    items: impl Iterator<Item = &'t str>,
    apart: usize,
    split: TextSplit,
    random: &mut SeededRandom,
) -> &'t str {
    let is_mine = |at: usize| (at % apart == apart - 1) == (split == TextSplit::HeldOut);
    let mine: Vec<&str> = items.enumerate().filter(|(at, _)| is_mine(*at)).map(|(_, item)| item).collect();
    mine.get(random.below(mine.len())).copied().unwrap_or_default()
}
