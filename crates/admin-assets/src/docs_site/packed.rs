//! The texts and pictures that the build embeds in the program. Must not know their contents.

use std::sync::LazyLock;

/// The path of each text in the repository, and its length in bytes. The texts are concatenated in this order.
static LENGTHS: &[(&str, usize)] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));
static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pages.zz"));

/// Pictures, by their path in the repository.
pub(crate) static PICTURES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/pictures.rs"));

/// All texts, decompressed on first access.
static TEXTS: LazyLock<String> = LazyLock::new(|| {
    let whole = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(PACKED, text_bytes());
    // The build compressed these bytes, so this cannot fail. A test reads every page.
    whole.ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
});

/// Every text, with its path in the repository.
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

/// The compressed size of all texts, in bytes.
pub(crate) fn packed_bytes() -> usize {
    PACKED.len()
}

/// The uncompressed size of all texts, in bytes.
pub(crate) fn text_bytes() -> usize {
    LENGTHS.iter().map(|(_, bytes)| bytes).sum()
}
