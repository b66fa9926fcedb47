//! The texts and pictures as they lie in the program. Must not know what stands in them.

use std::sync::LazyLock;

/// Files by their place in the repository, and the bytes that each has of the whole, one behind the other.
static LENGTHS: &[(&str, usize)] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));
static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pages.zz"));

/// Pictures, by their place in the repository.
pub(crate) static PICTURES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/pictures.rs"));

/// Unpacked when somebody first reads.
static TEXTS: LazyLock<String> = LazyLock::new(|| {
    let whole = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(PACKED, text_bytes());
    // It was packed when the program was built: a test reads every page of it.
    whole.ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
});

/// Every text with its place in the repository.
pub(crate) fn texts() -> Vec<(&'static str, &'static str)> {
    let mut at = 0_usize;
    let texts = LENGTHS.iter().map(|(file, bytes)| {
        let end = at.saturating_add(*bytes);
        let text = TEXTS.get(at..end).unwrap_or_default();
        at = end;
        (*file, text)
    });
    texts.collect()
}

/// What the texts take within the program.
pub(crate) fn packed_bytes() -> usize {
    PACKED.len()
}

/// What the texts have.
pub(crate) fn text_bytes() -> usize {
    LENGTHS.iter().map(|(_, bytes)| bytes).sum()
}
