//! Limits of several gateways in a real server: what passes, over how long, while the server runs, is killed and is
//! stopped. Needs a server's program in `HEADRACE_REDIS_SERVER`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod support;

use std::time::{Duration, Instant};

use headrace_valkey::UnreachablePolicy;

use support::{Gateway, RedisServer, key, org, requests, tokens};

/// What may pass of a limit in a stretch of time: a minute's worth at once, and what refills.
fn bound(limit: u64, since: Instant) -> u64 {
    limit + u64::try_from(since.elapsed().as_nanos()).unwrap() * limit / 60_000_000_000 + 1
}

#[test]
fn gateways_share_a_limit_exactly() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let gateways: Vec<Gateway> = (0..3).map(|_| server.gateway(UnreachablePolicy::Share)).collect();
    let begun = Instant::now();
    let passed = (0..900).filter(|n| gateways[n % 3].count(&requests(key(1), 300))).count() as u64;
    assert!((300..=bound(300, begun)).contains(&passed), "{passed}");
    // A gateway that starts later finds the bucket empty, too.
    let late = server.gateway(UnreachablePolicy::Share);
    assert!(!late.count(&requests(key(1), 1)));
    assert!(late.count(&requests(key(2), 1)), "another key has its own bucket");
    let refusal = late.refusal(&requests(key(1), 300)).unwrap();
    assert!(refusal.contains("300 of 300 used") || refusal.contains("299 of 300 used"), "{refusal}");
    assert!(gateways.iter().all(|gateway| gateway.status().failures == 0));
}

#[test]
fn all_scopes_give_or_none() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let [gateway, other] = [(); 2].map(|()| server.gateway(UnreachablePolicy::Share));
    let both = [tokens(key(1), 600), tokens(org(), 600)].concat();
    let alone = tokens(key(1), 600);
    assert!(gateway.acquire(&tokens(org(), 600), 550).is_some());
    let before = other.remaining(&alone);
    assert!(gateway.acquire(&both, 500).is_none(), "the organisation has fifty left");
    let after = other.remaining(&alone);
    assert!(
        after + 5 >= before,
        "the key has lost no more than calls that enter fetch: {before} and {after}"
    );
}

#[test]
fn unused_tokens_are_there_for_another_gateway() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let [one, other] = [(); 2].map(|()| server.gateway(UnreachablePolicy::Share));
    let scope = tokens(key(1), 6_000);
    for round in 0..20 {
        let gateway = if round % 2 == 0 { &one } else { &other };
        let lease = gateway.acquire(&scope, 5_000);
        let lease = lease.unwrap_or_else(|| panic!("round {round}"));
        gateway.settle(lease, 10);
        // The rest is on its way.
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_killed_server_leaves_each_gateway_its_share() {
    for persistence in [&[][..], &["--save", "1 1"]] {
        let Some(mut server) = RedisServer::start(persistence) else { return };
        let gateways: Vec<Gateway> = (0..3).map(|_| server.gateway(UnreachablePolicy::Share)).collect();
        gateways.iter().for_each(|gateway| gateway.wait_for_gateways(3));
        let scope = requests(key(1), 600);
        let begun = Instant::now();
        let mut passed = 0;
        let mut ask = |for_millis: u64, least: u64| {
            let (since, mut now_passed) = (Instant::now(), 0);
            while since.elapsed() < Duration::from_millis(for_millis) {
                for gateway in &gateways {
                    let asked = Instant::now();
                    now_passed += u64::from(gateway.count(&scope));
                    // The deadline is 50 ms. The rest is a machine that runs other tests, too.
                    assert!(asked.elapsed() < Duration::from_millis(500), "{:?}", asked.elapsed());
                }
            }
            passed += now_passed;
            assert!(passed <= bound(600, begun), "{passed} after {:?}", begun.elapsed());
            assert!(now_passed >= least, "{now_passed} in {for_millis} ms");
        };
        ask(1_000, 600);
        server.kill();
        // Ten a second refill, and the first waits for a refill of its share.
        ask(3_000, 15);
        assert!(gateways.iter().all(|gateway| !gateway.status().is_reachable));
        server.restart();
        ask(4_000, 15);
        assert!(gateways.iter().all(|gateway| gateway.status().is_reachable));
    }
}

#[test]
fn a_server_that_restarts_with_old_data_starts_from_empty() {
    let Some(mut server) = RedisServer::start(&[]) else { return };
    let gateway = server.gateway(UnreachablePolicy::Refuse);
    let scope = requests(key(1), 600);
    let begun = Instant::now();
    assert!(gateway.count(&scope));
    // What is counted from here on is not in the file that the server reads when it starts.
    server.save();
    let mut passed = 1 + (0..700).filter(|_| gateway.count(&scope)).count() as u64;
    server.kill();
    gateway.wait_until_lost(&scope);
    server.restart();
    gateway.wait_until_reachable();
    passed += (0..700).filter(|_| gateway.count(&scope)).count() as u64;
    assert!((600..=bound(600, begun)).contains(&passed), "{passed} after {:?}", begun.elapsed());
}

#[test]
fn a_stopped_server_delays_calls_by_its_deadline_at_most() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let gateway = server.gateway(UnreachablePolicy::Share);
    gateway.wait_for_gateways(1);
    let scope = requests(key(1), 60_000);
    assert!(gateway.count(&scope));
    server.stop();
    let asked = Instant::now();
    gateway.count(&scope);
    assert!(asked.elapsed() < Duration::from_millis(500), "{:?}", asked.elapsed());
    assert_eq!(gateway.status().failures, 1);
    // Further calls do not wait, and a thousand a second pass.
    let asked = Instant::now();
    for _ in 0..100 {
        gateway.count(&scope);
    }
    assert!(asked.elapsed() < Duration::from_millis(500), "{:?}", asked.elapsed());
    assert_eq!(gateway.status().failures, 1);
    std::thread::sleep(Duration::from_millis(50));
    assert!(gateway.count(&scope));
    server.go_on();
    gateway.wait_until_reachable();
    assert!(gateway.count(&scope));
}

#[test]
fn what_passed_in_an_outage_is_charged_afterwards() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let gateway = server.gateway(UnreachablePolicy::Share);
    gateway.wait_for_gateways(1);
    let scope = requests(key(1), 6_000);
    let begun = Instant::now();
    let mut passed = (0..10_000).filter(|_| gateway.count(&scope)).count() as u64;
    server.stop();
    let outage = Instant::now();
    while outage.elapsed() < Duration::from_secs(4) {
        passed += u64::from(gateway.count(&scope));
    }
    server.go_on();
    gateway.wait_until_reachable();
    passed += (0..10_000).filter(|_| gateway.count(&scope)).count() as u64;
    assert!(passed <= bound(6_000, begun), "{passed} after {:?}", begun.elapsed());
}

#[test]
fn the_policy_refuse_lets_nothing_pass() {
    let Some(mut server) = RedisServer::start(&[]) else { return };
    let gateway = server.gateway(UnreachablePolicy::Refuse);
    let scope = requests(key(1), 60_000);
    assert!(gateway.count(&scope));
    server.kill();
    gateway.wait_until_lost(&scope);
    let refusal = gateway.refusal(&scope).unwrap();
    assert!(refusal.contains("0 used of 0, this gateway's share of 60000"), "{refusal}");
    // A gateway that starts meanwhile does not know its share.
    let late = server.gateway(UnreachablePolicy::Share);
    assert!(!late.count(&scope));
    assert!(late.count(&requests(key(1), 0)[..0]), "without a limit, a call passes");
    server.restart();
    late.wait_until_reachable();
    assert!(late.count(&scope));
}

#[test]
fn a_password_and_a_certificate_are_checked() {
    let Some(server) = RedisServer::start_with_tls("a-password") else { return };
    let trusted = server.gateway(UnreachablePolicy::Share);
    assert!(trusted.status().is_reachable);
    assert!(trusted.count(&requests(key(1), 10)));
    let untrusting = server.gateway_without_ca();
    assert!(!untrusting.status().is_reachable, "the certificate is from no authority of the system");
    let stranger = server.gateway_with_password("wrong");
    assert!(!stranger.status().is_reachable);
    assert!(!stranger.count(&requests(key(1), 10)));
}
