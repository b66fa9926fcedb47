//! How models are computed: device, compute mode, KV type, and quantization at load, per model or for all models. Must
//! not know weights, or how anything is computed.

use headrace_kernels::ComputeMode;
use headrace_kernels::attention::KvType;
use headrace_quant::BlockType;

/// Names of the devices.
pub(crate) const DEVICES: &[&str] = &["cpu", "cuda"];
/// Names of the compute modes. `auto` leaves the choice to the weights.
pub(crate) const MODES: &[&str] = &["auto", "exact", "fast"];
/// Names of the KV types.
pub const KV_TYPES: &[&str] = &["f32", "f16", "bf16", "q8"];
/// Names of the block types to which dense weights can be quantized.
pub const QUANTIZED: &[&str] =
    &["none", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4"];

/// The hardware that computes a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ComputeDevice {
    /// The processors of this machine.
    #[default]
    Cpu,
    /// The first NVIDIA GPU of this machine.
    Cuda,
}

/// The configured choices. `None` leaves a choice open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArithmeticConfig {
    /// `None` for the CPU.
    pub device: Option<ComputeDevice>,
    /// `None` for `fast` if most weights are quantized, otherwise `exact`.
    pub mode: Option<ComputeMode>,
    /// `None` for f32 in `exact` and f16 in `fast`.
    pub kv: Option<KvType>,
    /// The block type to which dense weights are quantized at load.
    pub quantize: Option<BlockType>,
}

impl ArithmeticConfig {
    /// Parses names, each from its list above.
    ///
    /// # Errors
    /// Returns which name is unknown, and the known names.
    pub fn parse(
        device: Option<&str>,
        mode: Option<&str>,
        kv: Option<&str>,
        quantize: Option<&str>,
    ) -> Result<Self, String> {
        let unknown = |what: &str, name: &str, known: &[&str]| {
            format!("`{what}` cannot be `{name}`; there are {}", known.join(", "))
        };
        let device = match device {
            None => None,
            Some(name) if name.eq_ignore_ascii_case("cpu") => Some(ComputeDevice::Cpu),
            Some(name) if name.eq_ignore_ascii_case("cuda") => Some(ComputeDevice::Cuda),
            Some(name) => return Err(unknown("device", name, DEVICES)),
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
                let kind = BlockType::from_name(name).filter(|kind| kind.is_quantized_here());
                Some(kind.ok_or_else(|| unknown("quantize", name, QUANTIZED))?)
            }
        };
        Ok(Self { device, mode, kv, quantize })
    }

    /// Fills open choices from `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            device: self.device.or(other.device),
            mode: self.mode.or(other.mode),
            kv: self.kv.or(other.kv),
            quantize: self.quantize.or(other.quantize),
        }
    }

    /// The hardware that computes the model.
    pub fn place(self) -> ComputeDevice {
        self.device.unwrap_or_default()
    }

    /// Checks that a GPU supports every choice.
    ///
    /// # Errors
    /// Returns the first unsupported setting, and what to do.
    pub fn on_gpu(self) -> Result<(), String> {
        let refused = |what: String| {
            Err(format!(
                "`device = \"cuda\"` computes in bf16, and {what}: leave that out, or serve it on the CPU"
            ))
        };
        match self {
            Self { mode: Some(mode), .. } => refused(format!("`compute` is `{mode}`")),
            Self { kv: Some(kv), .. } if kv != KvType::Bf16 => refused(format!("`kv_type` is `{kv}`")),
            Self { quantize: Some(kind), .. } => refused(format!("`quantize` is `{}`", kind.name())),
            _ => Ok(()),
        }
    }

    /// Mode and KV type for a model. `quantized` is set if most of its weights are, or will be, quantized blocks.
    pub fn settle(self, quantized: bool) -> (ComputeMode, KvType) {
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
        assert!(QUANTIZED.iter().skip(1).eq(BlockType::QUANTIZED.map(BlockType::name).iter()));
    }

    #[test]
    fn what_is_left_open_follows_the_weights() {
        let open = ArithmeticConfig::parse(None, Some("auto"), None, Some("none")).unwrap();
        assert_eq!(open.settle(false), (ComputeMode::Exact, KvType::F32));
        assert_eq!(open.settle(true), (ComputeMode::Fast, KvType::F16));
        let named = ArithmeticConfig::parse(None, Some("exact"), Some("q8"), Some("q4_k")).unwrap();
        assert_eq!(named.or(open).settle(true), (ComputeMode::Exact, KvType::Q8));
        let error = ArithmeticConfig::parse(None, None, None, Some("q3_k")).unwrap_err();
        assert!(error.contains("q3_k") && error.contains("mxfp4"), "{error}");
    }
    #[test]
    fn a_gpu_computes_in_bf16_and_refuses_what_else_is_asked_for() {
        let cuda = |mode, kv, quantize| ArithmeticConfig::parse(Some("cuda"), mode, kv, quantize).unwrap();
        assert_eq!(
            (cuda(None, None, None).place(), ArithmeticConfig::default().place()),
            (ComputeDevice::Cuda, ComputeDevice::Cpu)
        );
        assert_eq!(cuda(Some("auto"), Some("bf16"), Some("none")).on_gpu(), Ok(()));
        for (asked, named) in [
            (cuda(Some("exact"), None, None), "compute"),
            (cuda(None, Some("f16"), None), "kv_type"),
            (cuda(None, None, Some("q8_0")), "quantize"),
        ] {
            let why = asked.on_gpu().unwrap_err();
            assert!(why.contains(named) && why.contains("CPU"), "{why}");
        }
        assert!(ArithmeticConfig::parse(Some("tpu"), None, None, None).unwrap_err().contains("cpu, cuda"));
    }
}
