//! Tests of the text about measurements. Measures nothing.

use super::*;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn measured() -> PingReport {
    PingReport {
        url: "https://h".to_owned(),
        remote: Some("10.0.0.1:443".to_owned()),
        floor: Some((ms(10), "a to b and back: 1000 km, 5 µs each in fibre".to_owned())),
        dns: SortedTimes::new(vec![ms(3)]),
        tcp: SortedTimes::new(vec![ms(25), ms(20), ms(31)]),
        tls: SortedTimes::new(vec![ms(40), ms(41), ms(39)]),
        http: SortedTimes::new(vec![ms(21), ms(22), ms(20)]),
        status: 200,
        call: None,
    }
}

#[test]
fn each_step_has_its_line_and_the_sum_its_sentence() {
    let called =
        PingCall { model: "m".to_owned(), whole: ms(100), first_token: Some(ms(60)), server: Some(ms(75)) };
    let text = PingReport { call: Some(called), ..measured() }.as_text();
    for part in [
        "https://h (10.0.0.1:443)\n",
        "  floor   10.0 ms  a to b and back: 1000 km",
        "  DNS     3.00 ms  the name, looked up",
        "  TCP     25.0 ms  a connection: one round trip · 20.0 ms to 31.0 ms in 3\n",
        "  TLS     40.0 ms  ",
        "  HTTP    21.0 ms  GET /healthz (200)",
        "took 2.0 times what light needs",
        "A new connection costs 68.0 ms that a warm one does not",
        "A call to m took 100 ms, first token after 60.0 ms; 75.0 ms of it at the server, by its own trace: 25.0 ms (25 %) was network",
    ] {
        assert!(text.contains(part), "{part}\n---\n{text}");
    }
}

#[test]
fn what_is_not_known_is_not_said() {
    let near = PingReport {
        floor: None,
        tls: SortedTimes::new(Vec::new()),
        dns: SortedTimes::new(Vec::new()),
        tcp: SortedTimes::new(vec![Duration::from_micros(90)]),
        ..measured()
    };
    let text = near.as_text();
    assert!(!text.contains("TLS") && !text.contains("floor") && !text.contains("DNS"), "{text}");
    assert!(text.contains("too little to matter") && text.contains("--from and --to"), "{text}");
    let wrong = PingReport { floor: Some((ms(100), String::new())), ..measured() };
    assert!(wrong.as_text().contains("is not where it was said to be"));
    let silent = PingCall { model: "m".to_owned(), whole: ms(100), first_token: None, server: None };
    let text = PingReport { call: Some(silent), ..measured() }.as_text();
    assert!(
        text.contains("does not report its own part")
            && text.contains("about one round trip, 21.0 ms (21 %)"),
        "{text}"
    );
}

#[test]
fn hosts_are_read_out_of_addresses() {
    for (base, host) in [
        ("https://API.Example.com/x", "api.example.com"),
        ("http://127.0.0.1:8080", "127.0.0.1"),
        ("http://[::1]:8080", "::1"),
    ] {
        assert_eq!(host_of(base), host);
    }
}
