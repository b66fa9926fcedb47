//! Tests the sampler against a plain reference that sorts everything, and each rule by itself.

use std::num::NonZeroU32;

use headrace_domain::Sampling;
use headrace_kernels::Isa;
use proptest::prelude::*;

use super::*;
use crate::random::uniform;

fn sampler() -> Sampler {
    Sampler::new(Isa::supported().first().copied().unwrap())
}

fn with(set: impl FnOnce(&mut Sampling)) -> Sampling {
    let mut sampling = Sampling { temperature: 1.0, ..Sampling::default() };
    set(&mut sampling);
    sampling
}

fn pick(row: &[f32], sampling: &Sampling, seen: &Seen, suppressed: &[u32], random: f64) -> u32 {
    sampler().choose(row, sampling, seen, ForbiddenIds { suppressed, allowed: None }, random)
}

/// Sorts the whole row and follows the definition.
fn reference(row: &[f32], s: &Sampling) -> Vec<(u32, f64)> {
    let mut all: Vec<Candidate> = row.iter().enumerate().map(|(i, &x)| (x, i as u32)).collect();
    all.sort_by(by_rank);
    let peak = all[0].0;
    let weigh = |x: f32| f64::from(exp_f32((x - peak) / s.temperature));
    let mut kept: Vec<_> =
        all.iter().map(|&(x, id)| (id, weigh(x))).filter(|w| w.1 >= f64::from(s.min_p)).collect();
    kept.truncate(s.top_k.map_or(usize::MAX, |k| k.get() as usize));
    let mass: f64 = kept.iter().map(|k| k.1).sum();
    if s.top_p < 1.0 {
        let mut sum = 0.0;
        let crossing = kept.iter().position(|k| {
            sum += k.1;
            sum >= f64::from(s.top_p) * mass
        });
        kept.truncate(crossing.map_or(kept.len(), |at| at + 1));
    }
    kept
}

proptest! {
    #[test]
    fn draws_follow_the_definition(
        row in prop::collection::vec(-12f32..12.0, 1..300),
        temperature in 0.05f32..3.0,
        top_k in prop::option::of(1u32..400),
        top_p in prop_oneof![Just(1.0f32), 0.01f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
        random in 0.0f64..1.0,
    ) {
        let s = with(|s| {
            s.temperature = temperature;
            s.top_k = top_k.and_then(NonZeroU32::new);
            s.top_p = top_p;
            s.min_p = min_p;
        });
        let kept = reference(&row, &s);
        let chosen = pick(&row, &s, &Seen::default(), &[], random);
        let mass: f64 = kept.iter().map(|k| k.1).sum();
        let at = kept.iter().position(|k| k.0 == chosen);
        prop_assert!(at.is_some(), "{chosen} was filtered out");
        // The draw falls into the chosen id's share, up to the rounding of sums.
        let before: f64 = kept.iter().take(at.unwrap()).map(|k| k.1).sum();
        let share = kept[at.unwrap()].1;
        let goal = random * mass;
        prop_assert!(goal >= before - 1e-5 * mass && goal <= before + share + 1e-5 * mass);
    }
}

#[test]
fn each_rule_by_itself() {
    let row = [1.0f32, 3.0, 2.0, -1.0, 3.0];
    let greedy = Sampling::default();
    let none = Seen::default();
    assert_eq!(pick(&row, &greedy, &none, &[], 0.9), 1, "ties go to the lower id");
    assert_eq!(pick(&row, &greedy, &none, &[1], 0.9), 4, "a suppressed id is passed over");
    assert_eq!(
        pick(&row, &greedy, &none, &[0, 1, 2, 3, 4], 0.9),
        0,
        "with all suppressed something is still chosen"
    );
    let biased = Sampling { logit_bias: vec![(3, 100.0)], ..Sampling::default() };
    assert_eq!(pick(&row, &biased, &none, &[], 0.9), 3);
    assert_eq!(pick(&row, &biased, &none, &[3], 0.9), 1, "suppression is stronger than bias");
    let seen = Seen { prompt: vec![1].into(), output: HashMap::from([(4, 2)]) };
    let repetition = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
    assert_eq!(pick(&row, &repetition, &seen, &[], 0.9), 2, "prompt and output count");
    let frequency = Sampling { frequency_penalty: 1.0, ..Sampling::default() };
    let one = Seen { prompt: vec![1].into(), output: HashMap::from([(1, 1), (4, 1)]) };
    assert_eq!(
        pick(&row, &frequency, &one, &[], 0.9),
        1,
        "two minus one each: a tie at 2 with id 2, won by 1"
    );
    let presence = Sampling { presence_penalty: 1.5, ..Sampling::default() };
    assert_eq!(pick(&row, &presence, &one, &[], 0.9), 2);
    let prompt_only = Seen { prompt: vec![1, 4].into(), output: HashMap::new() };
    assert_eq!(pick(&row, &presence, &prompt_only, &[], 0.9), 1, "the prompt does not count for presence");
    let negative = [-1.0f32, -1.5];
    let seen = Seen { prompt: vec![0].into(), output: HashMap::new() };
    assert_eq!(pick(&negative, &repetition, &seen, &[], 0.9), 1, "a negative logit is multiplied");
}

#[test]
fn tiny_temperatures_are_greedy_and_huge_ones_uniform() {
    let row = [0.0f32, 0.001, 0.0];
    let tiny = with(|s| s.temperature = 1e-30);
    let huge = with(|s| s.temperature = 1e30);
    for i in 0..50 {
        let random = uniform(3, 0, i);
        assert_eq!(pick(&row, &tiny, &Seen::default(), &[], random), 1);
        // The order of rank is 1, 0, 2.
        let expected = [1, 0, 2][(random * 3.0) as usize];
        assert_eq!(pick(&row, &huge, &Seen::default(), &[], random), expected);
    }
}

#[test]
fn frequencies_match_probabilities() {
    let row: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln()).collect();
    let plain = with(|_| {});
    let mut counts = [0u32; 4];
    let mut sampler = sampler();
    for i in 0..8000 {
        let id = sampler.choose(&row, &plain, &Seen::default(), ForbiddenIds::default(), uniform(11, 0, i));
        counts[id as usize] += 1;
    }
    for (count, expected) in counts.iter().zip([4000.0, 2000.0, 1000.0, 1000.0]) {
        assert!((f64::from(*count) - expected).abs() < 4.5 * f64::sqrt(expected), "{counts:?}");
    }
}

#[test]
fn what_a_form_does_not_allow_is_barred_to_the_last_id() {
    // Words of all kinds, one word that the row ends within, and ids without a word.
    let words = [u32::MAX, 0, 0x8000_0001, 0x5555_5555, 7];
    for size in [160, 130, 129, 96, 33, 200] {
        let mut row: Vec<f32> = (0..size).map(|id| id as f32 - 50.0).collect();
        let before = row.clone();
        ForbiddenIds { suppressed: &[], allowed: Some(&words) }.apply(&mut row);
        for (id, (logit, before)) in row.iter().zip(&before).enumerate() {
            let allowed = words.get(id / 32).is_some_and(|word| word >> (id % 32) & 1 == 1);
            let expected = if allowed { *before } else { f32::NEG_INFINITY };
            assert_eq!(logit.to_bits(), expected.to_bits(), "{id} of {size}");
        }
    }
}

#[test]
fn the_likeliest_that_a_form_allows_is_what_barring_the_others_leaves() {
    let mut state = 7_u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut found = 0;
    for _ in 0..3_000 {
        let size = 1 + next(200) as usize;
        // Few distinct values, so that many are equal. They include zeros of both signs.
        let values = [-2.0, -0.0, 0.0, 1.5, 3.0];
        let row: Vec<f32> = (0..size).map(|_| values[next(5) as usize]).collect();
        let kinds = [0, 0, u32::MAX, 0x8000_0001, 1 << next(32), next(1 << 32) as u32];
        let words: Vec<u32> = (0..next(8)).map(|_| kinds[next(6) as usize]).collect();
        let mut barred = row.clone();
        ForbiddenIds { suppressed: &[], allowed: Some(&words) }.apply(&mut barred);
        let expected = argmax(Isa::best(), &barred).filter(|at| barred[*at] > f32::NEG_INFINITY);
        assert_eq!(argmax_allowed(Isa::best(), &row, &words), expected, "{row:?} {words:x?}");
        found += usize::from(expected.is_some());
    }
    assert!(found > 1_000, "{found}");
}
