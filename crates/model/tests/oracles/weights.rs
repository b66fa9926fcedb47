//! The bytes of weights that are held and read, and the bits of quantized ones.

use headrace_checkpoint::decoder::FeedForward;
use headrace_kernels::forward::Forward;
use headrace_kernels::matrix::{Matrix, WeightType};
use headrace_kernels::{ComputeMode, Isa};
use headrace_model::{LoadOptions, Model, active_weight_bytes, weight_bytes};
use headrace_quant::BlockType;

use crate::common::isas;
use crate::support::{Expected, checkpoint, data, expected, load, same_in_chunks};

/// Matrices of four bits stay so in memory, and the estimate counts what is held.
#[test]
fn quantized_checkpoints_hold_what_the_estimate_says() {
    for (name, dtype, most_bits) in [
        ("llama-ct-w4a16", "w4_bf16_g128", 6.0),
        ("qwen2-awq", "w4_f16_g128", 6.0),
        ("qwen3-gptq", "w4_f16_g128", 6.0),
        ("qwen3-fp8", "f8_g128", 10.0),
    ] {
        let checkpoint = checkpoint(&data(name), "config.json");
        let (mut weights, mut dense) = (0, 0);
        for (tensor, shape) in checkpoint.config().tensors() {
            let size = shape.iter().product::<usize>();
            if tensor.ends_with("_proj.weight") {
                assert_eq!(checkpoint.dtype(&tensor).unwrap().name(), dtype, "{name} {tensor}");
                weights += size;
            } else {
                dense += size;
            }
        }
        let estimate = weight_bytes(&checkpoint, None).unwrap();
        let held = load(&checkpoint, Isa::best(), 1).shape().weight_bytes;
        assert!(held >= estimate && held - estimate < 16 << 10, "{name}: {held} bytes, not {estimate}");
        // The tiny matrices have much padding between their panels.
        let bits = (estimate - 2 * dense) as f64 * 8.0 / weights as f64;
        assert!(bits < most_bits, "{name}: {bits} bits a weight");
    }
}

/// A token reads all dense matrices, the chosen experts, and one row of an embedding of its own.
#[test]
fn a_token_reads_the_chosen_experts_only() {
    for (name, quantize) in [("qwen3-tied", None), ("qwen3-tied", Some(BlockType::Q8_0))] {
        let checkpoint = checkpoint(&data(name), "config.json");
        let whole = weight_bytes(&checkpoint, quantize).unwrap();
        assert_eq!(active_weight_bytes(&checkpoint, quantize).unwrap(), whole, "{name} {quantize:?}");
    }
    let checkpoint = checkpoint(&data("qwen3-moe"), "config.json");
    let config = checkpoint.config();
    assert!(!config.is_tied());
    let packed = |rows: usize, k: usize| Matrix::packed_bytes(&[(WeightType::Bf16, rows)], k);
    let hidden = config.hidden_size;
    let unread: usize = (config.layers.iter())
        .map(|layer| match &layer.feed {
            FeedForward::Experts(experts) => {
                let each = packed(2 * experts.inner, hidden) + packed(hidden, experts.inner);
                (experts.experts.len() - experts.chosen) * each
            }
            other => panic!("{other:?}"),
        })
        .sum();
    let (whole, active) =
        (weight_bytes(&checkpoint, None).unwrap(), active_weight_bytes(&checkpoint, None).unwrap());
    let embedding = packed(config.vocab_size, hidden) - packed(1, hidden);
    assert_eq!(whole - active, unread + embedding);
}

/// Experts keep the bits of their file, stacked or not. Their bits depend on neither chunks nor threads.
#[test]
fn experts_of_quantized_checkpoints_stay_as_they_are_stored() {
    for (name, end, dtypes) in [
        ("gpt-oss-mxfp4", "_proj_blocks", &["mxfp4"][..]),
        ("qwen3-moe-fp8", "_proj.weight", &["f8_g128", "f8_g32"]),
        // The projections of attention's output have rows of 80.
        ("deepseek-v3-fp8", "_proj.weight", &["f8_g128", "f8_g32", "f32"]),
        ("mixtral-ct-fp8", ".w2.weight", &["f8_g32"]),
        ("qwen2-moe-ct-w4a16", "_proj.weight", &["w4_bf16_g32"]),
    ] {
        let checkpoint = checkpoint(&data(name), "config.json");
        let tensors = checkpoint.config().tensors();
        let matrices: Vec<_> = tensors.iter().filter(|(tensor, _)| tensor.ends_with(end)).collect();
        assert!(matrices.len() >= 8, "{name}: {matrices:?}");
        for (tensor, _) in matrices {
            let dtype = checkpoint.dtype(tensor).unwrap().name();
            assert!(dtypes.contains(&dtype), "{name} {tensor}: {dtype}");
        }
        let mut seen = Vec::new();
        let options = LoadOptions::exact(Isa::best(), 1, 1);
        let held = Model::load(&checkpoint, options, &mut |done, total| seen.push((done, total))).unwrap();
        // Biases, norms and routers are held in f32, and are not in the estimate.
        let (held, estimate) = (held.shape().weight_bytes, weight_bytes(&checkpoint, None).unwrap());
        assert!(held >= estimate && held - estimate < 64 << 10, "{name}: {held} bytes, not {estimate}");
        let total = checkpoint.tensor_bytes();
        assert!(seen.is_sorted() && seen.last() == Some(&(total, total)), "{name}: {seen:?}");
        let case = &expected::<Expected>(&data(name)).cases[1];
        for (isa, mode) in isas().into_iter().flat_map(|isa| ComputeMode::ALL.map(|mode| (isa, mode))) {
            same_in_chunks(&checkpoint, case, (isa, mode), &format!("{name} {mode} on {isa}"));
        }
    }
}

/// In mode `fast`, answers are close to the oracle's, and bits depend on neither chunks nor threads.
#[test]
fn quantized_checkpoints_have_the_same_bits_in_any_chunks_in_both_modes() {
    for isa in isas() {
        for mode in ComputeMode::ALL {
            for name in ["llama-ct-w4a16", "qwen2-awq", "qwen3-gptq", "qwen3-fp8"] {
                let checkpoint = checkpoint(&data(name), "config.json");
                let case = &expected::<Expected>(&data(name)).cases[1];
                let what = format!("{name} {mode} on {isa}");
                let rows = same_in_chunks(&checkpoint, case, (isa, mode), &what);
                let last = rows.last().unwrap();
                let (mut error, mut size) = (0.0, 0.0);
                for (got, want) in last.iter().zip(&case.logits_last) {
                    error += f64::from(got - want).powi(2);
                    size += f64::from(*want).powi(2);
                }
                let moved = (error / size).sqrt();
                assert!(
                    moved < if mode == ComputeMode::Fast { 0.05 } else { 1e-4 },
                    "{what}: moved by {moved}"
                );
            }
        }
    }
}
