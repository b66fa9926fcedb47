//! Cache events of a server: a local publisher with gaps, replays, restarts and garbage, and a recording of a real
//! vLLM.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{CacheSalt, PrefixKeys};
use headrace_fleet::{BlockOwner, CachedTokens, PrefixIndex, StoredRun};
use headrace_upstream::{CacheEvent, CacheFeed, StoredLabel, Upstream, UpstreamKind, UpstreamSpec};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::publisher::Publisher;

const SOON: Duration = Duration::from_secs(60);

/// A follower and the events that it has reported so far.
struct Heard {
    upstream: Upstream,
    events: Arc<Mutex<Vec<String>>>,
    following: AbortHandle,
}

impl Heard {
    fn of(feed: CacheFeed) -> Self {
        let mut spec = UpstreamSpec::new("gpu", UpstreamKind::Vllm, "http://127.0.0.1:1");
        spec.cache_feed = Some(feed);
        let upstream = Upstream::new(spec).unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&events);
        let tell = move |event: CacheEvent| {
            heard.lock().push(match event {
                CacheEvent::Begins { whole } => format!("begins {whole}"),
                CacheEvent::Stored(stored) => {
                    format!(
                        "stored {:?} {}",
                        stored.parent,
                        stored.blocks.iter().map(u128::to_string).collect::<Vec<_>>().join(",")
                    )
                }
                CacheEvent::Removed(blocks) => format!("removed {blocks:?}"),
                CacheEvent::Cleared => "cleared".to_owned(),
                CacheEvent::Unknown => "unknown".to_owned(),
            });
        };
        let following = tokio::spawn(upstream.follow_cache(tell)).abort_handle();
        Self { upstream, events, following }
    }

    /// Waits until the reported events end with `end`. Returns all of them.
    async fn until(&self, end: &[&str]) -> Vec<String> {
        let wait = async {
            while !self.events.lock().ends_with(&end.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let heard = tokio::time::timeout(SOON, wait).await;
        assert!(
            heard.is_ok(),
            "{:?} should end with {end:?}; {:?}",
            self.events.lock(),
            self.upstream.cache_fault()
        );
        self.events.lock().clone()
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        self.following.abort();
    }
}

fn stored(hash: u64, parent: Option<u64>) -> Value {
    json!([["BlockStored", [hash], parent, [1, 2, 3, 4], 4, null, "GPU"]])
}

/// Waits until the follower has subscribed. It misses events that are published earlier.
async fn joined(publisher: &Publisher, heard: &Heard) {
    let wait = async {
        while publisher.hearers() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    heard.events.lock().clear();
}

#[tokio::test]
async fn events_are_heard_in_order_and_a_gap_is_told_again() {
    let publisher = Publisher::start().await;
    publisher.miss(0, &stored(10, None));
    publisher.miss(1, &stored(11, Some(10)));
    let heard = Heard::of(publisher.feed(true));
    // All events that were published before the subscription are replayed.
    heard.until(&["begins true", "stored None 10", "stored Some(10) 11"]).await;
    joined(&publisher, &heard).await;
    publisher.tell(2, &json!([["BlockRemoved", [11]], ["AllBlocksCleared"]]));
    heard.until(&["removed [11]", "cleared"]).await;
    tokio::time::sleep(Duration::from_millis(1000)).await;
    publisher.miss(3, &stored(13, None));
    publisher.miss(4, &stored(14, Some(13)));
    publisher.tell(5, &stored(15, Some(14)));
    publisher.tell(6, &stored(16, Some(15)));
    heard
        .until(&[
            "removed [11]",
            "cleared",
            "stored None 13",
            "stored Some(13) 14",
            "stored Some(14) 15",
            "stored Some(15) 16",
        ])
        .await;
    assert_eq!(*publisher.asked.lock(), [0, 3]);
}

#[tokio::test]
async fn a_gap_that_nobody_fills_begins_anew() {
    for replays in [false, true] {
        let publisher = Publisher::start().await;
        let heard = Heard::of(publisher.feed(replays));
        joined(&publisher, &heard).await;
        publisher.tell(0, &stored(10, None));
        heard.until(if replays { &["stored None 10"] } else { &["begins true", "stored None 10"] }).await;
        tokio::time::sleep(Duration::from_millis(1000)).await;
        // The publisher keeps none of the missed events.
        publisher.kept.lock().clear();
        publisher.tell(7, &stored(17, None));
        publisher.tell(8, &stored(18, None));
        heard.until(&["begins false", "stored None 17", "stored None 18"]).await;
    }
}

#[tokio::test]
async fn another_life_of_the_server_begins_anew() {
    let publisher = Publisher::start().await;
    let heard = Heard::of(publisher.feed(false));
    joined(&publisher, &heard).await;
    for number in 40..43 {
        publisher.tell(number, &stored(number, None));
    }
    heard.until(&["begins false", "stored None 40", "stored None 41", "stored None 42"]).await;
    // The publisher restarts behind the same address, as behind a proxy.
    publisher.tell(0, &stored(10, None));
    heard.until(&["begins true", "stored None 10"]).await;
    let address = publisher.events.clone();
    drop(publisher);
    heard.until(&["unknown"]).await;
    assert!(
        heard.upstream.cache_fault().unwrap().contains("connection"),
        "{:?}",
        heard.upstream.cache_fault()
    );
    let publisher = Publisher::at(&address).await;
    joined(&publisher, &heard).await;
    publisher.tell(1, &stored(11, None));
    heard.until(&["begins false", "stored None 11"]).await;
}

#[tokio::test]
async fn garbage_begins_anew_and_says_why() {
    let publisher = Publisher::start().await;
    let heard = Heard::of(publisher.feed(false));
    joined(&publisher, &heard).await;
    publisher.tell(0, &stored(10, None));
    for (frames, told) in [
        (&[&b"kv"[..], &1u64.to_be_bytes(), b"\xc1garbage"][..], "no batch of events"),
        (&[b"kv", b"short", b""], "without its number"),
        (&[b"kv"], "no event"),
        (&[b"", b"", b"", b"", b""], "no event"),
    ] {
        heard.until(&["stored None 10"]).await;
        publisher.send(frames);
        heard.until(&["begins false"]).await;
        let fault = heard.upstream.cache_fault().unwrap();
        assert!(fault.contains(told), "{fault}");
        heard.events.lock().push("stored None 10".to_owned());
    }
    // Later events are received.
    publisher.tell(2, &stored(12, None));
    heard.until(&["stored None 12"]).await;
}

/// A peer with another handshake, or one that announces more than the limit, is disconnected. No memory is allocated
/// for it.
#[tokio::test]
async fn what_is_no_publisher_is_left_and_told() {
    let greeting = |version: u8, mechanism: &[u8]| {
        let mut bytes = vec![0; 64];
        (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, version);
        bytes[12..12 + mechanism.len()].copy_from_slice(mechanism);
        bytes
    };
    let ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB";
    let open = [greeting(3, b"NULL").as_slice(), ready].concat();
    let huge = [open.as_slice(), b"\x02\x7f\xff\xff\xff\xff\xff\xff\xff"].concat();
    let many = [open.as_slice(), &b"\x01\0".repeat(9)].concat();
    for (bytes, told) in [
        (
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\nserver: nginx\r\n\r\n"
                .to_vec(),
            "does not speak",
        ),
        (greeting(2, b"NULL"), "version 2"),
        (greeting(3, b"CURVE"), "show who they are"),
        ([greeting(3, b"NULL").as_slice(), b"\x04\x0b\x05ERROR\x04nope"].concat(), "does not open its side"),
        ([greeting(3, b"NULL").as_slice(), b"\xf0\0"].concat(), "no frame"),
        (huge, "at most 16777216 are taken"),
        (many, "8 frames"),
        (Vec::new(), "connection"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let heard = Heard::of(CacheFeed {
            events: format!("tcp://{}", listener.local_addr().unwrap()),
            replay: None,
        });
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let mut greeted = [0; 64];
        stream.read_exact(&mut greeted).await.unwrap();
        if bytes.is_empty() {
            drop(stream);
        }
        heard.until(&["unknown"]).await;
        let fault = heard.upstream.cache_fault().unwrap();
        assert!(fault.contains(told), "{fault} should say {told}");
    }
}

#[tokio::test]
async fn who_asks_whether_we_are_there_is_answered_and_many_blocks_come_in_pieces() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let heard =
        Heard::of(CacheFeed { events: format!("tcp://{}", listener.local_addr().unwrap()), replay: None });
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut greeting = vec![0; 64];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).await.unwrap();
    stream.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB\x04\x09\x04PING\0\x01hi").await.unwrap();
    let mut said = vec![0; 64 + 27 + 3 + 9];
    stream.read_exact(&mut said).await.unwrap();
    assert_eq!(&said[64..], b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB\0\x01\x01\x04\x07\x04PONGhi");
    let hashes: Vec<u64> = (0..600).collect();
    let batch = json!([1.0, [["BlockStored", hashes, null, vec![1; 1200], 2, null]]]);
    let payload = rmp_serde::to_vec(&batch).unwrap();
    let mut message = b"\x01\x02kv\x01\x08\0\0\0\0\0\0\0\0\x02".to_vec();
    message.extend((payload.len() as u64).to_be_bytes());
    message.extend(payload);
    // The bytes are correct wherever they are cut.
    for piece in message.chunks(97) {
        stream.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    let wait = async {
        while heard.events.lock().len() < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap();
    let events = heard.events.lock().clone();
    assert_eq!(events[0], "begins true");
    for (event, (parent, first, last)) in
        events[1..].iter().zip([("None", 0, 255), ("Some(255)", 256, 511), ("Some(511)", 512, 599)])
    {
        assert!(
            event.starts_with(&format!("stored {parent} {first},")) && event.ends_with(&format!(",{last}")),
            "{event}"
        );
    }
}

/// Replays the events that vLLM 0.32 published for nine calls. The index then holds what the server's cache held.
#[tokio::test]
async fn what_a_real_server_told_fills_the_index() {
    let recorded: Vec<Value> = serde_json::from_str(include_str!("../data/vllm-kv-events.json")).unwrap();
    let publisher = Publisher::start().await;
    let index = Arc::new(Mutex::new(PrefixIndex::new(1000, false)));
    let upstream = {
        let mut spec = UpstreamSpec::new("gpu", UpstreamKind::Vllm, "http://127.0.0.1:1");
        spec.cache_feed = Some(publisher.feed(true));
        Upstream::new(spec).unwrap()
    };
    for event in &recorded {
        let hex = event["payload_hex"].as_str().unwrap();
        let payload: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        publisher.kept.lock().push((event["sequence"].as_u64().unwrap(), payload.into()));
    }
    let filled = Arc::clone(&index);
    let following = tokio::spawn(upstream.follow_cache(move |event| {
        let mut index = filled.lock();
        match event {
            CacheEvent::Begins { whole } => *index = PrefixIndex::new(1000, whole),
            CacheEvent::Stored(stored) => {
                let whose = match stored.label {
                    StoredLabel::Ours(label) => BlockOwner::Labelled(label),
                    // The recorded calls had no label of ours. They count as unlabelled here, so that the test can see
                    // their tokens.
                    StoredLabel::Others | StoredLabel::Unreported => BlockOwner::Unreported,
                };
                let (parent, block_tokens) = (stored.parent, stored.block_tokens);
                let (blocks, tokens) = (&stored.blocks[..], &stored.tokens[..]);
                index.stored(&StoredRun { parent, blocks, tokens, block_tokens, whose }).unwrap();
            }
            CacheEvent::Removed(blocks) => index.removed(&blocks),
            CacheEvent::Cleared => index.cleared(),
            CacheEvent::Unknown => {}
        }
    }));
    let wait = async {
        while index.lock().len() < 24 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap();
    following.abort();
    let index = index.lock();
    assert!(index.is_whole(), "its numbers begin with 0");
    let prompt: Vec<u32> = (0..300).map(|at| 5 + 37 * at).collect();
    let keys =
        |ids: &[u32]| PrefixKeys::of(&CacheSalt::derive(&[0; 32], "t", "m", None), &ids.to_vec().into());
    // Nine blocks of 32 tokens out of the prompt's 300. The usage of the calls reported the same: 288 cached.
    assert_eq!(index.held(&keys(&prompt)), CachedTokens { own: 0, anyones: 288 });
    assert_eq!(index.held(&keys(&prompt[..100])), CachedTokens { own: 0, anyones: 96 });
    let mut other = prompt.clone();
    other[64] += 1;
    assert_eq!(index.held(&keys(&other)), CachedTokens { own: 0, anyones: 64 });
}
