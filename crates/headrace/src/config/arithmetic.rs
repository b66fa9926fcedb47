//! How models are computed: mode, KV type, quantizing at load; of each model, or else of all.
//! Must not know: weights, or how anything is computed.

use headrace_kernels::ComputeMode;
use headrace_kernels::attention::KvType;
use headrace_quant::BlockType;

/// Names of the compute modes, and of leaving the choice to the weights.
pub(crate) const MODES: &[&str] = &["auto", "exact", "fast"];
/// Names of the KV types.
pub(crate) const KV_TYPES: &[&str] = &["f32", "f16", "bf16", "q8"];
/// Names of what dense weights can be quantized to.
pub(crate) const QUANTIZED: &[&str] =
    &["none", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4"];

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Arithmetic {
    /// `None`: `fast` where most weights are quantized, else `exact`.
    pub(crate) mode: Option<ComputeMode>,
    /// `None`: f32 in `exact`, f16 in `fast`.
    pub(crate) kv: Option<KvType>,
    /// What dense weights are quantized to.
    pub(crate) quantize: Option<BlockType>,
}

impl Arithmetic {
    /// From names, each of its list above.
    ///
    /// # Errors
    /// Which name is unknown, and what there is.
    pub(crate) fn parse(
        mode: Option<&str>,
        kv: Option<&str>,
        quantize: Option<&str>,
    ) -> Result<Self, String> {
        let unknown = |what: &str, name: &str, known: &[&str]| {
            format!("`{what}` cannot be `{name}`; there are {}", known.join(", "))
        };
        let mode = match mode.filter(|name| !name.eq_ignore_ascii_case("auto")) {
            None => None,
            Some(name) => Some(ComputeMode::from_name(name).ok_or_else(|| unknown("compute", name, MODES))?),
        };
        let kv = match kv {
            None => None,
            Some(name) => Some(KvType::from_name(name).ok_or_else(|| unknown("kv_type", name, KV_TYPES))?),
        };
        let quantize = match quantize.filter(|name| !name.eq_ignore_ascii_case("none")) {
            None => None,
            Some(name) => {
                Some(BlockType::from_name(name).ok_or_else(|| unknown("quantize", name, QUANTIZED))?)
            }
        };
        Ok(Self { mode, kv, quantize })
    }

    /// What is left open here, taken from `other`.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            mode: self.mode.or(other.mode),
            kv: self.kv.or(other.kv),
            quantize: self.quantize.or(other.quantize),
        }
    }

    /// Mode and KV type for a model, `quantized` if most of its weights are (or become) blocks.
    pub(crate) fn settle(self, quantized: bool) -> (ComputeMode, KvType) {
        let mode = self.mode.unwrap_or(if quantized { ComputeMode::Fast } else { ComputeMode::Exact });
        let kv = self.kv.unwrap_or(match mode {
            ComputeMode::Exact => KvType::F32,
            ComputeMode::Fast => KvType::F16,
        });
        (mode, kv)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_configuration_are_the_kernels() {
        assert!(MODES.iter().skip(1).eq(ComputeMode::ALL.map(ComputeMode::name).iter()));
        assert!(KV_TYPES.iter().all(|name| KvType::from_name(name).is_some()));
        assert!(QUANTIZED.iter().skip(1).eq(BlockType::ALL.map(BlockType::name).iter()));
    }

    #[test]
    fn what_is_left_open_follows_the_weights() {
        let open = Arithmetic::parse(Some("auto"), None, Some("none")).unwrap();
        assert_eq!(open.settle(false), (ComputeMode::Exact, KvType::F32));
        assert_eq!(open.settle(true), (ComputeMode::Fast, KvType::F16));
        let named = Arithmetic::parse(Some("exact"), Some("q8"), Some("q4_k")).unwrap();
        assert_eq!(named.or(open).settle(true), (ComputeMode::Exact, KvType::Q8));
        let error = Arithmetic::parse(None, None, Some("q3_k")).unwrap_err();
        assert!(error.contains("q3_k") && error.contains("mxfp4"), "{error}");
    }
}
