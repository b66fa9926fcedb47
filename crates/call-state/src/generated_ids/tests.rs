//! Answers whose ids differ from the encoding of their text: what is replaced, and what is evicted.

use headrace_checkpoint::TokenizerConfig;

use super::*;

/// Markup tokens of the demo model.
const BEGINS: &str = "<|im_start|>";
const ENDS: &str = "<|im_end|>";

struct TestModel {
    tokenizer: Tokenizer,
    begins: u32,
    ends: u32,
}

impl TestModel {
    fn new() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo-model/checkpoint/tokenizer.json");
        let tokenizer = Tokenizer::new(&std::fs::read(path).unwrap(), &TokenizerConfig::default()).unwrap();
        let id = |token| tokenizer.id_of(token).unwrap();
        let (begins, ends) = (id(BEGINS), id(ENDS));
        assert!(tokenizer.is_markup(begins) && tokenizer.is_markup(ends) && tokenizer.is_bytewise());
        Self { tokenizer, begins, ends }
    }

    fn ids(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode_plain(text, false).unwrap()
    }

    /// The same text, cut into tokens at random places.
    fn cut(&self, text: &str, random: &mut u64) -> Vec<u32> {
        let (mut ids, mut from) = (Vec::new(), 0);
        for (at, _) in text.char_indices().skip(1) {
            if next(random).is_multiple_of(3) {
                ids.extend(self.ids(&text[from..at]));
                from = at;
            }
        }
        ids.extend(self.ids(&text[from..]));
        ids
    }

    /// A turn as templates write it, with these ids as its text.
    fn turn(&self, who: &str, text: &[u32]) -> Vec<u32> {
        let mut ids = vec![self.begins];
        ids.extend(self.ids(&format!("{who}\n")));
        ids.extend(text);
        ids.push(self.ends);
        ids.extend(self.ids("\n"));
        ids
    }

    fn said(&self, who: &str, text: &str) -> Vec<u32> {
        self.turn(who, &self.ids(text))
    }

    /// The ids after which an answer begins.
    fn open(&self) -> Vec<u32> {
        let mut ids = vec![self.begins];
        ids.extend(self.ids("assistant\n"));
        ids
    }

    fn text(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, false)
    }
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn salt(tenant: &str) -> CacheSalt {
    CacheSalt::derive(&[1; 32], tenant, "m", None)
}

const NOW: UnixNanos = UnixNanos::new(1_000);

/// Reads a prompt token by token, by its text, and by texts that do not belong to it.
fn continued(kept: &GeneratedIdCache, salt: &CacheSalt, model: &TestModel, prompt: &[u32]) -> ReusedPrompt {
    let by = |said: Option<&str>| kept.continued(salt, &model.tokenizer, (prompt, said), NOW);
    let (told, text) = (by(None), model.text(prompt));
    let begun = &text[..text.floor_char_boundary(text.len() / 2)];
    for said in
        [text.as_str(), "", "x", begun, &format!("{text}x"), &format!("x{text}"), &text.replace(' ', "")]
    {
        assert_eq!(by(Some(said)), told, "{said:?}");
    }
    told
}

fn end_of(
    kept: &GeneratedIdCache,
    model: &TestModel,
    salt: &CacheSalt,
    prompt: &[u32],
) -> (Vec<u32>, AnswerStart) {
    let continued = continued(kept, salt, model, prompt);
    (continued.ids.unwrap_or_else(|| prompt.to_vec()), continued.end.unwrap())
}

/// Conversations of several turns, with randomly cut tokens in each generated answer. Each prompt must consist of the
/// previous prompt, the generated ids of the answer, and what was said since. Its text must be the text that was
/// sent.
#[test]
fn each_prompt_goes_on_with_the_ids_that_were_generated() {
    let model = TestModel::new();
    let words =
        ["What is a cache?", " It keeps", " things.\n\n", "é模", "  indeed  ", "{\"a\": [1, 2]}", "ok"];
    for seed in 1..60_u64 {
        let (kept, own) = (GeneratedIdCache::default(), salt("a"));
        let mut random = seed << 20 | 7;
        // What the client sends as text, and the ids that the model was given and generated.
        let (mut sent, mut computed) = (model.said("system", "be brief"), Vec::new());
        let (mut different, mut told) = (0, 0);
        for turn in 0..6 {
            let mut said = |most: u64| -> String {
                (0..1 + next(&mut random) % most)
                    .map(|_| words[next(&mut random) as usize % words.len()])
                    .collect()
            };
            let (question, answer) = (said(3), said(6));
            sent.extend(model.said("user", &question));
            let prompt: Vec<u32> = sent.iter().copied().chain(model.open()).collect();
            let continued = continued(&kept, &own, &model, &prompt);
            (told, different) = (told + continued.answers, different);
            let ids = continued.ids.clone().unwrap_or_else(|| prompt.clone());
            assert_eq!(model.text(&ids), model.text(&prompt), "seed {seed}, turn {turn}");
            assert!(ids.starts_with(&computed), "seed {seed}, turn {turn}: it continues what was computed");
            let mut generated = model.cut(&answer, &mut random);
            different += usize::from(generated != model.ids(&answer));
            // Some answers are cut off before their end.
            if turn % 3 != 2 {
                generated.push(model.ends);
            }
            kept.put(&own, &continued.end.unwrap(), &generated, NOW);
            computed = ids;
            computed.extend(generated);
            sent.extend(model.said("assistant", &answer));
        }
        assert!(different > 1 && told > 1, "seed {seed}: too tame");
        // Another tenant does not reuse them.
        let prompt: Vec<u32> = sent.iter().copied().chain(model.open()).collect();
        assert_eq!(continued(&kept, &salt("b"), &model, &prompt).ids, None);
    }
}

#[test]
fn nothing_is_put_in_the_place_of_another_text() {
    let model = TestModel::new();
    let (kept, own) = (GeneratedIdCache::default(), salt("a"));
    let question = model.said("user", "Say it.");
    let prompt: Vec<u32> = question.iter().copied().chain(model.open()).collect();
    let (_, end) = end_of(&kept, &model, &own, &prompt);
    let spelt: Vec<u32> = "caches".chars().flat_map(|c| model.ids(&c.to_string())).collect();
    assert_ne!(spelt, model.ids("caches"));
    kept.put(&own, &end, &[spelt.clone(), vec![model.ends]].concat(), NOW);
    let repeated = |question: &[u32], answer: &[u32]| {
        let ids =
            [question, &model.turn("assistant", answer), &model.said("user", "And?"), &model.open()].concat();
        continued(&kept, &own, &model, &ids)
    };
    let continued = repeated(&question, &model.ids("caches"));
    assert_eq!(
        (continued.answers, continued.tokens as usize),
        (1, model.ids("assistant\n").len() + spelt.len() + 1)
    );
    assert!(continued.ids.unwrap().windows(spelt.len()).any(|ids| ids == spelt));
    // If the ids are the same already, nothing changes.
    assert_eq!(repeated(&question, &spelt).ids, None);
    // Another question, another text from the start, and markup spelt out in letters.
    assert_eq!(repeated(&model.said("user", "Say it!"), &model.ids("caches")).ids, None);
    assert_eq!(repeated(&question, &model.ids("no")).ids, None);
    let letters = model.ids(ENDS);
    assert!(!letters.contains(&model.ends));
    // Generated ids are reused as far as the texts match and a token ends at the same place in both.
    for more in ["caches and more", "cachexyz"] {
        let prompt = model.ids(more);
        if let Some(ids) = repeated(&question, &prompt).ids {
            let whole =
                [&*question, &model.turn("assistant", &prompt), &model.said("user", "And?"), &model.open()]
                    .concat();
            assert_eq!(model.text(&ids), model.text(&whole));
        }
    }
    let markup = [model.ids("caches"), letters].concat();
    if let Some(ids) = repeated(&question, &markup).ids {
        let markup_ids = ids.iter().filter(|id| **id == model.ends).count();
        assert_eq!(markup_ids, 3, "letters stay letters");
    }
}

#[test]
fn what_is_kept_has_bounds_of_each_tenant_and_of_all_and_an_end() {
    let end = |before| AnswerStart { before, tail: vec![1] };
    let kept = GeneratedIdCache::default();
    let answer = vec![7_u32; 10_000];
    let count = |kept: &GeneratedIdCache| {
        let inner = kept.0.lock();
        let all = inner.tenants.values().flat_map(|tenant| tenant.answers.values().flatten());
        let (bytes, answers) = all.fold((0, 0), |(bytes, count), kept| (bytes + kept.bytes(), count + 1));
        let tenant_bytes: usize = inner.tenants.values().map(|tenant| tenant.bytes).sum();
        assert_eq!((bytes, bytes), (inner.bytes, tenant_bytes), "the books agree");
        assert!(inner.tenants.values().all(|tenant| !tenant.answers.is_empty()));
        (bytes, answers)
    };
    kept.put(&salt("quiet"), &end(5), &answer, NOW);
    for before in 0..1_000 {
        kept.put(&salt("loud"), &end(before), &answer, NOW);
        assert!(count(&kept).0 <= MOST_BYTES_OF_ONE + 50_000);
    }
    let find = |tenant: &str, before, now| kept.0.lock().find(&salt(tenant), before, now).len();
    assert_eq!((find("quiet", 5, NOW), find("loud", 999, NOW), find("loud", 1, NOW)), (1, 1, 0));
    // The same answer again takes no space. Of different answers to one prompt, the last few are kept.
    let before = count(&kept);
    kept.put(&salt("quiet"), &end(5), &answer, NOW);
    assert_eq!(count(&kept), before);
    for other in 0..10 {
        kept.put(&salt("quiet"), &end(5), &[other], NOW);
    }
    assert_eq!(find("quiet", 5, NOW), MOST_PER_PROMPT);
    // With very many tenants, the latest are kept.
    for tenant in 0..2_000 {
        kept.put(&salt(&tenant.to_string()), &end(1), &answer, NOW);
    }
    assert!(count(&kept).0 <= MOST_BYTES);
    assert_eq!((find("0", 1, NOW), find("1999", 1, NOW)), (0, 1));
    // An hour later nothing is known, and the next answer clears the expired ones.
    let late = UnixNanos::new(NOW.get() + KEPT_FOR_NS + 1);
    assert_eq!(find("1999", 1, late), 0);
    kept.put(&salt("new"), &end(1), &answer, late);
    assert_eq!(count(&kept).1, 1);
    assert_eq!(kept.0.lock().order.len(), 1);
    // Neither an answer that is too long nor an empty one is kept.
    kept.put(&salt("long"), &end(1), &vec![1; MOST_ANSWER_TOKENS + 1], late);
    kept.put(&salt("none"), &end(1), &[], late);
    assert_eq!(count(&kept).1, 1);
}

#[test]
fn what_is_looked_for_is_what_was_said_and_not_how_it_was_cut() {
    let behind_markup = |pieces: &[&[u8]], id: u32| {
        let mut hash = TextHash::of(&salt("acme"));
        pieces.iter().for_each(|piece| hash.bytes(piece));
        hash.markup(id);
        hash.value()
    };
    let mut random = 7;
    for _ in 0..2_000 {
        let length = (next(&mut random) % 40) as usize;
        // Many zeros, because the end of a word must not be mistaken for them.
        let text: Vec<u8> = (0..length).map(|_| (next(&mut random) % 3) as u8).collect();
        let whole = behind_markup(&[&text], 5);
        let mut pieces: Vec<&[u8]> = Vec::new();
        let mut rest = &text[..];
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at((next(&mut random) as usize % 12).clamp(1, rest.len()));
            pieces.push(piece);
            rest = behind;
        }
        assert_eq!(behind_markup(&pieces, 5), whole, "{pieces:?}");
        assert_ne!(behind_markup(&pieces, 6), whole, "other markup behind {text:?}");
        assert_ne!(behind_markup(&[&text, &[0]], 5), whole, "a zero more behind {text:?}");
        if let Some(at) = (next(&mut random) as usize).checked_rem(length) {
            let mut other = text.clone();
            other[at] ^= 1;
            assert_ne!(behind_markup(&[&other], 5), whole, "{other:?}");
        }
    }
}
