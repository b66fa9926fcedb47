//! The instruction set that the kernels run on. Each object holds its own value: there is no process-wide choice.
//! Must not know: what is computed with it.

use std::fmt;

/// The environment variable with which an operator forces an instruction set. Only the binary reads the variable, and
/// passes its value to [`Isa::choose`].
pub const ISA_VARIABLE: &str = "HEADRACE_ISA";

/// An instruction set that the kernels are compiled for. On one instruction set, results are bit-identical for any
/// batch, chunking and number of threads. Between two instruction sets they differ by rounding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust for any processor: the reference.
    Scalar,
    /// 64-bit Arm with NEON. Integer products use the dot-product instructions of Armv8.2 if the processor has them,
    /// with the same bits.
    Neon,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI (Cascade Lake, Zen 4 and later).
    Avx512,
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512];

    /// Returns the name used in configuration and in the numerics fingerprint.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    /// Whether this machine can run this instruction set.
    pub fn is_supported(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(not(target_arch = "aarch64"))]
            Isa::Neon => false,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("fma")
                    && std::arch::is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_supported()
                    && std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                    && std::arch::is_x86_feature_detected!("avx512dq")
                    && std::arch::is_x86_feature_detected!("avx512vl")
                    && std::arch::is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => false,
        }
    }

    /// Whether a dedicated instruction computes products of bf16 pairs. Its rounding differs from that of two
    /// multiply-adds.
    pub fn multiplies_bf16_pairs(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        if self == Isa::Avx512 {
            return self.is_supported() && std::arch::is_x86_feature_detected!("avx512bf16");
        }
        false
    }

    /// Returns the instruction sets that this machine can run, slowest first.
    pub fn supported() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_supported()).collect()
    }

    /// Returns the fastest instruction set that this machine can run.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.is_supported()).unwrap_or(Isa::Scalar)
    }

    /// Returns the forced instruction set if a name is given (see [`ISA_VARIABLE`]), else the best one. Fails if the
    /// name is unknown or this machine lacks the instruction set.
    pub fn choose(forced: Option<&str>) -> Result<Isa, IsaError> {
        let Some(name) = forced.map(str::trim).filter(|name| !name.is_empty()) else {
            return Ok(Isa::best());
        };
        match Isa::ALL.into_iter().find(|isa| isa.name().eq_ignore_ascii_case(name)) {
            None => Err(IsaError::Unknown { asked: name.to_owned() }),
            Some(isa) if isa.is_supported() => Ok(isa),
            Some(isa) => Err(IsaError::Unsupported { asked: isa, supported: Isa::supported() }),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Why an instruction set cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IsaError {
    /// No instruction set has this name.
    Unknown {
        /// The name that was requested.
        asked: String,
    },
    /// This machine lacks the instruction set.
    Unsupported {
        /// The instruction set that was requested.
        asked: Isa,
        /// The instruction sets that this machine has.
        supported: Vec<Isa>,
    },
}

impl fmt::Display for IsaError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |list: &[Isa]| list.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ");
        match self {
            IsaError::Unknown { asked } => {
                write!(out, "unknown instruction set {asked:?}; there are {}", names(&Isa::ALL))
            }
            IsaError::Unsupported { asked, supported } => {
                write!(out, "this machine lacks {asked}; it has {}", names(supported))
            }
        }
    }
}

impl std::error::Error for IsaError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_instruction_set_is_taken_or_refused_with_what_there_is() {
        assert_eq!(Isa::choose(None), Ok(Isa::best()));
        assert_eq!(Isa::choose(Some("")), Ok(Isa::best()));
        assert_eq!(Isa::choose(Some(" Scalar ")), Ok(Isa::Scalar));
        let error = Isa::choose(Some("sse9")).unwrap_err().to_string();
        assert!(error.contains("sse9") && error.contains("avx512"), "{error}");
        let lacking = IsaError::Unsupported { asked: Isa::Avx512, supported: vec![Isa::Scalar] };
        assert_eq!(lacking.to_string(), "this machine lacks avx512; it has scalar");
    }
}
