//! Loads the weights of recurrent mixers. Must not know: how a step is computed.

use headrace_checkpoint::decoder;
use headrace_kernels::{HeadSharing, exp_f32};

use crate::delta::DeltaWeights;
use crate::error::ModelError;
use crate::mamba::MambaWeights;
use crate::quantize::Role;
use crate::short_conv::{ConvolutionWeights, ShortConvWeights};
use crate::weights::Loader;

/// Elements of a vector of the kernels, to whose multiple the channels of a convolution are padded.
const LANES: usize = 16;

impl Loader<'_> {
    pub(crate) fn short_conv(
        &mut self,
        config: &decoder::ShortConvConfig,
    ) -> Result<ShortConvWeights, ModelError> {
        Ok(ShortConvWeights {
            input: self.packed(&[&config.input], Role::Inner)?,
            convolution: self.convolution(&config.convolution)?,
            output: self.packed(&[&config.output], Role::Inner)?,
        })
    }

    pub(crate) fn delta(&mut self, config: &decoder::DeltaConfig) -> Result<DeltaWeights, ModelError> {
        Ok(DeltaWeights {
            key_heads: config.key_heads,
            value_heads: config.value_heads,
            sharing: match config.head_order {
                decoder::ValueHeadOrder::Grouped => {
                    HeadSharing::Runs(config.value_heads / config.key_heads.max(1))
                }
                decoder::ValueHeadOrder::Tiled => HeadSharing::Strided(config.key_heads),
            },
            key_dim: config.key_dim,
            value_dim: config.value_dim,
            input: self.packed(&config.inputs(), Role::Inner)?,
            convolution: self.convolution(&config.convolution)?,
            step_bias: self.elements(&config.step_bias, config.value_heads)?,
            rates: self.rates((&config.rates, config.rate_form), config.value_heads)?,
            norm: self.norm(&config.norm)?.weight,
            eps: config.norm.eps,
            output: self.packed(&[&config.output], Role::Inner)?,
        })
    }

    pub(crate) fn mamba(&mut self, config: &decoder::MambaConfig) -> Result<MambaWeights, ModelError> {
        Ok(MambaWeights {
            heads: config.heads,
            head_dim: config.head_dim,
            groups: config.groups,
            state_dim: config.state_dim,
            input: self.packed(&[&config.input], Role::Inner)?,
            convolution: self.convolution(&config.convolution)?,
            step_bias: self.elements(&config.step_bias, config.heads)?,
            steps: config.steps,
            rates: self.rates((&config.rates, config.rate_form), config.heads)?,
            skips: self.elements(&config.skips, config.heads)?,
            norm: self.norm(&config.norm)?.weight,
            eps: config.norm.eps,
            output: self.packed(&[&config.output], Role::Inner)?,
        })
    }

    /// The logarithms of decays for each unit of the step size: the rates with a minus sign.
    fn rates(
        &mut self,
        (source, form): (&decoder::RowSource, decoder::RateForm),
        heads: usize,
    ) -> Result<Vec<f32>, ModelError> {
        let stored = self.elements(source, heads)?;
        match form {
            decoder::RateForm::Logarithm => Ok(stored.into_iter().map(|log| -exp_f32(log)).collect()),
            decoder::RateForm::Negative => match stored.iter().find(|rate| !(f32::MIN..=0.0).contains(*rate))
            {
                None => Ok(stored),
                Some(bad) => {
                    let problem = format!("has a rate of {bad}; each must be a number of at most 0");
                    Err(ModelError::Tensor { name: source.tensor.name.clone(), problem })
                }
            },
        }
    }

    /// Loads a convolution, and orders its weights by tap.
    fn convolution(&mut self, config: &decoder::ConvolutionConfig) -> Result<ConvolutionWeights, ModelError> {
        let (channels, taps) = (config.channels, config.taps);
        let stride = channels.next_multiple_of(LANES);
        let by_channel = self.elements(&config.weight, channels.saturating_mul(taps))?;
        let mut weight = vec![0.0; stride.saturating_mul(taps)];
        for (tap, row) in weight.chunks_exact_mut(stride.max(1)).enumerate() {
            for (to, from) in row.iter_mut().zip(by_channel.chunks_exact(taps.max(1))) {
                *to = from.get(tap).copied().unwrap_or_default();
            }
        }
        let bias = match &config.bias {
            None => Vec::new(),
            Some(source) => {
                let mut bias = self.elements(source, channels)?;
                bias.resize(stride, 0.0);
                bias
            }
        };
        Ok(ConvolutionWeights { channels, weight, bias })
    }
}
