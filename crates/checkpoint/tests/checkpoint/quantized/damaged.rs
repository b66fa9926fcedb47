//! Seeded damage of small models. None of it may cause a panic, or an allocation beyond the files' own size.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::tiny::{Tiny, put};

/// What a case changes in a small model.
#[derive(Debug, Clone)]
enum Damage {
    /// Another type and shape, with as many bytes as they call for, all with this value.
    Tensor(prop::sample::Index, &'static str, Vec<usize>, u8),
    Remove(prop::sample::Index),
    Rename(prop::sample::Index, prop::sample::Index),
    Byte(prop::sample::Index, prop::sample::Index, u8),
    Config(&'static str, usize),
}

const FIELDS: [&str; 8] = [
    "quant_method",
    "bits",
    "group_size",
    "weight_block_size",
    "version",
    "config_groups",
    "format",
    "dynamic",
];

fn value(index: usize) -> Value {
    let values = [
        json!(null),
        json!(0),
        json!(-1),
        json!(4),
        json!(16),
        json!(1_u64 << 63),
        json!(1.5),
        json!("gemm"),
        json!("fp8"),
        json!([]),
        json!([1, 1]),
        json!([1 << 20, 1]),
        json!({}),
        json!(true),
        json!("mxfp4"),
        json!({"a": {"weights": {}}}),
    ];
    values[index % values.len()].clone()
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    let dtype = prop::sample::select(vec!["I32", "F16", "BF16", "F32", "U8", "F8_E4M3", "I64", "F8_E5M2"]);
    let shape = prop::collection::vec(prop::sample::select(vec![0_usize, 1, 2, 3, 4, 16, 31, 32, 64]), 0..4);
    prop_oneof![
        4 => (index(), dtype, shape, any::<u8>()).prop_map(|(at, dtype, shape, byte)| Damage::Tensor(at, dtype, shape, byte)),
        1 => index().prop_map(Damage::Remove),
        1 => (index(), index()).prop_map(|(from, to)| Damage::Rename(from, to)),
        2 => (index(), index(), any::<u8>()).prop_map(|(at, byte, value)| Damage::Byte(at, byte, value)),
        2 => (prop::sample::select(FIELDS.to_vec()), 0..16_usize).prop_map(|(field, value)| Damage::Config(field, value)),
    ]
}

fn apply(tiny: &mut Tiny, damage: &Damage) {
    let names: Vec<String> = tiny.tensors.keys().cloned().collect();
    if names.is_empty() {
        return;
    }
    match damage {
        Damage::Tensor(at, dtype, shape, byte) => {
            let bits = match *dtype {
                "U8" | "F8_E4M3" | "F8_E5M2" => 1,
                "F16" | "BF16" => 2,
                "I64" => 8,
                _ => 4,
            };
            let bytes = vec![*byte; shape.iter().product::<usize>() * bits];
            put(&mut tiny.tensors, at.get(&names).clone(), dtype, shape, bytes);
        }
        Damage::Remove(at) => drop(tiny.tensors.remove(at.get(&names))),
        Damage::Rename(from, to) => {
            if let Some(tensor) = tiny.tensors.remove(from.get(&names)) {
                tiny.tensors.insert(to.get(&names).clone(), tensor);
            }
        }
        Damage::Byte(at, byte, new) => {
            if let Some((.., bytes)) = tiny.tensors.get_mut(at.get(&names))
                && !bytes.is_empty()
            {
                let at = byte.index(bytes.len());
                bytes[at] = *new;
            }
        }
        Damage::Config(field, index) => tiny.quantization[*field] = value(*index),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn damaged_models_never_panic_or_claim_memory(
        method in 0..5_usize,
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        let mut tiny = Tiny::all()[method].clone();
        damages.iter().for_each(|damage| apply(&mut tiny, damage));
        let size = tiny.weights().len();
        let Ok(checkpoint) = tiny.open() else { return Ok(()) };
        let names: Vec<String> = checkpoint.config().tensors().into_iter().map(|(name, _)| name).collect();
        for name in names.iter().map(String::as_str).chain(["experts.up_blocks"]) {
            let Ok(tensor) = checkpoint.tensor(name) else { continue };
            let (inner, outer) = tensor.shape.split_last().unwrap();
            let rows: usize = outer.iter().product();
            prop_assert_eq!(Some(tensor.bytes.len()), tensor.dtype.row_bytes(*inner).map(|row| row * rows));
            prop_assert!(tensor.bytes.len() <= 8 * size, "{} bytes from a file of {}", tensor.bytes.len(), size);
            prop_assert_eq!(checkpoint.dtype(name), Some(tensor.dtype));
        }
        prop_assert!(checkpoint.stored_tensors().count() > 0 && checkpoint.tensor_bytes() > 0);
    }
}
