//! No bytes may make the reader panic, read outside a file, or accept input that the format's own library refuses. A
//! failing case is printed, shrunk, and kept in `proptest-regressions`.

use headrace_checkpoint::safetensors::Header;
use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use crate::support::{CONFIG, Files, WEIGHTS, safetensors_file, split};

/// Invariants that hold for every file.
fn sound(bytes: &[u8]) -> Result<(), TestCaseError> {
    let Ok(header) = Header::parse("model.safetensors", bytes) else { return Ok(()) };
    let oracle = SafeTensors::deserialize(bytes);
    let oracle =
        oracle.map_err(|error| TestCaseError::fail(format!("accepted, but the library says {error}")))?;
    prop_assert_eq!(header.tensors.len(), oracle.len());
    let mut covered = header.data_start;
    for (name, entry) in &header.tensors {
        let Some(ours) = bytes.get(entry.range.clone()) else {
            return Err(TestCaseError::fail(format!("{name}: {:?} lies outside the file", entry.range)));
        };
        let theirs = oracle.tensor(name).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!((ours, entry.shape.as_slice()), (theirs.data(), theirs.shape()));
        covered += ours.len();
    }
    prop_assert_eq!(covered, bytes.len());
    Ok(())
}

/// Checks the same through `Checkpoint`: tensors of an accepted file must be inside the buffer.
fn sound_checkpoint(files: Files) -> Result<(), TestCaseError> {
    let Ok(checkpoint) = files.open() else { return Ok(()) };
    for name in checkpoint.tensor_names() {
        if let Ok(tensor) = checkpoint.tensor(name) {
            let elements: usize = tensor.shape.iter().product();
            prop_assert_eq!(Some(tensor.bytes.len()), tensor.dtype.row_bytes(elements));
        }
    }
    Ok(())
}

/// A change of some bytes.
#[derive(Debug, Clone)]
enum Damage {
    Flip(usize, u8),
    Digit(usize, u8),
    Insert(usize, u8),
    Remove(usize),
    Cut(usize),
}

/// Changes within the first `span` bytes, or a cut anywhere.
fn damage(span: usize, length: usize) -> impl Strategy<Value = Damage> {
    prop_oneof![
        (0..span, 1..=u8::MAX).prop_map(|(at, mask)| Damage::Flip(at, mask)),
        (0..span, b'0'..=b'9').prop_map(|(at, digit)| Damage::Digit(at, digit)),
        (0..span, prop::sample::select(b"0123456789,:[]{}\"-e.".as_slice()))
            .prop_map(|(at, b)| Damage::Insert(at, b)),
        (0..span).prop_map(Damage::Remove),
        (0..length).prop_map(Damage::Cut),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    match *damage {
        Damage::Flip(at, mask) => bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= mask),
        // Keeps the JSON valid, so that its numbers become false.
        Damage::Digit(at, digit) => {
            bytes
                .iter_mut()
                .skip(at)
                .find(|byte| byte.is_ascii_digit())
                .into_iter()
                .for_each(|byte| *byte = digit);
        }
        Damage::Insert(at, byte) if at <= bytes.len() => bytes.insert(at, byte),
        Damage::Remove(at) if at < bytes.len() => drop(bytes.remove(at)),
        Damage::Cut(at) => bytes.truncate(at),
        Damage::Insert(..) | Damage::Remove(_) => {}
    }
}

/// A small file as the library would write it, with up to three numbers of its header replaced by false ones.
fn lying_header() -> impl Strategy<Value = Vec<u8>> {
    let lie = prop_oneof![
        4 => 0u64..64,
        1 => any::<u64>(),
        1 => prop::sample::select(vec![u64::MAX, 1 << 63, 1 << 32, (1 << 62) + 1]),
    ];
    let dtype = prop::sample::select(vec![("F32", 4), ("BF16", 2), ("U8", 1), ("F64", 8)]);
    let tensor = (dtype, prop::collection::vec(0u64..5, 0..4));
    let lies = prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), lie), 0..3);
    (prop::collection::btree_map("[a-c]{1,2}", tensor, 1..5), lies).prop_map(|(tensors, lies)| {
        let (mut end, mut header) = (0, serde_json::Map::new());
        for (name, ((dtype, size), shape)) in tensors {
            let begin = end;
            end += shape.iter().product::<u64>() * size;
            header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}));
        }
        for (tensor, place, lie) in lies {
            let tensor = tensor.index(header.len());
            let entry = header.values_mut().nth(tensor).unwrap();
            let shape = entry["shape"].as_array().unwrap().len();
            match place.index(shape + 2) {
                place if place < shape => entry["shape"][place] = json!(lie),
                place => entry["data_offsets"][place - shape] = json!(lie),
            }
        }
        safetensors_file(Value::Object(header).to_string().as_bytes(), &vec![0; end as usize])
    })
}

/// A small file with every kind of tensor, all of them small, so that damage often leaves it readable.
fn small_file() -> Vec<u8> {
    let shapes: [(&str, Dtype, &[usize]); 5] = [
        ("scalar", Dtype::F32, &[]),
        ("none", Dtype::F64, &[3, 0]),
        ("half", Dtype::BF16, &[2, 3]),
        ("bytes", Dtype::U8, &[5]),
        ("cube", Dtype::F16, &[2, 2, 2]),
    ];
    let data = [1u8; 64];
    let views = shapes.map(|(name, dtype, shape)| {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        (name, TensorView::new(dtype, shape.to_vec(), &data[..bytes]).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn damaged_headers_never_lead_outside_the_file(damages in prop::collection::vec(damage(400, 420), 1..6)) {
        let mut bytes = small_file();
        damages.iter().for_each(|damage| apply(&mut bytes, damage));
        sound(&bytes)?;
    }

    #[test]
    fn lying_headers_never_lead_outside_the_file(bytes in lying_header()) {
        sound(&bytes)?;
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), framed in any::<bool>()) {
        if framed {
            bytes = safetensors_file(&bytes, &[]);
        }
        sound(&bytes)?;
        let _ = headrace_checkpoint::ModelConfig::from_json(&bytes);
    }

    #[test]
    fn damaged_configurations_never_panic(damages in prop::collection::vec(damage(CONFIG.len(), CONFIG.len()), 1..4)) {
        let mut bytes = CONFIG.to_vec();
        damages.iter().for_each(|damage| apply(&mut bytes, damage));
        sound_checkpoint(Files::good().with("config.json", bytes))?;
    }

    #[test]
    fn what_the_library_writes_is_read_alike(
        tensors in prop::collection::btree_map("[a-z.\"\\\\é]{1,12}", (0usize..3, prop::collection::vec(0usize..5, 0..4)), 0..8),
    ) {
        let types = [Dtype::F32, Dtype::BF16, Dtype::U8];
        let data = [0u8; 4 * 64];
        let views = tensors.iter().map(|(name, (kind, shape))| {
            let dtype = types[*kind];
            let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            (name, TensorView::new(dtype, shape.clone(), &data[..bytes]).unwrap())
        });
        let file = safetensors::serialize(views, None).unwrap();
        prop_assert_eq!(Header::parse("x", &file).unwrap().tensors.len(), tensors.len());
        sound(&file)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_damaged_whole_file_is_sound(damages in prop::collection::vec(damage(6_000, WEIGHTS.len()), 1..4)) {
        let mut bytes = WEIGHTS.to_vec();
        damages.iter().for_each(|damage| apply(&mut bytes, damage));
        sound(&bytes)?;
        sound_checkpoint(Files::good().with("model.safetensors", bytes))?;
    }
}

#[test]
fn every_cut_of_the_header_is_refused() {
    let (header, _) = split(WEIGHTS);
    for length in 0..header.len() + 8 {
        assert!(Header::parse("x", &WEIGHTS[..length]).is_err(), "{length} bytes");
    }
}
