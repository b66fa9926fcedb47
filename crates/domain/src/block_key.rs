//! The only block-hash function: engines key cached KV blocks with it, and the fleet places calls by it. It is a keyed
//! BLAKE3 chain over (tenant salt, model, tokens). A hit is still verified by comparing tokens.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

/// Space for the parent's key and a full block's tokens, in bytes.
const MESSAGE_BYTES: usize = 96;
/// Bytes of the parent's key at the start of a block's message.
const PARENT_BYTES: usize = 16;
/// Tokens that one block key covers: those of one KV block.
pub const BLOCK_TOKENS: usize = headrace_kv_layout::BLOCK_TOKENS;

/// Separates tenants in the prefix cache. Derived on the server from a secret, the tenant, the model and, if sent, the
/// caller's own salt.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheSalt([u8; 32]);

impl CacheSalt {
    /// Derives the salt. `secret` never leaves the server. `tenant` is the org (and project) whose calls may share
    /// prefixes. `narrowing` is the caller's own salt, which can only split that group further.
    pub fn derive(secret: &[u8; 32], tenant: &str, model: &str, narrowing: Option<&str>) -> Self {
        // Hashed in one piece: hashing part by part costs more than the hash itself.
        let narrowed = [u8::from(narrowing.is_some())];
        let narrowing = narrowing.unwrap_or_default();
        let (tenant_bytes, model_bytes) =
            ((tenant.len() as u64).to_le_bytes(), (model.len() as u64).to_le_bytes());
        let parts: [&[u8]; 6] = [
            &tenant_bytes,
            tenant.as_bytes(),
            &model_bytes,
            model.as_bytes(),
            &narrowed,
            narrowing.as_bytes(),
        ];
        let bytes = parts.iter().map(|part| part.len()).sum();
        let mut message: SmallVec<[u8; 256]> = match bytes {
            0..=256 => SmallVec::from_buf_and_len([0; 256], bytes),
            _ => SmallVec::from_elem(0, bytes),
        };
        let mut rest = message.as_mut_slice();
        for part in parts {
            let Some((head, tail)) = rest.split_at_mut_checked(part.len()) else { break };
            head.copy_from_slice(part);
            rest = tail;
        }
        Self(*blake3::keyed_hash(secret, &message).as_bytes())
    }

    /// Returns the salt of the same tenant's sequences whose keys and values are computed in this other way, so that
    /// prefixes of the two ways are never shared. `way` names the way.
    pub fn variant(&self, way: &str) -> Self {
        Self(*blake3::keyed_hash(&self.0, way.as_bytes()).as_bytes())
    }

    /// Returns the label by which upstreams may keep the prefixes of tenants apart. It does not reveal the salt.
    pub fn label(&self) -> CacheLabel {
        CacheLabel(u128::from_be_bytes(BlockKey::chain(self, None, &[]).0))
    }

    /// Returns the bytes that travel between a gateway and an engine on another host. They are never sent to a caller.
    pub const fn to_bytes(self) -> [u8; 32] {
        self.0
    }

    /// Restores a salt from [`CacheSalt::to_bytes`].
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns one hash per part. Each hash covers the part and all parts before it, so equal hashes mean equal
    /// beginnings. The salt is required to compute them.
    pub fn marks<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u64> {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        let mark = |part: &[u8]| {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
            let mut mark = [0; 8];
            hasher.finalize_xof().fill(&mut mark);
            u64::from_le_bytes(mark)
        };
        parts.into_iter().map(mark).collect()
    }
}

impl fmt::Debug for CacheSalt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheSalt(..)")
    }
}

/// The public form of a [`CacheSalt`], which upstreams may see: 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CacheLabel(u128);

impl CacheLabel {
    /// Parses what [`fmt::Display`] writes. Returns `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        u128::from_str_radix(text, 16).ok().filter(|_| digits).map(Self)
    }
}

impl fmt::Display for CacheLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The key of one full KV block. It depends on the block's tokens and on all tokens before them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey([u8; 16]);

impl BlockKey {
    /// Returns the key of the block that follows `parent` and holds `tokens`. `parent` is `None` for a sequence's first
    /// block.
    pub fn chain(salt: &CacheSalt, parent: Option<&Self>, tokens: &[u32]) -> Self {
        let bytes = PARENT_BYTES + tokens.len() * 4;
        // The parent of the first block is all zeros.
        let mut message: SmallVec<[u8; MESSAGE_BYTES]> = match bytes {
            0..=MESSAGE_BYTES => SmallVec::from_buf_and_len([0; MESSAGE_BYTES], bytes),
            _ => SmallVec::from_elem(0, bytes),
        };
        if let Some((head, rest)) = message.split_at_mut_checked(PARENT_BYTES) {
            if let Some(parent) = parent {
                head.copy_from_slice(&parent.0);
            }
            for (slot, token) in rest.chunks_exact_mut(4).zip(tokens) {
                slot.copy_from_slice(&token.to_le_bytes());
            }
        }
        let hash = blake3::keyed_hash(&salt.0, &message);
        let (key, _) =
            hash.as_bytes().split_first_chunk::<PARENT_BYTES>().unwrap_or((&[0; PARENT_BYTES], &[]));
        Self(*key)
    }
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// The keys of a prompt's full blocks. They cost more to compute than to look up, so they are computed once and passed
/// along. They remember their prompt and salt, so that one prompt cannot be looked up with the keys of another.
#[derive(Clone)]
pub struct PrefixKeys {
    salt: CacheSalt,
    ids: Arc<[u32]>,
    keys: Arc<[BlockKey]>,
}

impl PrefixKeys {
    /// Computes the keys of every full block of `ids`.
    pub fn of(salt: &CacheSalt, ids: &Arc<[u32]>) -> Self {
        let mut keys: Vec<BlockKey> = Vec::with_capacity(ids.len() / BLOCK_TOKENS);
        for tokens in ids.chunks_exact(BLOCK_TOKENS) {
            let key = BlockKey::chain(salt, keys.last(), tokens);
            keys.push(key);
        }
        Self { salt: *salt, ids: Arc::clone(ids), keys: keys.into() }
    }

    /// Returns whether the keys belong to this very prompt (the same allocation) under this salt.
    pub fn are_of(&self, salt: &CacheSalt, ids: &Arc<[u32]>) -> bool {
        self.salt == *salt && Arc::ptr_eq(&self.ids, ids)
    }

    /// Returns the salt.
    pub fn salt(&self) -> &CacheSalt {
        &self.salt
    }

    /// Returns the prompt's token ids.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Returns one key per full block, in order.
    pub fn keys(&self) -> &[BlockKey] {
        &self.keys
    }
}

impl fmt::Debug for PrefixKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefixKeys({} blocks)", self.keys.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_separate_salts_and_are_read_as_they_are_written() {
        let label = |tenant: &str| CacheSalt::derive(&[7; 32], tenant, "m", None).label();
        assert_eq!(CacheLabel::parse(&label("a").to_string()), Some(label("a")));
        assert_ne!(label("a"), label("b"));
        for other in ["", "abc", "ABCDEFABCDEFABCDEFABCDEFABCDEFAB", "+abcdefabcdefabcdefabcdefabcdefa"] {
            assert_eq!(CacheLabel::parse(other), None, "{other}");
        }
    }

    /// The hashes must never change, because remote engines and caches that outlive the program hold these keys.
    #[test]
    fn keys_and_salts_are_hashed_as_ever() {
        let by_bit = |key: &[u8; 32], parts: &[&[u8]]| {
            let mut hasher = blake3::Hasher::new_keyed(key);
            parts.iter().for_each(|part| {
                hasher.update(part);
            });
            *hasher.finalize().as_bytes()
        };
        let long = "x".repeat(3_000);
        for (tenant, model, own) in [("a", "m", None), ("", "", Some("")), (&long, "m", Some(&*long))] {
            let len = |part: &str| (part.len() as u64).to_le_bytes();
            let flag = [u8::from(own.is_some())];
            let parts = [&len(tenant), tenant.as_bytes(), &len(model), model.as_bytes(), &flag];
            let whole = [&parts[..], &[own.unwrap_or_default().as_bytes()]].concat();
            assert_eq!(CacheSalt::derive(&[7; 32], tenant, model, own).0, by_bit(&[7; 32], &whole));
        }
        let salt = CacheSalt::derive(&[7; 32], "a", "m", None);
        let parent = BlockKey::chain(&salt, None, &[3]);
        for count in 0..70_u32 {
            let tokens: Vec<u32> = (0..count).map(|n| n.wrapping_mul(77_777_777)).collect();
            let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
            for known in [None, Some(&parent)] {
                let hash = by_bit(&salt.0, &[&known.map_or([0; 16], |parent| parent.0), &bytes]);
                assert_eq!(BlockKey::chain(&salt, known, &tokens).0, hash[..16]);
            }
        }
    }

    #[test]
    fn keys_separate_tenants_models_salts_parents_and_tokens() {
        let secret = [7; 32];
        let salts = [
            CacheSalt::derive(&secret, "a", "m", None),
            CacheSalt::derive(&secret, "b", "m", None),
            CacheSalt::derive(&secret, "a", "n", None),
            CacheSalt::derive(&secret, "a", "m", Some("")),
            CacheSalt::derive(&secret, "am", "", None),
            CacheSalt::derive(&[8; 32], "a", "m", None),
        ];
        let mut keys = std::collections::HashSet::new();
        for salt in &salts {
            let first = BlockKey::chain(salt, None, &[1; 16]);
            keys.insert(first);
            keys.insert(BlockKey::chain(salt, Some(&first), &[1; 16]));
            keys.insert(BlockKey::chain(salt, None, &[2; 16]));
        }
        assert_eq!(keys.len(), salts.len() * 3);
    }

    #[test]
    fn prefix_keys_are_of_one_prompt_and_salt_alone() {
        let ids: Arc<[u32]> = (0..40).collect();
        let (a, b) =
            (CacheSalt::derive(&[7; 32], "a", "m", None), CacheSalt::derive(&[7; 32], "b", "m", None));
        let keys = PrefixKeys::of(&a, &ids);
        let first = BlockKey::chain(&a, None, &ids[..16]);
        assert_eq!(keys.keys(), [first, BlockKey::chain(&a, Some(&first), &ids[16..32])]);
        let twin: Arc<[u32]> = ids.to_vec().into();
        assert!(keys.are_of(&a, &ids) && !keys.are_of(&b, &ids) && !keys.are_of(&a, &twin));
    }
}
