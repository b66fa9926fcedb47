//! Generates text of many kinds from a seed: text of people, text of programs, and text that neither would write.

/// A small generator of our own (SplitMix64), so that a seed always produces the same text.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn within(&mut self, first: u32, last: u32) -> char {
        let span = (last - first + 1) as usize;
        char::from_u32(first + self.below(span) as u32).unwrap_or('\u{fffd}')
    }

    /// Returns any Unicode scalar value.
    fn scalar(&mut self) -> char {
        char::from_u32(self.below(0x11_0000) as u32).unwrap_or('\u{d7ff}')
    }
}

const WORDS: &str = "the of and to in is was he for it with as his on be at by had not are but from or have an they \
    which one you were her all she there would their we him been has when who will more no if out so said what up its \
    about into than them can only other new some could time these two may then do first any my now such like our over \
    man me even most made after also did many before must through back years where much your way well down should \
    because each just those people Mr how too little state good very make world still own see men work long get here \
    between both life being under never day same another know while last might us great old year off come since \
    against go came right used take three";
const CODE: [&str; 14] = [
    "fn main() {\n    let x = vec![1, 2, 3];\n}\n",
    "if (a != b && c->next == NULL) {\n\t\treturn -1;\n\t}\n",
    "def __init__(self, *args, **kwargs):\n        super().__init__()\n",
    "#include <stdio.h>\r\n",
    "SELECT * FROM users WHERE id = $1;\n",
    "const f = async (e) => { await g(`${e}`) };\n",
    "<div class=\"row\"><a href='#'>x</a></div>\n",
    "{\"id\":12,\"list\":[1.5e-7,null,true],\"s\":\"\\u00e9\"}",
    "https://example.org/a/b?c=d&e=%20f#g",
    "0xdeadbeef + 0b1010 - 1_000_000u64",
    "//////////////////// ---------- ==========\n",
    "   \n\n\n\t\t\t\n  ",
    "camelCaseName snake_case_name SCREAMING_CASE XMLHttpRequest",
    "a.b::<C>().d?[e]...f",
];
const MARKUP: [&str; 14] = [
    "<|im_start|>",
    "<|im_end|>",
    "<s>",
    "</s>",
    "<unk>",
    "<tool_call>",
    "[INST]",
    "[/INST]",
    "<|eot_id|>",
    "<start_of_turn>",
    "<|im_",
    "<0x0A>",
    "<bos>",
    "<|endoftext|>",
];
const EMOJI: [&str; 9] = [
    "👩\u{200d}👩\u{200d}👧\u{200d}👦",
    "🏳\u{fe0f}\u{200d}🌈",
    "👍🏽",
    "🇩🇪🇫🇷",
    "🙂",
    "❤\u{fe0f}",
    "1\u{fe0f}\u{20e3}",
    "🧑🏿\u{200d}🚀",
    "😀😀",
];
const SPACES: [char; 14] = [
    ' ', ' ', ' ', '\n', '\n', '\t', '\r', '\u{a0}', '\u{3000}', '\u{2028}', '\u{85}', '\u{b}', '\u{2003}',
    '\u{1680}',
];
/// Blocks of letters: Latin with marks, Greek, Cyrillic, Hebrew, Arabic, Devanagari, Thai, Hangul (composed and in
/// parts), kana, Han and mathematical letters.
const BLOCKS: [(u32, u32); 13] = [
    (0xc0, 0x24f),
    (0x370, 0x3ff),
    (0x410, 0x44f),
    (0x5d0, 0x5ea),
    (0x621, 0x652),
    (0x900, 0x97f),
    (0xe01, 0xe5b),
    (0xac00, 0xd7a3),
    (0x1100, 0x11ff),
    (0x3041, 0x30ff),
    (0x4e00, 0x9fff),
    (0x4e00, 0x4fff),
    (0x1d400, 0x1d7ff),
];

/// Returns at least `bytes` bytes of text.
pub(crate) fn text(random: &mut Random, bytes: usize) -> String {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut text = String::with_capacity(bytes + 256);
    while text.len() < bytes {
        passage(random, &words, &mut text);
    }
    text
}

fn passage(random: &mut Random, words: &[&str], out: &mut String) {
    let count = 1 + random.below(24);
    match random.below(20) {
        0..=5 => (0..count * 2).for_each(|_| english(random, words, out)),
        6..=8 => (0..1 + count / 6).for_each(|_| out.push_str(random.pick(&CODE))),
        9..=11 => foreign(random, count, out),
        12 => (0..1 + count / 4).for_each(|_| out.push_str(random.pick(&EMOJI))),
        13 => (0..count).for_each(|_| {
            out.push(random.within(0x61, 0x7a));
            (0..random.below(3)).for_each(|_| out.push(random.within(0x300, 0x36f)));
        }),
        14 => (0..count / 2).for_each(|_| {
            let number = random.next() >> random.below(64);
            out.push_str(&number.to_string());
            out.push(random.pick(&['.', ',', ' ', ':', '-', '²', '٣']));
        }),
        15 => (0..count).for_each(|_| out.push(random.pick(&SPACES))),
        16 => (0..count).for_each(|_| out.push(random.scalar())),
        17 => {
            let c = random.pick(&['a', ' ', '\n', '\0', '-', '1', '▁', '你', 'Z', '\u{301}', '\'']);
            let times = count * if random.below(50) == 0 { 40 } else { 1 };
            out.extend(std::iter::repeat_n(c, times));
        }
        18 => (0..count).for_each(|_| out.push(random.within(0, 0x7f))),
        _ => (0..1 + count / 8).for_each(|_| out.push_str(random.pick(&MARKUP))),
    }
    if random.below(3) == 0 {
        out.push(random.pick(&[' ', '\n', '.', ' ']));
    }
}

fn english(random: &mut Random, words: &[&str], out: &mut String) {
    let word = random.pick(words);
    match random.below(12) {
        0 => out.push_str(&word.to_uppercase()),
        1 => {
            out.push_str(&word[..1].to_uppercase());
            out.push_str(&word[1..]);
        }
        // A word that is in no vocabulary.
        2 => (0..2 + random.below(12)).for_each(|_| out.push(random.within(0x61, 0x7a))),
        _ => out.push_str(word),
    }
    if random.below(9) == 0 {
        out.push_str(random.pick(&["'s", "'t", "'RE", "'ve", "'Ll", "'d", "'ſ", "’s", "'"]));
    }
    if random.below(7) == 0 {
        out.push_str(random.pick(&[",", ".", ";", "!", "?", "...", " (", ")", "\"", ":\n", " —", "."]));
    }
    out.push(if random.below(40) == 0 { '\n' } else { ' ' });
}

fn foreign(random: &mut Random, count: usize, out: &mut String) {
    let (first, last) = random.pick(&BLOCKS);
    for _ in 0..count {
        (0..1 + random.below(7)).for_each(|_| out.push(random.within(first, last)));
        out.push_str(random.pick(&[" ", " ", "", "。", "、", ", ", "\u{200c}", "-"]));
    }
}
