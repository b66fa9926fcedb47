//! Norms of the residual stream, and of queries, keys and values: their options and the origin of their weights. Must not
//! know where they are applied.

use super::source::{ElementForm, PartSource, RowSource};

/// The statistics that a norm divides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// Root mean square (Zhang and Sennrich 2019, arXiv 1910.07467).
    Rms,
    /// Mean and variance (Ba, Kiros and Hinton 2016, arXiv 1607.06450).
    Layer,
}

/// A norm over the whole width of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct NormConfig {
    /// The statistics.
    pub kind: NormKind,
    /// Added to the variance. Positive.
    pub eps: f32,
    /// Elements of a row.
    pub width: usize,
    /// One factor for each element. `None` means 1 for all.
    pub weight: Option<RowSource>,
    /// One addend for each element.
    pub bias: Option<RowSource>,
    /// Whether the checkpoint stores `weight − 1`.
    pub plus_one: bool,
}

impl NormConfig {
    pub(crate) fn each_source<'a>(&'a self, list: &mut Vec<PartSource<'a>>) {
        let form = if self.plus_one { ElementForm::LessOne } else { ElementForm::Plain };
        let weight = |source| PartSource { source, form, is_norm: true };
        list.extend(self.weight.iter().map(weight).chain(self.bias.iter().map(PartSource::plain)));
    }
}

/// A norm over queries, keys or values.
#[derive(Debug, Clone, PartialEq)]
pub enum HeadNorm {
    /// Over each head by itself, with the same weights for all heads.
    Head(NormConfig),
    /// Over each head by itself, with weights of its own for every head: `width` is that of all heads together.
    EachHead(NormConfig),
    /// Over all heads together.
    Whole(NormConfig),
}

impl HeadNorm {
    /// The norm's weights and statistics.
    pub fn norm(&self) -> &NormConfig {
        match self {
            Self::Head(norm) | Self::EachHead(norm) | Self::Whole(norm) => norm,
        }
    }
}
