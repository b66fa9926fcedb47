//! Log-probabilities from raw logits: before temperature, penalties and bias, as OpenAI and vLLM report them. Ties go
//! to the lower id. The kernels compute the sum over the vocabulary, in fixed pieces.

use headrace_domain::{TokenLogprob, TopLogprob};
use headrace_kernels::{Isa, logsumexp};

use crate::text::TextOf;

/// A candidate: its logit and its id.
pub(crate) type Candidate = (f32, u32);

/// Returns the log-probability of `id` in a row of logits, with the `top` best alternatives. `row` holds no NaN.
pub(crate) fn score(row: &[f32], id: u32, top: u8, isa: Isa, text: &dyn TextOf) -> TokenLogprob {
    let total = logsumexp(isa, row);
    let logit = row.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let mut best = Vec::new();
    largest(row, usize::from(top), &mut best);
    let top = best.iter().map(|&(logit, id)| TopLogprob {
        id,
        bytes: text.bytes(id).to_vec(),
        logprob: logit - total,
    });
    TokenLogprob { id, bytes: text.bytes(id).to_vec(), logprob: Some(logit - total), top: top.collect() }
}

/// Returns a token that nothing predicts: the first token of a prompt.
pub(crate) fn unscored(id: u32, text: &dyn TextOf) -> TokenLogprob {
    TokenLogprob { id, bytes: text.bytes(id).to_vec(), logprob: None, top: Vec::new() }
}

/// Orders candidates from best to worst: the higher logit first, then the lower id.
pub(crate) fn by_rank(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Writes the `k` best candidates of a row to `best`, in order. Makes one pass and does not sort the row.
pub(crate) fn largest(row: &[f32], k: usize, best: &mut Vec<Candidate>) {
    best.clear();
    if k == 0 {
        return;
    }
    let room = k.saturating_mul(2).max(64);
    let mut bar = f32::NEG_INFINITY;
    for (id, &logit) in row.iter().enumerate() {
        // A later candidate with the same logit has a higher id and loses. Minus infinity is no candidate.
        if logit > bar {
            best.push((logit, id as u32));
            if best.len() >= room {
                bar = keep(best, k);
            }
        }
    }
    keep(best, k);
    best.sort_unstable_by(by_rank);
}

/// Truncates to the `k` best. Returns the logit that a further candidate must exceed.
fn keep(best: &mut Vec<Candidate>, k: usize) -> f32 {
    if best.len() <= k {
        return f32::NEG_INFINITY;
    }
    let (_, last, _) = best.select_nth_unstable_by(k - 1, by_rank);
    let bar = last.0;
    best.truncate(k);
    bar
}

/// Whether every logit is a finite number. There is no branch per element.
pub(crate) fn all_finite(row: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    !row.iter().fold(false, |bad, x| bad | (x.to_bits() & EXPONENT == EXPONENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_those_of_a_full_sort() {
        let mut state = 1u64;
        for len in [1usize, 5, 63, 64, 65, 700] {
            let row: Vec<f32> = (0..len)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // The few values give many ties.
                    ((state >> 60) as f32) - 8.0
                })
                .collect();
            let mut sorted: Vec<Candidate> = row.iter().enumerate().map(|(i, &x)| (x, i as u32)).collect();
            sorted.sort_by(by_rank);
            for k in [0, 1, 2, 20, 64, len, len + 9] {
                let mut best = Vec::new();
                largest(&row, k, &mut best);
                assert_eq!(best, sorted[..k.min(len)], "{k} of {len}");
            }
        }
    }

    #[test]
    fn what_is_not_a_number_is_seen() {
        assert!(all_finite(&[0.0, -1e38, 1e38, f32::MIN_POSITIVE / 2.0]));
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!all_finite(&[1.0, bad, 2.0]));
        }
    }
}
