//! The shares of a gateway that cannot reach the others end in time, also if the clock of its machine is set back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use headrace_domain::{Clock as _, KeyId, ManualClock, UnixNanos};
use headrace_limits::{
    Limits, RateRule, Scope, ShareHolder, ShareKey, ShareStore, ShareStoreError, ShareTable,
};

#[derive(Default)]
struct OneTable {
    table: ShareTable,
    is_away: bool,
}

impl ShareStore for OneTable {
    fn exchange(&mut self, change: &mut dyn FnMut(&mut ShareTable, u64)) -> Result<(), ShareStoreError> {
        if self.is_away {
            return Err(ShareStoreError { why: "it is away".to_owned() });
        }
        change(&mut self.table, 1_000_000);
        Ok(())
    }
}

#[test]
fn shares_end_twelve_seconds_after_the_last_exchange_by_either_clock() {
    let key = ShareKey { scope: Scope::Key(KeyId::new("k").unwrap()), rule: RateRule::Requests };
    for back in [0, 3_600] {
        let clock = ManualClock::at(UnixNanos::new(1_700_000_000_000_000_000));
        let (limits, mut shares) = Limits::over_gateways(Duration::from_secs(600), ShareHolder::new(1));
        let mut store = OneTable::default();
        assert_eq!(limits.usable_share(&key, 60, clock.now()), 0, "before the first exchange");
        shares.exchange(&mut store, &clock).unwrap();
        assert_eq!(limits.usable_share(&key, 60, clock.now()), 60);
        store.is_away = true;
        clock.step_nanos(-back * 1_000_000_000);
        for second in 1..=20 {
            clock.advance(Duration::from_secs(1));
            shares.exchange(&mut store, &clock).unwrap_err();
            let expected = if second < 12 { 60 } else { 0 };
            assert_eq!(
                limits.usable_share(&key, 60, clock.now()),
                expected,
                "second {second}, back {back} s"
            );
        }
        store.is_away = false;
        shares.exchange(&mut store, &clock).unwrap();
        assert_eq!(limits.usable_share(&key, 60, clock.now()), 60);
    }
}
