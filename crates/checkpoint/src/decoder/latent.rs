//! Latent attention (DeepSeek-AI 2024, arXiv 2405.04434): keys and values of all heads are products of one compressed row
//! for each token. Must not know architectures, or in which order the products are computed.

use super::norm::NormConfig;
use super::source::{LinearConfig, PartSource};

/// Attention over one compressed row for each token: its latent, and a rotated part of the keys that all heads share.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentConfig {
    /// Number of query heads.
    pub heads: usize,
    /// Width of the latent.
    pub latent_dim: usize,
    /// Elements of a head's query and key that are not rotated. Those of the key are products of the latent.
    pub plain_dim: usize,
    /// Elements of a head's query and key that are rotated. Even.
    pub rotary_dim: usize,
    /// Elements of a head's value.
    pub value_dim: usize,
    /// The projection of the queries.
    pub query: LatentQuery,
    /// `latent_dim × hidden`.
    pub latent: LinearConfig,
    /// Norm of the latent.
    pub latent_norm: NormConfig,
    /// `rotary_dim × hidden`: the rotated part of the keys.
    pub key_rotary: LinearConfig,
    /// For each head `latent_dim × plain_dim`: the transposed projection from the latent to the key.
    pub key: Vec<LinearConfig>,
    /// For each head `value_dim × latent_dim`: the projection from the latent to the value.
    pub value: Vec<LinearConfig>,
    /// `hidden × heads·value_dim`.
    pub output: LinearConfig,
    /// Index into [`super::ModelConfig::rotary`].
    pub table: usize,
    /// Factor on every score.
    pub scale: f32,
    /// A further factor on every score. `None` means 1.
    pub score_growth: Option<ScoreGrowth>,
}

/// Scores grow with the scaling of the rotary frequencies: by the square of `0.1 · mscale · ln factor + 1`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreGrowth {
    /// `mscale_all_dim`. Positive.
    pub mscale: f64,
    /// The factor of the scaling. At least 1.
    pub factor: f64,
}

/// The projection of the queries. Its output holds the plain elements of all heads, then the rotated ones of all heads.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentQuery {
    /// A compression before the projection: `rank × hidden`, and the norm of its output.
    pub compressed: Option<(LinearConfig, NormConfig)>,
    /// `heads·plain_dim × rank`, or `× hidden` without compression.
    pub plain: LinearConfig,
    /// `heads·rotary_dim × rank`, or `× hidden` without compression.
    pub rotary: LinearConfig,
}

impl LatentConfig {
    /// Elements that are stored of each token: the latent and the rotated part of the keys.
    pub fn row_width(&self) -> usize {
        self.latent_dim + self.rotary_dim
    }

    /// The dense layers, grouped as they are packed.
    pub(crate) fn matrices(&self) -> Vec<Vec<&LinearConfig>> {
        let mut all = vec![vec![&self.latent, &self.key_rotary]];
        all.extend(self.query.compressed.iter().map(|(linear, _)| vec![linear]));
        all.push(vec![&self.query.plain, &self.query.rotary]);
        all.extend(self.key.iter().chain(&self.value).map(|head| vec![head]));
        all.push(vec![&self.output]);
        all
    }

    pub(crate) fn each_source<'a>(&'a self, list: &mut Vec<PartSource<'a>>) {
        self.latent_norm.each_source(list);
        if let Some((_, norm)) = &self.query.compressed {
            norm.each_source(list);
        }
        let heads = self.key.iter().chain(&self.value);
        let whole = [&self.latent, &self.key_rotary, &self.query.plain, &self.query.rotary, &self.output];
        let compressed = self.query.compressed.iter().map(|(linear, _)| linear);
        whole.into_iter().chain(compressed).chain(heads).for_each(|linear| linear.each_source(list));
    }
}
