//! Loads the parts that only some decoders have: latent attention, experts beside a dense network, inputs of layers. Must
//! not know: how a step is computed.

use headrace_checkpoint::decoder::{
    self, DenseAndExperts as DenseAndExpertsConfig, LayerInputsConfig, LinearConfig,
};
use headrace_kernels::math;
use headrace_kernels::matrix::{Matrix, Part};

use super::{Loader, activation, rows_of};
use crate::error::ModelError;
use crate::feed::DenseAndExperts;
use crate::layer::{LatentWeights, LayerInputWeights, LayerInputs, LayerTail};
use crate::quantize::{self, Role};

impl Loader<'_> {
    pub(super) fn latent(&mut self, config: &decoder::LatentConfig) -> Result<LatentWeights, ModelError> {
        let decoder::LatentQuery { compressed, plain, rotary } = &config.query;
        let query_down = match compressed {
            None => None,
            Some((down, norm)) => Some((self.packed(&[down], Role::Inner)?, self.norm(norm)?)),
        };
        let grown =
            config.score_growth.map_or(1.0, |growth| 0.1 * growth.mscale * math::ln(growth.factor) + 1.0);
        let (key, value) = (self.heads(&config.key)?, self.heads(&config.value)?);
        Ok(LatentWeights {
            heads: config.heads,
            latent_dim: config.latent_dim,
            plain_dim: config.plain_dim,
            rotary_dim: config.rotary_dim,
            value_dim: config.value_dim,
            query_down,
            query: self.packed(&[plain, rotary], Role::Inner)?,
            row: self.packed(&[&config.latent, &config.key_rotary], Role::Inner)?,
            latent_norm: self.norm(&config.latent_norm)?,
            key,
            value,
            output: self.packed(&[&config.output], Role::Inner)?,
            table: config.table,
            scale: (f64::from(config.scale) * grown * grown) as f32,
        })
    }

    /// Loads a matrix for each head. Heads that are rows of one tensor are taken from it after it is read once, because
    /// reading it may decode all of it.
    fn heads(&mut self, heads: &[LinearConfig]) -> Result<Vec<Matrix>, ModelError> {
        let Some(source) = heads.first().map(|head| &head.weight).filter(|source| source.expert.is_none())
        else {
            return heads.iter().map(|head| self.packed(&[head], Role::Inner)).collect();
        };
        let name = &source.tensor.name;
        let tensor = self.part(name, &source.tensor.shape, None)?;
        // Keys and values of all heads are about one half of the tensor each.
        self.count(tensor.bytes.len() / 2);
        let mut matrices = Vec::with_capacity(heads.len());
        for LinearConfig { outputs, inputs, weight, .. } in heads {
            let (stored, bytes) = rows_of(&tensor, weight, *inputs)?;
            let target = quantize::target(self.quantize, stored, Role::Inner, *inputs);
            let bytes = quantize::convert(self.pool, name, (stored, &bytes), target, *inputs)?;
            let part = Part { weight_type: target, rows: *outputs, bytes: &bytes, bias: None };
            matrices.push(Matrix::pack(self.pool, &[part], *inputs)?);
        }
        Ok(matrices)
    }

    pub(super) fn both(&mut self, config: &DenseAndExpertsConfig) -> Result<DenseAndExperts, ModelError> {
        let dense = self.feed(&config.dense)?;
        let mut experts = self.experts(&config.experts)?;
        experts.routing.expert_scales = self.elements(&config.expert_scales, config.experts.experts.len())?;
        let mut router_norm = self.norm(&config.router_norm)?;
        router_norm.weight.iter_mut().for_each(|weight| *weight *= config.router_scale);
        Ok(DenseAndExperts {
            dense,
            dense_out_norm: self.norm(&config.dense_out_norm)?,
            router_norm,
            expert_norm: self.norm(&config.expert_norm)?,
            experts,
            expert_out_norm: self.norm(&config.expert_out_norm)?,
        })
    }

    /// Loads what layer `index` of `layers` does after its feed-forward network.
    pub(super) fn tail(
        &mut self,
        config: &decoder::LayerTail,
        (index, layers): (usize, usize),
    ) -> Result<LayerTail, ModelError> {
        let input = match &config.input {
            None => None,
            Some(input) => {
                let width = input.gate.outputs;
                let stride = layers * width;
                Some(LayerInputWeights {
                    activation: activation(input.activation),
                    gate: self.packed(&[&input.gate], Role::Inner)?,
                    projection: self.packed(&[&input.projection], Role::Inner)?,
                    norm: self.norm(&input.norm)?,
                    first: index * width,
                    stride,
                })
            }
        };
        let scale = self.elements(&config.scale, 1)?.first().copied().unwrap_or(1.0);
        Ok(LayerTail { input, scale })
    }

    pub(super) fn layer_inputs(&mut self, config: &LayerInputsConfig) -> Result<LayerInputs, ModelError> {
        let words = &config.words.tensor;
        let (rows, columns) = (words.shape.first(), words.shape.last());
        let (rows, columns) = (rows.copied().unwrap_or(0), columns.copied().unwrap_or(0));
        Ok(LayerInputs {
            width: config.width,
            words: self.whole(&words.name, Role::Inner, rows, columns)?,
            word_scale: config.word_scale,
            projection: self.packed(&[&config.projection], Role::Inner)?,
            projection_scale: config.projection_scale,
            norm: self.norm(&config.norm)?,
            scale: config.scale,
        })
    }
}
