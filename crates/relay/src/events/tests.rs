//! Every way of cutting a stream gives the same events, and the same events as the client's line reader.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use headrace_wire::sse::{SseEvent, SseReader};

/// Raw bytes, name and data of each event.
type Split = Vec<(String, String, String)>;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Splits these chunks. Returns the events, and an error or whether the stream was cut off.
fn split(chunks: &[&[u8]], limit: usize) -> (Split, Result<bool, SseError>) {
    let mut splitter = EventSplitter::with_limit(limit);
    let mut events = Vec::new();
    for chunk in chunks {
        splitter.push(Bytes::copy_from_slice(chunk));
        loop {
            match splitter.next_event() {
                Ok(Some(event)) => events.push((text(&event.raw), text(&event.name), text(&event.data))),
                Ok(None) => break,
                Err(error) => return (events, Err(error)),
            }
        }
    }
    events.extend(splitter.finish().map(|event| (text(&event.raw), text(&event.name), text(&event.data))));
    let cut = splitter.is_mid_event();
    (events, Ok(cut))
}

/// Raw bytes, name and data of one event, for tables.
type Row = (&'static str, &'static str, &'static str);

/// Splits the stream in one piece, byte by byte, and in two parts at every offset. All results must be the same.
fn at_every_cut(stream: &[u8], limit: usize) -> (Split, Result<bool, SseError>) {
    let whole = split(&[stream], limit);
    let bytes: Vec<&[u8]> = stream.chunks(1).collect();
    assert_eq!(split(&bytes, limit), whole, "byte by byte {:?}", text(stream));
    for cut in 0..=stream.len() {
        let (before, after) = stream.split_at(cut);
        assert_eq!(split(&[before, after], limit), whole, "cut at {cut} {:?}", text(stream));
    }
    whole
}

#[test]
fn streams_of_every_kind_at_every_cut() {
    let rows: &[(&str, &[Row])] = &[
        ("data: a\n\n", &[("data: a\n\n", "", "a")]),
        ("data:a\r\n\r\n", &[("data:a\r\n\r\n", "", "a")]),
        ("data:  a\r\rdata: b\n\r\n", &[("data:  a\r\r", "", " a"), ("data: b\n\r", "", "b")]),
        (
            "\u{feff}: hello\ndata: a\ndata\n: within\ndata: b\n\n",
            &[("data: a\ndata\n: within\ndata: b\n\n", "", "a\n\nb")],
        ),
        ("\u{feff}data: a\n\n", &[("data: a\n\n", "", "a")]),
        (
            "event: ping\ndata: {}\nid: 7\nretry: 10\nfoo: x\n\n",
            &[("event: ping\ndata: {}\nid: 7\nretry: 10\nfoo: x\n\n", "ping", "{}")],
        ),
        ("event: lost\n\ndata: [DONE]\n\n", &[("data: [DONE]\n\n", "", "[DONE]")]),
        ("event: é\nevent\ndata:é\n\n", &[("event: é\nevent\ndata:é\n\n", "", "é")]),
        (": keep-alive\n\n\n\n", &[]),
        (": c\r\n\r\n: d\r\n\r\ndata: 1\r\n\r\n", &[("data: 1\r\n\r\n", "", "1")]),
        ("data: a\r\n\rdata: b\r\n\r", &[("data: a\r\n\r", "", "a"), ("data: b\r\n\r", "", "b")]),
        ("data:\n\n", &[("data:\n\n", "", "")]),
    ];
    for (stream, expected) in rows {
        let (events, cut) = at_every_cut(stream.as_bytes(), 1024);
        let events: Vec<(&str, &str, &str)> =
            events.iter().map(|(raw, name, data)| (raw.as_str(), name.as_str(), data.as_str())).collect();
        assert_eq!((events.as_slice(), cut), (*expected, Ok(false)), "{stream:?}");
    }
}

#[test]
fn a_stream_that_is_cut_says_so() {
    for cut in ["data: a", "data: a\n", "event: x\n", "da", "data: a\r\n", "data: b\n\ndata"] {
        assert_eq!(at_every_cut(cut.as_bytes(), 1024).1, Ok(true), "{cut:?}");
    }
    for whole in ["", ": comment", "data: a\n\n: comm", "\n\n"] {
        assert_eq!(at_every_cut(whole.as_bytes(), 1024).1, Ok(false), "{whole:?}");
    }
}

#[test]
fn hostile_streams_end() {
    let too_long = Err(SseError::TooLong { max_bytes: 10 });
    for stream in
        ["data: 12345", "data: 12345\n\n", ": 3456789 1", "data: 1\ndata: 2\n\n", "data: 1\n: 3\n\n"]
    {
        assert_eq!(at_every_cut(stream.as_bytes(), 10).1, too_long, "{stream:?}");
    }
    let (events, end) = at_every_cut(b"data: 1234\n\n: 1\n: 2\n: 3\ndata:56789\r\n\r\n", 10);
    assert_eq!((events.len(), end), (2, Ok(false)));
    for stream in [&b"data: \xff\n"[..], b"event: \xc3\ndata: a\n\n", b"data: 1\n\ndata: a\ndata: \xc3\n\n"] {
        assert_eq!(at_every_cut(stream, 100).1, Err(SseError::NotUtf8));
    }
    // Ignored fields may contain any bytes.
    assert_eq!(at_every_cut(b": \xff\nid: \xff\ndata: 1\n\n", 100).0.len(), 1);
}

#[test]
fn an_event_within_a_chunk_is_not_copied() {
    let chunk = Bytes::from_static(b": c\n\nevent: n\ndata: one\n\ndata: two\n\ndata: th");
    let inside = |bytes: &Bytes| chunk.as_ptr_range().contains(&bytes.as_ptr());
    let mut splitter = EventSplitter::new();
    splitter.push(chunk.clone());
    splitter.push(Bytes::from_static(b"ree\n\n"));
    for (expected, shared) in [("one", true), ("two", true), ("three", false)] {
        let event = splitter.next_event().unwrap().unwrap();
        assert_eq!(event.data, expected);
        assert_eq!((inside(&event.raw), inside(&event.data)), (shared, shared), "{expected}");
    }
    assert_eq!(splitter.next_event(), Ok(None));
}

#[test]
fn ten_megabytes_in_one_line() {
    let line = ["data: ", &"x".repeat(10 << 20), "\n\n"].concat();
    for (limit, length) in [(16 << 20, Some(10 << 20)), (8 << 20, None)] {
        let mut splitter = EventSplitter::with_limit(limit);
        let mut found = Ok(None);
        for chunk in line.as_bytes().chunks(16 << 10) {
            splitter.push(Bytes::copy_from_slice(chunk));
            found = splitter.next_event();
        }
        match length {
            Some(length) => assert_eq!(found.unwrap().unwrap().data.len(), length),
            None => assert_eq!(found, Err(SseError::TooLong { max_bytes: limit })),
        }
    }
}

#[test]
fn an_error_stays() {
    let mut splitter = EventSplitter::with_limit(4);
    splitter.push(Bytes::from_static(b"data: long\n\ndata: a\n\n"));
    for _ in 0..2 {
        assert_eq!(splitter.next_event(), Err(SseError::TooLong { max_bytes: 4 }));
    }
    assert_eq!(splitter.finish(), None);
}

/// Streams made of whole and broken lines.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let line = prop::sample::select(vec![
        "data: é😀\n",
        "data: b\r\n",
        "data:  \r",
        "event: x\r",
        "event\n",
        "id: 1\n",
        ": c\n",
        ":\r\n",
        "\u{feff}",
        "data",
        "\n",
        "\r\n",
        "\r",
        "\n\n",
        "\r\n\r\n",
        ":",
        " ",
    ])
    .prop_map(|line| line.as_bytes().to_vec());
    let any = prop::collection::vec(any::<u8>(), 0..4);
    prop::collection::vec(prop_oneof![12 => line, 1 => any], 0..24).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn cuts_never_matter(
        stream in stream(),
        cuts in prop::collection::vec(0_usize..7, 0..60),
        limit in prop_oneof![Just(1000_usize), 1_usize..40],
    ) {
        let mut rest = &stream[..];
        let mut chunks = Vec::new();
        for cut in cuts {
            let (chunk, after) = rest.split_at(cut.min(rest.len()));
            chunks.push(chunk);
            rest = after;
        }
        chunks.push(rest);
        prop_assert_eq!(split(&chunks, limit), split(&[&stream], limit));
    }

    #[test]
    fn it_reads_what_the_reader_of_lines_reads(stream in stream()) {
        let (events, end) = split(&[&stream], 1 << 20);
        match SseReader::new().push(&stream) {
            Ok(read) => {
                let split: Vec<SseEvent> =
                    events.into_iter().map(|(_, name, data)| SseEvent { name, data }).collect();
                prop_assert_eq!(split, read);
                prop_assert!(end.is_ok());
            }
            // The line reader also rejects invalid bytes in ignored lines.
            Err(_) => prop_assert!(std::str::from_utf8(&stream).is_err()),
        }
    }

    #[test]
    fn raw_bytes_of_an_event_are_that_event(stream in stream()) {
        let (events, _) = split(&[&stream], 1 << 20);
        for event in events {
            // The leading blank line keeps a byte order mark of the event from being dropped as the stream's.
            let (again, cut) = split(&[b"\n", event.0.as_bytes()], 1 << 20);
            prop_assert_eq!((again, cut), (vec![event], Ok(false)));
        }
    }
}

#[test]
fn an_event_without_its_blank_line_is_read_at_every_cut() {
    for (stream, expected) in [
        ("data: [DONE]\n", Some(("data: [DONE]\n\n", "", "[DONE]"))),
        ("data: [DONE]", Some(("data: [DONE]\n\n", "", "[DONE]"))),
        ("data: [DONE]\r\n", Some(("data: [DONE]\r\n\n", "", "[DONE]"))),
        ("data: [DONE]\r", Some(("data: [DONE]\r\n", "", "[DONE]"))),
        ("event: message_stop\ndata: {}", Some(("event: message_stop\ndata: {}\n\n", "message_stop", "{}"))),
        ("data: a\ndata: b", Some(("data: a\ndata: b\n\n", "", "a\nb"))),
        ("data: a\n: ping", Some(("data: a\n: ping\n\n", "", "a"))),
        ("event: message_stop\n", None),
        (": ping", None),
        ("", None),
        ("data: a\n\n", None),
    ] {
        for cut in 0..=stream.len() {
            let mut splitter = EventSplitter::new();
            let (before, after) = stream.as_bytes().split_at(cut);
            for chunk in [before, after] {
                splitter.push(Bytes::copy_from_slice(chunk));
                while splitter.next_event().unwrap().is_some() {}
            }
            assert_eq!(splitter.finish(), None);
            let event = splitter.unfinished();
            let read = event.map(|event| (text(&event.raw), text(&event.name), text(&event.data)));
            let expected =
                expected.map(|(raw, name, data)| (raw.to_owned(), name.to_owned(), data.to_owned()));
            assert_eq!(read, expected, "{stream:?} cut at {cut}");
            assert_eq!(splitter.unfinished(), None, "{stream:?}");
        }
    }
}
