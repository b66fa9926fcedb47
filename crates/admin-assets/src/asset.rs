//! An embedded file as it is served, and its entity tag. Must not know where files come from.

/// An embedded file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaticAsset {
    /// The contents.
    pub bytes: &'static [u8],
    /// The media type, with the charset for texts.
    pub mime: &'static str,
    /// A strong entity tag, in quotes. Different contents have different tags.
    pub etag: &'static str,
}

/// Returns the entity tag of some contents, in quotes.
pub(crate) fn entity_tag(bytes: &[u8]) -> String {
    format!("\"{:016x}\"", fnv1a(bytes))
}

/// FNV-1a, 64 bits. Distinguishes files of different builds. Not safe against deliberate collisions, from which an
/// attacker would gain nothing.
/// <http://www.isthe.com/chongo/tech/comp/fnv/>
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        // From the reference's table of test vectors.
        for (text, wanted) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(fnv1a(text.as_bytes()), wanted, "{text}");
        }
    }
}
