//! Tests of the different encodings of the same events, and of invalid input.

use headrace_domain::CacheSalt;
use serde_json::{Value, json};

use super::*;

fn packed(value: &Value) -> Vec<u8> {
    rmp_serde::to_vec(value).unwrap()
}

fn stored(blocks: &[u128], tokens: &[u32], parent: Option<u128>, label: StoredLabel) -> KvEvent {
    let (blocks, tokens) = (blocks.to_vec(), tokens.to_vec());
    KvEvent::Stored(StoredBlocks { parent, block_tokens: tokens.len() / blocks.len(), blocks, tokens, label })
}

#[test]
fn all_ways_to_write_an_event_are_read() {
    let salt = CacheSalt::derive(&[1; 32], "t", "m", None).label();
    let (unreported, others, ours) = (StoredLabel::Unreported, StoredLabel::Others, StoredLabel::Ours(salt));
    let of_group = |hash: u128, group: u128| hash ^ (group + 1) << 96;
    let salt = salt.to_string();
    for (event, said) in [
        // SGLang and the first versions of vLLM, then with the fields appended later.
        (
            json!(["BlockStored", [7], null, [1, 2, 3, 4], 4, null]),
            stored(&[7], &[1, 2, 3, 4], None, unreported),
        ),
        (
            json!(["BlockStored", [-1], 7, [5, 6], 2, null, "GPU"]),
            stored(&[u128::from(u64::MAX)], &[5, 6], Some(7), unreported),
        ),
        (
            json!([
                "BlockStored",
                [7, 8],
                null,
                [1, 2],
                1,
                null,
                "CPU",
                "adapter",
                [["adapter", salt], ["adapter"]]
            ]),
            stored(&[7, 8], &[1, 2], None, ours),
        ),
        (
            json!(["BlockStored", [7], null, [1], 1, 3, "GPU", null, [[{"a": 1}, 2, 0.5, true, null, [-3]]], 1, "full_attention", null]),
            stored(&[of_group(7, 1)], &[1], None, others),
        ),
        (
            json!(["BlockStored", [7], null, [[1, 2], [2, 3]], 2, null, "GPU"]),
            stored(&[7], &[1, 2], None, unreported),
        ),
        (
            json!(["BlockStored", [7], null, [1], 1, null, "GPU", null, null, 0, "sliding_window", 128]),
            KvEvent::Other,
        ),
        (json!(["BlockRemoved", [7, 9]]), KvEvent::Removed(vec![7, 9])),
        (json!(["BlockRemoved", [7], "GPU", 1]), KvEvent::Removed(vec![of_group(7, 1)])),
        (json!(["AllBlocksCleared"]), KvEvent::Cleared),
        (json!(["LoadStat", 1, 2, 3]), KvEvent::Other),
        // vLLM from 0.20 on.
        (
            json!({"type": "BlockStored", "block_hashes": [7], "parent_block_hash": null, "token_ids": [1, 2], "block_size": 2,
                "lora_id": null, "medium": "GPU", "lora_name": null, "extra_keys": [[salt]], "group_idx": 0,
                "kv_cache_spec_kind": "full_attention", "of_later": {"x": [1]}}),
            stored(&[of_group(7, 0)], &[1, 2], None, ours),
        ),
        (
            json!({"type": "BlockStored", "block_hashes": [7], "parent_block_hash": null, "token_ids": [1], "block_size": 1,
                "extra_keys": [null]}),
            stored(&[7], &[1], None, others),
        ),
        (
            json!({"type": "BlockRemoved", "block_hashes": [7], "group_idx": 0}),
            KvEvent::Removed(vec![of_group(7, 0)]),
        ),
        (json!({"type": "AllBlocksCleared"}), KvEvent::Cleared),
    ] {
        for batch in [
            json!([1.5, [event]]),
            json!([1.5, [event], 0]),
            json!({"ts": 1.5, "events": [event], "data_parallel_rank": 0}),
        ] {
            assert_eq!(read(&packed(&batch)).unwrap(), [read_as(&said)], "{batch}");
        }
    }
    // Hashes as bytes: a list with one event that removes a block with a 32-byte hash.
    let mut bytes = vec![0x92, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0x92, 0xac];
    bytes.extend_from_slice(b"BlockRemoved");
    bytes.extend_from_slice(&[0x91, 0xc4, 32]);
    bytes.extend((0..32u8).collect::<Vec<_>>());
    assert_eq!(read(&bytes).unwrap(), [KvEvent::Removed(vec![0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f])]);
}

/// Copies an event for a comparison.
fn read_as(said: &KvEvent) -> KvEvent {
    match said {
        KvEvent::Stored(blocks) => KvEvent::Stored(blocks.clone()),
        KvEvent::Removed(blocks) => KvEvent::Removed(blocks.clone()),
        KvEvent::Cleared => KvEvent::Cleared,
        KvEvent::Other => KvEvent::Other,
    }
}

#[test]
fn what_is_no_batch_is_told() {
    for batch in [
        json!(null),
        json!([]),
        json!([1.0]),
        json!({"ts": 1}),
        json!([1.0, [[]]]),
        json!([1.0, [7]]),
        json!([1.0, [["BlockStored", [7], null, [1, 2, 3], 2, null]]]),
        json!([1.0, [["BlockStored", [7], null, [], 0, null]]]),
        json!([1.0, [["BlockStored", [7], null, [1], 1u64 << 62, null]]]),
        json!([1.0, [["BlockStored", ["x", {}], null, [1, 2], 1, null]]]),
        json!([1.0, [["BlockStored", [7], null, [-1], 1, null]]]),
        json!([1.0, [["BlockStored", [7], null, [5_000_000_000_u64], 1, null]]]),
    ] {
        assert!(read(&packed(&batch)).is_err(), "{batch}");
    }
    // A list that claims to be longer than memory, a list nested without end, and a message cut at every position.
    assert!(read(&[0x92, 0, 0xdd, 0xff, 0xff, 0xff, 0xff]).is_err());
    assert!(read(&[0x91; 100_000]).is_err());
    let mut deep = packed(&json!([1.0]));
    deep[0] = 0x92;
    deep.extend([0x91, 0x99, 0xab]);
    deep.extend(b"BlockStored");
    deep.extend([0x91; 100_000]);
    assert!(read(&deep).is_err());
    let whole = packed(&json!([1.0, [["BlockStored", [7], null, [1, 2], 2, null, "GPU", null, [["a"]]]]]));
    for cut in 0..whole.len() {
        assert!(read(&whole[..cut]).is_err(), "{cut}");
    }
}

/// Without a limit, an event of two bytes would take hundreds of bytes of memory.
#[test]
fn a_batch_has_a_bounded_number_of_events_and_blocks() {
    let events = |count: usize| json!([0.5, vec![json!([""]); count]]);
    assert_eq!(read(&packed(&events(MAX_EVENTS))).unwrap().len(), MAX_EVENTS);
    assert!(read(&packed(&events(MAX_EVENTS + 1))).unwrap_err().contains("16384 items"));
    let blocks = json!([0.5, [["BlockRemoved", vec![1; MAX_BLOCKS + 1]]]]);
    assert!(read(&packed(&blocks)).unwrap_err().contains("1048576 items"));
}
