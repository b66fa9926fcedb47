//! Owners, addresses and last uses of keys.

use std::time::Duration;

use super::*;
use crate::{AddressList, KeyChange, KeyDetails, KeyUse};

fn list(ranges: &[&str]) -> AddressList {
    AddressList::new(ranges.iter().map(|range| range.parse().unwrap()).collect()).unwrap()
}

#[test]
fn a_key_is_used_only_from_its_addresses() {
    let store = memory();
    let directory = directory(&store);
    let details = KeyDetails { owner: Some("ci".to_owned()), allowed_ips: list(&["10.0.0.0/8"]) };
    let (key, _) = directory.create_key(NewKey { details, ..chosen(SECRET) }, "ops", NOW).unwrap();
    let from = |directory: &Directory, address: &str| {
        directory
            .authenticate_from(SECRET, address.parse().unwrap(), NOW)
            .map(|principal| principal.key.clone())
    };
    for directory in [&directory, &open(&store)] {
        assert_eq!(from(directory, "10.1.2.3"), Ok(key.id.clone()));
        assert_eq!(from(directory, "::ffff:10.1.2.3"), Ok(key.id.clone()));
        assert_eq!(from(directory, "11.1.2.3"), Err(AuthRefusal::Address));
        assert!(directory.authenticate(SECRET, NOW).is_ok(), "inside the process, no address counts");
    }
    // The address of a wrong key is not checked, so that an address reveals nothing.
    let wrong = directory.authenticate_from("sk-wrong-key-000", "11.1.2.3".parse().unwrap(), NOW);
    assert_eq!(wrong.unwrap_err(), AuthRefusal::Unknown);

    let change = KeyChange { allowed_ips: Some(list(&["2001:db8::/32"])), owner: None };
    let changed = directory.change_key_details(&key.id, change, "ops", NOW).unwrap();
    assert_eq!(changed.details.owner.as_deref(), Some("ci"));
    let (_, turned) = directory.rotate_key(&key.id, Duration::from_secs(60), "ops", NOW).unwrap();
    for directory in [&directory, &open(&store)] {
        assert_eq!(from(directory, "10.1.2.3"), Err(AuthRefusal::Address), "the former secret, too");
        assert_eq!(from(directory, "2001:db8::1"), Ok(key.id.clone()));
        let turned = directory.authenticate_from(turned.expose_secret(), "10.1.2.3".parse().unwrap(), NOW);
        assert_eq!(turned.unwrap_err(), AuthRefusal::Address);
    }
    let change = KeyChange { owner: Some(String::new()), allowed_ips: Some(list(&[])) };
    assert_eq!(
        directory.change_key_details(&key.id, change, "ops", NOW).unwrap().details,
        KeyDetails::default()
    );
    assert_eq!(from(&directory, "10.1.2.3"), Ok(key.id.clone()));
    let long = KeyChange { owner: Some("o".repeat(129)), ..KeyChange::default() };
    let refused = directory.change_key_details(&key.id, long, "ops", NOW);
    assert!(matches!(refused, Err(IdentityError::Invalid { field: "owner", .. })));
    let rows = directory.audit_of("key.change", Some(key.id.as_str()), 9).unwrap();
    let details: Vec<_> = rows.iter().map(|row| row.entry.detail.as_str()).collect();
    assert_eq!(details, ["no owner, from any address", "owner \"ci\", from 2001:db8::/32"]);
}

#[test]
fn last_uses_are_written_once_a_minute_and_merged_by_the_greatest() {
    let at = |seconds: u64| UnixNanos::new(NOW.get() + seconds * 1_000_000_000);
    let failing = Arc::new(Failing::default());
    let store: Arc<dyn KeyStore> = failing.clone();
    let here = directory(&store);
    let (key, _) = here.create_key(chosen(SECRET), "ops", NOW).unwrap();
    let there = open(&store);
    let use_key = |directory: &Directory, seconds| {
        directory.authenticate_from(SECRET, "10.0.0.1".parse().unwrap(), at(seconds)).map(drop)
    };
    let stored = || failing.store.key_uses(UnixNanos::new(0)).unwrap();
    let last = |directory: &Directory| directory.key(&key.id).unwrap().last_used;
    assert_eq!((last(&here), stored()), (None, Vec::new()));

    use_key(&here, 1).unwrap();
    assert_eq!((last(&here), stored()), (Some(at(1)), Vec::new()), "nothing is written on the path");
    here.sync_key_uses(NOW).unwrap();
    let used = |seconds| vec![KeyUse { key: key.id.clone(), at: at(seconds) }];
    assert_eq!(stored(), used(1));
    for seconds in 2..61 {
        use_key(&here, seconds).unwrap();
        here.sync_key_uses(NOW).unwrap();
    }
    assert_eq!((last(&here), stored()), (Some(at(60)), used(1)), "once a minute");
    use_key(&here, 61).unwrap();
    here.sync_key_uses(NOW).unwrap();
    assert_eq!(stored(), used(61));

    // The other process has an earlier use, which changes nothing, and learns the later one.
    use_key(&there, 30).unwrap();
    let since = there.sync_key_uses(NOW).unwrap();
    assert_eq!((last(&there), stored()), (Some(at(61)), used(61)));
    assert!(since >= NOW && since < at(61), "uses that are written late are still found");
    use_key(&there, 100).unwrap();
    failing.broken.store(true, Ordering::SeqCst);
    assert!(there.write_all_key_uses().is_err());
    failing.broken.store(false, Ordering::SeqCst);
    there.write_all_key_uses().unwrap();
    here.sync_key_uses(since).unwrap();
    assert_eq!((last(&here), last(&open(&store))), (Some(at(100)), Some(at(100))));

    // A change of the key and a rotation keep its clock.
    here.set_key_limits(&key.id, RateLimits { concurrency: Some(1), ..RateLimits::default() }, "ops", NOW)
        .unwrap();
    use_key(&here, 200).unwrap();
    assert_eq!(here.list()[0].last_used, Some(at(200)));
    let used = here.authenticate_from("sk-wrong-key-000", "10.0.0.1".parse().unwrap(), at(300));
    assert!(used.is_err());
    assert_eq!(last(&here), Some(at(200)));
}
