//! Chooses the next token from a row of logits. Must not know: sequences, text or time.
//!
//! The order is: repetition penalty (over prompt and output), frequency and presence penalties (over the output),
//! logit bias, ids that the grammar forbids. Stop ids are suppressed below `min_tokens`. Then the choice is greedy,
//! or temperature → min_p → top_k → top_p → draw. The filters work as in vLLM and transformers: top_p applies to what
//! min_p and top_k left, renormalized, and keeps the token that crosses the bound. Candidates are always in the order
//! (logit descending, id ascending).

use std::collections::HashMap;

use headrace_domain::Sampling;
use headrace_kernels::{Isa, argmax, argmax_allowed, exp_f32, logsumexp, math};

use crate::logprobs::{Candidate, by_rank, largest};

/// A temperature below this counts as greedy, because dividing by it would overflow.
const GREEDY_BELOW: f32 = 1e-5;
/// How far below the best logit each round of ranking looks, in units of the temperature. These are weights of e⁻⁴
/// and e⁻¹². The last round covers everything.
const ROUNDS: [f32; 3] = [4.0, 12.0, f32::INFINITY];

/// The ids that a choice has seen so far, as far as its penalties need them.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The prompt's ids, ascending and without duplicates. Empty unless the repetition penalty needs them.
    pub(crate) prompt: std::sync::Arc<[u32]>,
    /// How often each id was generated. Empty unless a penalty needs it.
    pub(crate) output: HashMap<u32, u32>,
}

/// Whether any penalty depends on the ids seen.
pub(crate) fn penalizes(sampling: &Sampling) -> bool {
    sampling.repetition_penalty != 1.0
        || sampling.frequency_penalty != 0.0
        || sampling.presence_penalty != 0.0
}

/// Whether the next token is always the likeliest one.
pub(crate) fn is_greedy(sampling: &Sampling) -> bool {
    sampling.temperature < GREEDY_BELOW
}

/// Chooses tokens. Holds the scratch memory, so that no token allocates a vector of the vocabulary's size.
#[derive(Debug)]
pub(crate) struct Sampler {
    isa: Isa,
    adjusted: Vec<f32>,
    scaled: Vec<f32>,
    ranked: Vec<Candidate>,
}

impl Sampler {
    pub(crate) fn new(isa: Isa) -> Self {
        Self { isa, adjusted: Vec::new(), scaled: Vec::new(), ranked: Vec::new() }
    }

    /// Returns the next token. `row` holds finite numbers. `random` is in [0, 1).
    pub(crate) fn choose(
        &mut self,
        row: &[f32],
        sampling: &Sampling,
        seen: &Seen,
        barred: ForbiddenIds<'_>,
        random: f64,
    ) -> u32 {
        let as_it_is = !penalizes(sampling) && sampling.logit_bias.is_empty();
        // Fast path for the likeliest token that the grammar allows: the row is not copied.
        if as_it_is
            && is_greedy(sampling)
            && let ForbiddenIds { suppressed: [], allowed: Some(allowed) } = &barred
            && let Some(best) = argmax_allowed(self.isa, row, allowed)
        {
            return best as u32;
        }
        let plain = as_it_is && barred.is_nothing();
        let mut adjusted = std::mem::take(&mut self.adjusted);
        let row = if plain {
            row
        } else {
            adjusted.clear();
            adjusted.extend_from_slice(row);
            adjust(&mut adjusted, sampling, seen);
            barred.apply(&mut adjusted);
            &adjusted
        };
        let best = argmax(self.isa, row).unwrap_or(0);
        let chosen = if is_greedy(sampling) { best as u32 } else { self.draw(row, best, sampling, random) };
        self.adjusted = adjusted;
        chosen
    }

    /// Draws from the filtered distribution.
    fn draw(&mut self, row: &[f32], best: usize, sampling: &Sampling, random: f64) -> u32 {
        let peak = row.get(best).copied().unwrap_or(f32::NEG_INFINITY);
        if peak == f32::NEG_INFINITY {
            return best as u32;
        }
        let law = TokenDistribution { row, peak, temperature: sampling.temperature, min_p: sampling.min_p };
        let (mass, mut rounds) = match sampling.top_k.map(|k| k.get() as usize).filter(|&k| k < row.len()) {
            Some(k) => {
                largest(row, k, &mut self.ranked);
                (self.ranked.iter().map(|c| f64::from(law.weight(c.0))).sum(), ROUNDS.len())
            }
            None => {
                self.ranked.clear();
                let mut rounds = 0;
                (self.mass(&law, &mut rounds), rounds)
            }
        };
        let kept = if sampling.top_p < 1.0 {
            // The total weight of the nucleus.
            let bound = f64::from(sampling.top_p) * mass;
            self.walk(&law, &mut rounds, |sum| sum >= bound).1
        } else {
            mass
        };
        let goal = random * kept;
        self.walk(&law, &mut rounds, |sum| sum > goal).0.unwrap_or(best as u32)
    }

    /// Returns the sum of all weights. Without min_p the kernels compute it over the whole vocabulary, to a relative
    /// error of about 1e-6. With min_p few candidates are left, and they are summed while they are ranked.
    fn mass(&mut self, law: &TokenDistribution<'_>, rounds: &mut usize) -> f64 {
        if law.min_p > 0.0 {
            return self.walk(law, rounds, |_| false).1;
        }
        self.scaled.clear();
        self.scaled.extend(law.row.iter().map(|&logit| law.exponent(logit)));
        math::exp(f64::from(logsumexp(self.isa, &self.scaled)))
    }

    /// Walks down the ranking until `done` returns true for the weights so far, and ranks more of the row as needed.
    /// Returns the last candidate reached and the sum of the weights up to it. If the ranking ends first, that is the
    /// last candidate with any weight.
    fn walk(
        &mut self,
        law: &TokenDistribution<'_>,
        rounds: &mut usize,
        done: impl Fn(f64) -> bool,
    ) -> (Option<u32>, f64) {
        let (mut at, mut sum, mut last) = (0, 0.0, None);
        loop {
            while let Some(&(logit, id)) = self.ranked.get(at) {
                let weight = law.weight(logit);
                if weight <= 0.0 {
                    return (last, sum);
                }
                at += 1;
                sum += f64::from(weight);
                last = Some(id);
                if done(sum) {
                    return (last, sum);
                }
            }
            if *rounds >= ROUNDS.len() {
                return (last, sum);
            }
            law.rank_further(*rounds, &mut self.ranked);
            *rounds += 1;
        }
    }
}

/// A row of logits as an unnormalized distribution. The weight of a token is its probability relative to that of the
/// likeliest token.
struct TokenDistribution<'a> {
    row: &'a [f32],
    /// The largest logit.
    peak: f32,
    temperature: f32,
    min_p: f32,
}

impl TokenDistribution<'_> {
    fn exponent(&self, logit: f32) -> f32 {
        (logit - self.peak) / self.temperature
    }

    /// Returns 1 for the likeliest token, 0 below min_p.
    fn weight(&self, logit: f32) -> f32 {
        let weight = exp_f32(self.exponent(logit));
        if weight >= self.min_p { weight } else { 0.0 }
    }

    /// Appends, in order, the candidates between the previous round's bound and this round's.
    fn rank_further(&self, round: usize, ranked: &mut Vec<Candidate>) {
        let bound = |depth: f32| self.peak - depth * self.temperature;
        let above = round.checked_sub(1).and_then(|before| ROUNDS.get(before)).map(|&depth| bound(depth));
        let from = ROUNDS.get(round).map_or(f32::NEG_INFINITY, |&depth| bound(depth));
        let start = ranked.len();
        for (id, &logit) in self.row.iter().enumerate() {
            if logit >= from && logit > f32::NEG_INFINITY && above.is_none_or(|above| logit < above) {
                ranked.push((logit, id as u32));
            }
        }
        if let Some(added) = ranked.get_mut(start..) {
            added.sort_unstable_by(by_rank);
        }
    }
}

/// The bit of each id in its word.
const BITS: [u32; 32] = {
    let mut bits = [1; 32];
    let mut at = 1;
    while at < 32 {
        bits[at] = bits[at - 1] << 1;
        at += 1;
    }
    bits
};

/// The ids that must not be chosen.
#[derive(Debug, Default)]
pub(crate) struct ForbiddenIds<'a> {
    /// Ids that are not chosen while another id can be.
    pub(crate) suppressed: &'a [u32],
    /// The ids that the grammar allows, one bit each: bit `id % 32` of word `id / 32`.
    pub(crate) allowed: Option<&'a [u32]>,
}

impl ForbiddenIds<'_> {
    fn is_nothing(&self) -> bool {
        self.suppressed.is_empty() && self.allowed.is_none()
    }

    fn apply(self, row: &mut [f32]) {
        let Some(allowed) = self.allowed else {
            bar(row, self.suppressed);
            return;
        };
        // An answer that can only end does end, even below `min_tokens`.
        let other = |allowed: &[u32]| {
            let kept = |(at, word): (usize, &u32)| {
                let of_word = self.suppressed.iter().filter(|id| **id as usize / 32 == at);
                of_word.fold(*word, |word, id| word & !(1 << (id % 32)))
            };
            allowed.iter().enumerate().any(|word| kept(word) != 0)
        };
        if !self.suppressed.is_empty() && other(allowed) {
            bar(row, self.suppressed);
        }
        let (whole, rest) = row.as_chunks_mut::<32>();
        let last = allowed.get(whole.len()).copied().unwrap_or_default();
        for (ids, word) in whole.iter_mut().zip(allowed) {
            match *word {
                u32::MAX => {}
                0 => ids.fill(f32::NEG_INFINITY),
                word => bar_but(ids, word),
            }
        }
        bar_but(rest, last);
        // Ids beyond the last word are not allowed.
        let known = allowed.len().saturating_mul(32);
        if let Some(beyond) = row.get_mut(known..) {
            beyond.fill(f32::NEG_INFINITY);
        }
    }
}

/// Bars the ids whose bit is not set. There is no branch, because processors cannot predict it for the words of a
/// vocabulary. A fixed length of 32 lets the compiler process all ids of a word at once.
#[inline(always)]
fn bar_but(ids: &mut [f32], word: u32) {
    for (logit, bit) in ids.iter_mut().zip(&BITS) {
        let barred = if word & bit == 0 { u32::MAX } else { 0 };
        *logit = f32::from_bits(logit.to_bits() & !barred | f32::NEG_INFINITY.to_bits() & barred);
    }
}

fn bar(row: &mut [f32], ids: &[u32]) {
    for &id in ids {
        if let Some(logit) = row.get_mut(id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Applies penalties and bias. Each id is adjusted independently, so the order of ids does not matter.
fn adjust(row: &mut [f32], sampling: &Sampling, seen: &Seen) {
    let repetition = sampling.repetition_penalty;
    if repetition != 1.0 {
        let generated = seen.output.keys().filter(|id| seen.prompt.binary_search(id).is_err());
        for &id in seen.prompt.iter().chain(generated) {
            if let Some(logit) = row.get_mut(id as usize) {
                *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            }
        }
    }
    if sampling.frequency_penalty != 0.0 || sampling.presence_penalty != 0.0 {
        for (&id, &count) in &seen.output {
            if let Some(logit) = row.get_mut(id as usize) {
                *logit -= sampling.frequency_penalty * count as f32;
                *logit -= sampling.presence_penalty;
            }
        }
    }
    for &(id, bias) in &sampling.logit_bias {
        if let Some(logit) = row.get_mut(id as usize) {
            *logit += bias;
        }
    }
}

#[cfg(test)]
mod tests;
