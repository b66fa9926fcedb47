//! Computes a checkpoint's fingerprint. Must not know what the parts mean.

/// The hash state. Every part is hashed with its lengths, so that different lists of parts never collide.
pub(crate) struct Identity(blake3::Hasher);

impl Identity {
    /// Change this when the hashed data changes, so that fingerprints of two versions never match by accident.
    const CONTEXT: &'static str = "headrace 2026-11 checkpoint fingerprint v1";
    const SAMPLE_BYTES: usize = 64;

    pub(crate) fn new() -> Self {
        Self(blake3::Hasher::new_derive_key(Self::CONTEXT))
    }

    pub(crate) fn add(&mut self, name: &str, part: &[u8]) {
        for bytes in [name.as_bytes(), part] {
            self.0.update(&(bytes.len() as u64).to_le_bytes());
            self.0.update(bytes);
        }
    }

    /// Adds the length and three samples: the start, the middle and the end.
    pub(crate) fn add_sample(&mut self, name: &str, tensor: &[u8]) {
        self.0.update(&(tensor.len() as u64).to_le_bytes());
        let last = tensor.len().saturating_sub(Self::SAMPLE_BYTES);
        for start in [0, last / 2, last] {
            let end = tensor.len().min(start + Self::SAMPLE_BYTES);
            self.add(name, tensor.get(start..end).unwrap_or_default());
        }
    }

    pub(crate) fn finish(self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}
