//! Parses a server's cache events from MessagePack: batches of stored, removed and cleared blocks. Must not know a
//! connection or an index.
//!
//! vLLM: `vllm/distributed/kv_events.py`. SGLang: `sglang/srt/disaggregation/kv_events.py`. Batches and events are
//! lists, to which fields were only ever appended, or maps (vLLM from 0.20 on for events, later also for batches). A
//! block's hash is a number or bytes.

use std::fmt;

use std::marker::PhantomData;

use headrace_domain::CacheLabel;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Consecutive blocks that a server has stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlocks {
    /// The block before the first one.
    pub parent: Option<u128>,
    /// The server's own hash of each block.
    pub blocks: Vec<u128>,
    /// Token ids of all blocks.
    pub tokens: Vec<u32>,
    /// Token ids per block.
    pub block_tokens: usize,
    /// The label of the blocks, for blocks without a parent.
    pub label: StoredLabel,
}

/// The label that blocks are stored under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredLabel {
    /// One of our labels.
    Ours(CacheLabel),
    /// No label, or a label that is not ours.
    Others,
    /// The event does not contain a label.
    Unreported,
}

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KvEvent {
    Stored(StoredBlocks),
    Removed(Vec<u128>),
    Cleared,
    /// An event that does not concern the prefix cache.
    Other,
}

/// Parses a batch.
///
/// # Errors
/// Why the bytes are not a batch, as text.
pub(super) fn read(payload: &[u8]) -> Result<Vec<KvEvent>, String> {
    let batch: KvEventBatch = rmp_serde::from_slice(payload).map_err(|error| error.to_string())?;
    batch.0.0.into_iter().map(RawKvEvent::said).collect()
}

/// Maximum number of events in a batch. An event takes at least two bytes in the message, and hundreds in memory.
const MAX_EVENTS: usize = 16 << 10;
/// Maximum number of blocks in an event. `MAX_TOKENS` limits their token ids.
const MAX_BLOCKS: usize = 1 << 20;
const MAX_TOKENS: usize = 4 << 20;

/// The events of a batch.
struct KvEventBatch(CappedList<RawKvEvent, MAX_EVENTS>);

/// A list of at most `MOST` items.
struct CappedList<T, const MOST: usize>(Vec<T>);

impl<T, const MOST: usize> Default for CappedList<T, MOST> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for CappedList<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read<T, const MOST: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Read<T, MOST> {
            type Value = CappedList<T, MOST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MOST} items")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<CappedList<T, MOST>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    if items.len() >= MOST {
                        return Err(A::Error::invalid_length(items.len() + 1, &self));
                    }
                    items.push(item);
                }
                Ok(CappedList(items))
            }
        }
        from.deserialize_seq(Read(PhantomData))
    }
}

/// All fields that an event may have.
#[derive(Default)]
struct RawKvEvent {
    tag: String,
    hashes: CappedList<BlockHash, MAX_BLOCKS>,
    parent: Option<BlockHash>,
    tokens: CappedList<TokenId, MAX_TOKENS>,
    block_tokens: usize,
    label: Option<BlockLabel>,
    group: Option<u32>,
    spec: Option<String>,
}

impl RawKvEvent {
    fn said(self) -> Result<KvEvent, String> {
        let group = self.group.map_or(0, |group| (u128::from(group) + 1) << 96);
        let of_group = |hash: BlockHash| hash.0 ^ group;
        Ok(match self.tag.as_str() {
            "BlockStored" => {
                // Sliding windows and state caches do not keep whole prefixes.
                if self.spec.is_some_and(|spec| !spec.contains("full") && !spec.contains("mla")) {
                    return Ok(KvEvent::Other);
                }
                let needed = self.hashes.0.len().checked_mul(self.block_tokens);
                if needed != Some(self.tokens.0.len()) || self.block_tokens == 0 {
                    let (tokens, blocks) = (self.tokens.0.len(), self.hashes.0.len());
                    return Err(format!("{tokens} ids for {blocks} blocks of {}", self.block_tokens));
                }
                KvEvent::Stored(StoredBlocks {
                    parent: self.parent.map(of_group),
                    blocks: self.hashes.0.into_iter().map(of_group).collect(),
                    tokens: self.tokens.0.into_iter().map(|token| token.0).collect(),
                    block_tokens: self.block_tokens,
                    label: match self.label {
                        None => StoredLabel::Unreported,
                        Some(BlockLabel(None)) => StoredLabel::Others,
                        Some(BlockLabel(Some(label))) => StoredLabel::Ours(label),
                    },
                })
            }
            "BlockRemoved" => KvEvent::Removed(self.hashes.0.into_iter().map(of_group).collect()),
            "AllBlocksCleared" => KvEvent::Cleared,
            _ => KvEvent::Other,
        })
    }
}

impl<'de> Deserialize<'de> for KvEventBatch {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = KvEventBatch;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a batch of events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<KvEventBatch, A::Error> {
                let _time: Option<IgnoredAny> = list.next_element()?;
                let events = list.next_element()?.ok_or_else(|| A::Error::custom("no events"))?;
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(KvEventBatch(events))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<KvEventBatch, A::Error> {
                let mut events = None;
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "events" => events = Some(map.next_value()?),
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                events.map(KvEventBatch).ok_or_else(|| A::Error::custom("no events"))
            }
        }
        from.deserialize_any(Read)
    }
}

impl<'de> Deserialize<'de> for RawKvEvent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = RawKvEvent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RawKvEvent, A::Error> {
                let tag: String =
                    list.next_element()?.ok_or_else(|| A::Error::custom("an event without its name"))?;
                let mut event = RawKvEvent { tag, ..RawKvEvent::default() };
                if event.tag == "BlockStored" {
                    event.hashes = list.next_element()?.unwrap_or_default();
                    event.parent = list.next_element()?.flatten();
                    event.tokens = list.next_element()?.unwrap_or_default();
                    event.block_tokens = list.next_element()?.unwrap_or_default();
                    // Skips the adapter's number, the kind of memory, and the adapter's name.
                    for _ in 0..3 {
                        let _other: Option<IgnoredAny> = list.next_element()?;
                    }
                    event.label = list.next_element()?.flatten();
                    event.group = list.next_element()?.flatten();
                    event.spec = list.next_element()?.flatten();
                } else if event.tag == "BlockRemoved" {
                    event.hashes = list.next_element()?.unwrap_or_default();
                    let _memory: Option<IgnoredAny> = list.next_element()?;
                    event.group = list.next_element()?.flatten();
                }
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(event)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawKvEvent, A::Error> {
                let mut event = RawKvEvent::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "type" => event.tag = map.next_value()?,
                        "block_hashes" => event.hashes = map.next_value()?,
                        "parent_block_hash" => event.parent = map.next_value()?,
                        "token_ids" => event.tokens = map.next_value()?,
                        "block_size" => event.block_tokens = map.next_value()?,
                        "extra_keys" => event.label = map.next_value()?,
                        "group_idx" => event.group = map.next_value()?,
                        "kv_cache_spec_kind" => event.spec = map.next_value()?,
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(event)
            }
        }
        from.deserialize_any(Read)
    }
}

/// A block's hash: a number, or the first sixteen of its bytes.
struct BlockHash(u128);

impl<'de> Deserialize<'de> for BlockHash {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = BlockHash;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the hash of a block")
            }

            fn visit_u64<E>(self, number: u64) -> Result<BlockHash, E> {
                Ok(BlockHash(number.into()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<BlockHash, E> {
                Ok(BlockHash(u128::from(number as u64)))
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<BlockHash, E> {
                Ok(BlockHash(bytes.iter().take(16).fold(0, |word, byte| word << 8 | u128::from(*byte))))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<BlockHash, E> {
                self.visit_bytes(text.as_bytes())
            }
        }
        from.deserialize_any(Read)
    }
}

/// A token id. In a pair of ids (speculative decoding), the first one.
struct TokenId(u32);

impl<'de> Deserialize<'de> for TokenId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = TokenId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an id")
            }

            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<TokenId, E> {
                u32::try_from(id).map(TokenId).map_err(|_| E::custom("an id beyond 32 bits"))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<TokenId, A::Error> {
                let first = pair.next_element()?.ok_or_else(|| A::Error::custom("a pair of nothing"))?;
                while pair.next_element::<IgnoredAny>()?.is_some() {}
                Ok(TokenId(first))
            }
        }
        from.deserialize_any(Read)
    }
}

/// The label among the other extra keys of a block: adapters, images, salts of other clients.
struct BlockLabel(Option<CacheLabel>);

impl<'de> Deserialize<'de> for BlockLabel {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = BlockLabel;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("what else makes a block another one")
            }

            fn visit_str<E>(self, text: &str) -> Result<BlockLabel, E> {
                Ok(BlockLabel(CacheLabel::parse(text)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<BlockLabel, A::Error> {
                let mut found = None;
                while let Some(BlockLabel(label)) = list.next_element()? {
                    found = found.or(label);
                }
                Ok(BlockLabel(found))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<BlockLabel, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(BlockLabel(None))
            }

            fn visit_bool<E>(self, _: bool) -> Result<BlockLabel, E> {
                Ok(BlockLabel(None))
            }

            fn visit_u64<E>(self, _: u64) -> Result<BlockLabel, E> {
                Ok(BlockLabel(None))
            }

            fn visit_i64<E>(self, _: i64) -> Result<BlockLabel, E> {
                Ok(BlockLabel(None))
            }

            fn visit_f64<E>(self, _: f64) -> Result<BlockLabel, E> {
                Ok(BlockLabel(None))
            }

            fn visit_bytes<E>(self, _: &[u8]) -> Result<BlockLabel, E> {
                Ok(BlockLabel(None))
            }

            fn visit_unit<E>(self) -> Result<BlockLabel, E> {
                Ok(BlockLabel(None))
            }
        }
        from.deserialize_any(Read)
    }
}

#[cfg(test)]
mod tests;
