//! The random number of a choice: a function of (seed, choice, position), not of a stream. The number is therefore
//! independent of earlier steps, of other samples, and of where a sequence is continued.

/// The hash key. A change here changes every seeded answer.
const KEY: &[u8; 32] = b"headrace sampling, version 1\0\0\0\0";

/// Returns a number uniform in [0, 1), with 53 bits. `position` is that of the token to choose, counted from the
/// start of the prompt.
pub(crate) fn uniform(seed: u64, choice: u32, position: u64) -> f64 {
    let mut message = [0u8; 20];
    let parts = seed.to_le_bytes().into_iter().chain(choice.to_le_bytes()).chain(position.to_le_bytes());
    for (slot, byte) in message.iter_mut().zip(parts) {
        *slot = byte;
    }
    let hash = blake3::keyed_hash(KEY, &message);
    let bits = hash.as_bytes().iter().take(8).fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_uniform_and_depend_on_every_argument() {
        let all: Vec<f64> = (0..4000).map(|i| uniform(7, 0, i)).collect();
        assert!(all.iter().all(|u| (0.0..1.0).contains(u)));
        for tenth in 0..10 {
            let (from, to) = (f64::from(tenth) / 10.0, f64::from(tenth + 1) / 10.0);
            let share = all.iter().filter(|&&u| u >= from && u < to).count();
            assert!((330..470).contains(&share), "{share} of 4000 in {from}..{to}");
        }
        let one = uniform(1, 2, 3);
        assert_eq!(one, uniform(1, 2, 3));
        assert!([uniform(2, 2, 3), uniform(1, 3, 3), uniform(1, 2, 4)].iter().all(|&other| other != one));
    }
}
