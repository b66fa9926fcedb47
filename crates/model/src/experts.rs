//! Mixtures of experts: choice of the experts of each row, their networks, and the weighted sum. Must not know:
//! architectures, files, or where the rows come from.
//!
//! **Same bits.** The router is computed in f32. Each row's scores, choice and sum depend on that row alone: the rows of
//! an expert are gathered for its products, whose bits do not depend on each other, and a row's sum runs over its
//! experts in the order of their ranks, the shared network last.

use headrace_kernels::{Activation, KernelError, Kernels, Write, exp_f32};

use crate::feed::{ExpertActivation, ExpertMixture, ExpertWeights, RoutingRule, ScoreRule};
use crate::scratch::{ExpertScratch, room};

impl ExpertMixture {
    /// Computes the weighted sum of its experts for each of `count` rows of `input` into `out`. The rows of `routed` choose
    /// the experts. All have rows of `hidden` elements. The shared network is not included.
    pub(crate) fn sum(
        &self,
        kernels: &mut Kernels,
        (input, routed): (&[f32], &[f32]),
        (count, hidden): (usize, usize),
        scratch: &mut ExpertScratch,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let logits = room(&mut scratch.logits, count * self.experts.len());
        kernels.matmul(routed, count, &self.router, logits, Write::Set)?;
        self.route(count, scratch);
        let Some(latent) = &self.latent else {
            return self.sum_routed(kernels, (input, count, hidden), scratch, out);
        };
        let width = latent.input.n();
        // Taken out, because the experts write to other fields of the scratch.
        let mut inputs = std::mem::take(&mut scratch.latent);
        let mut sums = std::mem::take(&mut scratch.latent_sums);
        let projected = room(&mut inputs, count * width);
        let summed = room(&mut sums, count * width);
        let result = kernels
            .matmul(input, count, &latent.input, projected, Write::Set)
            .and_then(|()| self.sum_routed(kernels, (projected, count, width), scratch, summed))
            .and_then(|()| kernels.matmul(summed, count, &latent.output, out, Write::Set));
        (scratch.latent, scratch.latent_sums) = (inputs, sums);
        result
    }

    /// Computes the weighted sum of the chosen experts for each row. Rows have `hidden` elements.
    fn sum_routed(
        &self,
        kernels: &mut Kernels,
        (input, count, hidden): (&[f32], usize, usize),
        scratch: &mut ExpertScratch,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let by_rank = count * self.chosen * hidden;
        room(&mut scratch.by_rank, by_rank);
        for (index, expert) in self.experts.iter().enumerate() {
            let ExpertScratch { members, gathered, wide, narrow, outputs, by_rank, .. } = &mut *scratch;
            let Some(members) = members.get(index).filter(|members| !members.is_empty()) else { continue };
            let rows = members.len();
            let gathered = room(gathered, rows * hidden);
            for (to, &entry) in gathered.chunks_exact_mut(hidden).zip(members) {
                let row = entry / self.chosen;
                to.copy_from_slice(input.get(row * hidden..(row + 1) * hidden).unwrap_or_default());
            }
            let outputs = room(outputs, rows * hidden);
            self.expert(kernels, expert, (gathered, rows), (wide, narrow), outputs)?;
            for (from, &entry) in outputs.chunks_exact(hidden).zip(members) {
                if let Some(to) = by_rank.get_mut(entry * hidden..(entry + 1) * hidden) {
                    to.copy_from_slice(from);
                }
            }
        }
        let outputs = scratch.by_rank.chunks_exact(hidden);
        let rows = out.chunks_exact_mut(hidden).take(count).flat_map(|row| {
            row.fill(0.0);
            std::iter::once(row)
        });
        let mut ranked = scratch.ranked.iter().zip(outputs);
        for row in rows {
            for (&(_, weight), output) in ranked.by_ref().take(self.chosen) {
                row.iter_mut().zip(output).for_each(|(sum, y)| *sum += weight * y);
            }
        }
        Ok(())
    }

    /// Computes one expert for its rows.
    fn expert(
        &self,
        kernels: &mut Kernels,
        expert: &ExpertWeights,
        (input, rows): (&[f32], usize),
        (wide, narrow): (&mut Vec<f32>, &mut Vec<f32>),
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let inner = self.inner;
        let wide = room(wide, rows * expert.input.n());
        kernels.matmul(input, rows, &expert.input, wide, Write::Set)?;
        match self.activation {
            ExpertActivation::Plain(activation) => {
                kernels.activate(activation, wide, inner)?;
                kernels.matmul(wide, rows, &expert.down, out, Write::Set)
            }
            gated => {
                let narrow = room(narrow, rows * inner);
                match gated {
                    ExpertActivation::Gated(Activation::Silu) => kernels.silu_mul(wide, inner, narrow)?,
                    ExpertActivation::Gated(other) => kernels.activate_gated(other, wide, inner, narrow)?,
                    ExpertActivation::Clamped { limit, slope } => {
                        kernels.clamped_gated(wide, inner, (limit, slope), narrow)?;
                    }
                    ExpertActivation::Plain(_) => {}
                }
                kernels.matmul(narrow, rows, &expert.down, out, Write::Set)
            }
        }
    }

    /// Chooses the experts of every row, and lists the rows of every expert.
    fn route(&self, count: usize, scratch: &mut ExpertScratch) {
        let experts = self.experts.len();
        let ExpertScratch { logits, scores, choice, ranked, members, .. } = scratch;
        ranked.clear();
        members.resize_with(experts, Vec::new);
        members.iter_mut().for_each(Vec::clear);
        for logits in logits.chunks_exact(experts).take(count) {
            self.routing.choose(logits, self.chosen, (scores, choice), ranked);
        }
        for (entry, (expert, _)) in ranked.iter().enumerate() {
            if let Some(members) = members.get_mut(*expert) {
                members.push(entry);
            }
        }
    }

    /// Adds the shared network's output, already computed in `shared`, to `out`.
    pub(crate) fn add_shared(
        &self,
        kernels: &mut Kernels,
        (input, count, hidden): (&[f32], usize, usize),
        shared: &[f32],
        scratch: &mut ExpertScratch,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let Some(gate) = self.shared.as_ref().and_then(|shared| shared.gate.as_ref()) else {
            return kernels.add_scaled(shared, hidden, 1.0, out);
        };
        let gates = room(&mut scratch.gate, count);
        kernels.matmul(input, count, gate, gates, Write::Set)?;
        for ((row, shared), gate) in
            out.chunks_exact_mut(hidden).zip(shared.chunks_exact(hidden)).zip(&*gates)
        {
            let weight = sigmoid(*gate);
            row.iter_mut().zip(shared).for_each(|(sum, y)| *sum += weight * y);
        }
        Ok(())
    }
}

impl RoutingRule {
    /// Appends the chosen experts of one row with their weights, best first.
    fn choose(
        &self,
        logits: &[f32],
        chosen: usize,
        (scores, choice): (&mut Vec<f32>, &mut Vec<f32>),
        ranked: &mut Vec<(usize, f32)>,
    ) {
        scores.clear();
        scores.extend_from_slice(logits);
        match self.scores {
            ScoreRule::Softmax => softmax(scores),
            ScoreRule::SoftmaxOfChosen => {}
            ScoreRule::Sigmoid => scores.iter_mut().for_each(|score| *score = sigmoid(*score)),
        }
        choice.clear();
        choice.extend_from_slice(scores);
        choice.iter_mut().zip(&self.bias).for_each(|(score, bias)| *score += bias);
        if let Some(groups) = self.groups {
            keep_groups(choice, groups);
        }
        let first = ranked.len();
        for _ in 0..chosen {
            let best = best_of(choice);
            if let Some(taken) = choice.get_mut(best) {
                *taken = f32::NEG_INFINITY;
            }
            ranked.push((best, scores.get(best).copied().unwrap_or(0.0)));
        }
        let Some(taken) = ranked.get_mut(first..) else { return };
        if self.scores == ScoreRule::SoftmaxOfChosen {
            scores.clear();
            scores.extend(taken.iter().map(|(_, logit)| *logit));
            softmax(scores);
            taken.iter_mut().zip(&*scores).for_each(|((_, weight), score)| *weight = *score);
        }
        if let Some(addend) = self.renormalise {
            let sum = taken.iter().fold(0.0, |sum, (_, weight)| sum + weight) + addend;
            taken.iter_mut().for_each(|(_, weight)| *weight /= sum);
        }
        if self.factor != 1.0 {
            taken.iter_mut().for_each(|(_, weight)| *weight *= self.factor);
        }
        for (expert, weight) in taken {
            *weight *= self.expert_scales.get(*expert).copied().unwrap_or(1.0);
        }
    }
}

/// The index of the largest value, the first of equal ones. A NaN counts as the largest, so that it reaches the output
/// and is noticed.
fn best_of(values: &[f32]) -> usize {
    let mut best = 0;
    let mut most = f32::NEG_INFINITY;
    for (index, &value) in values.iter().enumerate() {
        if value.is_nan() {
            return index;
        }
        if value > most {
            (best, most) = (index, value);
        }
    }
    best
}

/// Excludes the experts of all groups but the best.
fn keep_groups(choice: &mut [f32], (count, kept, best): (usize, usize, usize)) {
    let size = choice.len() / count.max(1);
    if size == 0 {
        return;
    }
    let score = |group: &[f32]| {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for &value in group {
            if value > first {
                (first, second) = (value, first);
            } else if value > second {
                second = value;
            }
        }
        if best > 1 && size > 1 { first + second } else { first }
    };
    let mut groups: Vec<f32> = choice.chunks(size).map(score).collect();
    let mut is_kept = vec![false; groups.len()];
    for _ in 0..kept {
        let best = best_of(&groups);
        if let (Some(score), Some(kept)) = (groups.get_mut(best), is_kept.get_mut(best)) {
            *score = f32::NEG_INFINITY;
            *kept = true;
        }
    }
    for (group, is_kept) in choice.chunks_mut(size).zip(is_kept) {
        if !is_kept {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

fn softmax(values: &mut [f32]) {
    let most = values.iter().fold(f32::NEG_INFINITY, |most, &value| if value > most { value } else { most });
    values.iter_mut().for_each(|value| *value = exp_f32(*value - most));
    let sum = values.iter().fold(0.0, |sum, value| sum + value);
    values.iter_mut().for_each(|value| *value /= sum);
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp_f32(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routing(scores: ScoreRule) -> RoutingRule {
        RoutingRule {
            scores,
            bias: Vec::new(),
            groups: None,
            renormalise: None,
            factor: 1.0,
            expert_scales: Vec::new(),
        }
    }

    fn chosen(routing: &RoutingRule, logits: &[f32], count: usize) -> Vec<(usize, f32)> {
        let mut ranked = Vec::new();
        routing.choose(logits, count, (&mut Vec::new(), &mut Vec::new()), &mut ranked);
        ranked
    }

    fn close(what: &str, got: &[(usize, f32)], want: &[(usize, f32)]) {
        assert_eq!(got.len(), want.len(), "{what}");
        for ((expert, weight), (wanted, expected)) in got.iter().zip(want) {
            assert_eq!(expert, wanted, "{what}: {got:?}");
            assert!((weight - expected).abs() < 1e-6, "{what}: {got:?}, expected {want:?}");
        }
    }

    #[test]
    fn scores_become_choices_and_weights() {
        let ln = f32::ln;
        let logits = [ln(1.0), ln(4.0), ln(2.0), ln(3.0)];
        close("softmax", &chosen(&routing(ScoreRule::Softmax), &logits, 2), &[(1, 0.4), (3, 0.3)]);
        let renormalised = RoutingRule { renormalise: Some(0.0), ..routing(ScoreRule::Softmax) };
        close("renormalised", &chosen(&renormalised, &logits, 2), &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]);
        let of_chosen = routing(ScoreRule::SoftmaxOfChosen);
        close("softmax of the chosen", &chosen(&of_chosen, &logits, 2), &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]);
        let sigmoid =
            RoutingRule { bias: vec![0.5, 0.0, 0.0, 0.0], factor: 2.0, ..routing(ScoreRule::Sigmoid) };
        close("the bias only chooses", &chosen(&sigmoid, &logits, 2), &[(0, 1.0), (1, 1.6)]);
        let scaled = RoutingRule { expert_scales: vec![1.0, 0.5, 1.0, 3.0], ..routing(ScoreRule::Softmax) };
        close("a factor for each expert", &chosen(&scaled, &logits, 2), &[(1, 0.2), (3, 0.9)]);
        close(
            "the lower number of equals",
            &chosen(&routing(ScoreRule::Softmax), &[0.0; 4], 2),
            &[(0, 0.25), (1, 0.25)],
        );
        // Groups (0, 1) and (2, 3): the best of each are 4 and 3, the sums 5 and 5.
        let groups = |best| RoutingRule { groups: Some((2, 1, best)), ..routing(ScoreRule::Softmax) };
        close("best of a group", &chosen(&groups(1), &logits, 1), &[(1, 0.4)]);
        close(
            "sum of two",
            &chosen(&groups(2), &[ln(1.0), ln(4.0), ln(2.0), ln(4.5)], 1),
            &[(3, 4.5 / 11.5)],
        );
        assert!(chosen(&routing(ScoreRule::Softmax), &[0.0, f32::NAN], 1)[0].1.is_nan());
    }
}
