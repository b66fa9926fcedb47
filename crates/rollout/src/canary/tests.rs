//! Seeded simulations of canaries: a bad one is soon rolled back, and one as good as the stable models stays.

use super::*;

const SPEC: CanarySpec = CanarySpec {
    window: Duration::from_secs(1800),
    min_calls: 40,
    errors: 0.01,
    refusals: 0.02,
    first_token: 1.3,
};

/// The behaviour of a simulated model.
#[derive(Clone, Copy)]
struct ModelBehavior {
    errors: f64,
    refusals: f64,
    /// Factor on the usual, log-normal times to the first token.
    slower: f64,
}

const USUAL: ModelBehavior = ModelBehavior { errors: 0.03, refusals: 0.01, slower: 1.0 };

/// A generator of random numbers (splitmix64: Steele, Lea and Flood, 2014).
struct SplitMix(u64);

impl SplitMix {
    /// A number from 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.next()).ln()).sqrt() * (std::f64::consts::TAU * self.next()).cos()
    }

    fn call(&mut self, model: ModelBehavior) -> (CallVerdict, Option<u32>) {
        let drawn = self.next();
        if drawn < model.errors {
            return (CallVerdict::Failed, None);
        }
        let went =
            if drawn < model.errors + model.refusals { CallVerdict::Refused } else { CallVerdict::Well };
        let first_token_us = 200_000.0 * model.slower * (0.6 * self.normal()).exp();
        (went, Some(first_token_us as u32))
    }
}

fn watch() -> CanaryWatch {
    let model = |name: &str| ModelName::new(name).unwrap();
    CanaryWatch::new(&model("chat"), &model("next"), 5, SPEC)
}

/// Simulates `calls` calls, ten per second, one in twenty at the canary. Returns how many calls the canary had had
/// when it was rolled back.
fn run(seed: u64, calls: u32, canary: ModelBehavior) -> Option<(u32, CanaryRollback)> {
    let (watch, mut random, mut own) = (watch(), SplitMix(seed), 0);
    for call in 0..calls {
        let now = UnixNanos::new(u64::from(call) * 100_000_000);
        let is_own = random.next() < 0.05;
        let (went, first_token_us) = random.call(if is_own { canary } else { USUAL });
        own += u32::from(is_own);
        watch.ended(is_own, went, first_token_us, (0, now));
        if watch.is_out() {
            return Some((own, watch.view().rolled_back.unwrap()));
        }
    }
    None
}

#[test]
fn a_bad_canary_is_out_within_so_many_of_its_calls() {
    const SEEDS: u64 = 300;
    for (name, canary, within, word) in [
        ("fails", ModelBehavior { errors: 0.30, ..USUAL }, 120, "calls that fail"),
        ("breaks", ModelBehavior { errors: 1.0, ..USUAL }, 48, "calls that fail"),
        ("refuses", ModelBehavior { refusals: 0.30, ..USUAL }, 120, "content is refused"),
        ("is slow", ModelBehavior { slower: 3.0, ..USUAL }, 160, "time to the first token"),
    ] {
        let mut late = 0;
        for seed in 0..SEEDS {
            match run(seed, 40 * within, canary) {
                Some((own, why)) if own <= within => assert!(why.why.contains(word), "{name}: {}", why.why),
                _ => late += 1,
            }
        }
        assert!(late * 100 <= SEEDS, "{name}: {late} of {SEEDS} were later than {within} calls");
    }
}

#[test]
fn a_canary_as_good_as_the_others_stays() {
    const SEEDS: u64 = 100;
    let alarms: Vec<_> =
        (0..SEEDS).filter_map(|seed| Some((seed, run(1000 + seed, 100_000, USUAL)?))).collect();
    assert!(alarms.len() as u64 * 100 <= SEEDS, "{alarms:?}");
    // So does a canary that is slightly worse, within the tolerance.
    let little = ModelBehavior { slower: 1.15, ..USUAL };
    assert_eq!(run(1, 100_000, little).map(|(own, why)| (own, why.why)), None);
}

#[test]
fn nothing_is_decided_of_few_calls_or_of_such_as_are_long_past() {
    let at = |second: u64| UnixNanos::new(second * 1_000_000_000);
    let watch = watch();
    let ended = |canary: bool, went, count: u32, second| {
        (0..count).for_each(|_| watch.ended(canary, went, Some(1000), (0, at(second))));
    };
    ended(false, CallVerdict::Well, 1000, 1);
    ended(true, CallVerdict::Failed, SPEC.min_calls - 1, 1);
    assert!(!watch.is_out());
    assert_eq!((watch.view().calls, watch.view().errors), ([39, 1000], [39, 0]));
    // The calls are outside of the window now, so they do not count.
    ended(false, CallVerdict::Well, 1000, 1802);
    ended(true, CallVerdict::Well, SPEC.min_calls, 1802);
    assert!(!watch.is_out());
    assert_eq!((watch.view().calls, watch.view().errors), ([40, 1000], [0, 0]));
    ended(true, CallVerdict::Failed, 32, 1803);
    assert!(watch.is_out());
    let news = watch.news().unwrap().rolled_back;
    assert!(
        news.why.starts_with("calls that fail: ") && news.why.contains("beside 0 of 1000 (0.0 %)"),
        "{}",
        news.why
    );
    assert_eq!(watch.news(), None, "it is told once");
    // No more calls are counted. An operator's resumption starts from scratch.
    let seen = watch.view().calls;
    ended(true, CallVerdict::Well, 10, 1803);
    assert_eq!(watch.view().calls, seen);
    assert!(watch.resume() && !watch.is_out() && !watch.resume());
    assert_eq!((watch.view().calls, watch.view().rolled_back), ([0, 0], None));
}

/// Simulates `calls` calls of twenty similar keys, one in twenty at the canary. In addition, one key sends calls to
/// the canary that all end the same way. Returns how many calls of the other keys the canary had had when it was
/// rolled back.
fn run_beside_one_key(
    seed: u64,
    calls: u32,
    canary: ModelBehavior,
    one_key: CallVerdict,
    its_calls: f64,
) -> Option<u32> {
    let (watch, mut random, mut own) = (watch(), SplitMix(seed), 0);
    for call in 0..calls {
        let now = UnixNanos::new(u64::from(call) * 100_000_000);
        let is_own = random.next() < 0.05;
        let (went, first_token_us) = random.call(if is_own { canary } else { USUAL });
        let caller = 1 + (random.next() * 20.0) as u64;
        own += u32::from(is_own);
        watch.ended(is_own, went, first_token_us, (caller, now));
        if random.next() < its_calls {
            watch.ended(true, one_key, Some(100_000), (99, now));
        }
        if watch.is_out() {
            return Some(own);
        }
    }
    None
}

#[test]
fn the_calls_of_one_key_take_no_canary_out_and_keep_none_in() {
    const SEEDS: u64 = 100;
    // As many failures as all other keys have calls at the canary, and ten times as many.
    for its_calls in [0.05, 0.5] {
        for went in [CallVerdict::Failed, CallVerdict::Refused] {
            let out = |seed: &u64| run_beside_one_key(*seed, 20_000, USUAL, went, its_calls).is_some();
            let alarms = (0..SEEDS).filter(out).count() as u64;
            assert!(alarms * 100 <= 10 * SEEDS, "{went:?} at {its_calls}: out in {alarms} of {SEEDS}");
        }
    }
    // A canary that fails for all keys is soon rolled back, even if that one key often gets good answers.
    let fails = ModelBehavior { errors: 0.30, ..USUAL };
    for (its_calls, within) in [(0.0, 200), (0.05, 200), (0.5, 400)] {
        let late = |seed: &u64| {
            run_beside_one_key(*seed, 40 * within, fails, CallVerdict::Well, its_calls)
                .is_none_or(|own| own > within)
        };
        let late = (0..SEEDS).filter(late).count() as u64;
        assert!(
            late * 100 <= 2 * SEEDS,
            "beside {its_calls}: {late} of {SEEDS} were later than {within} calls"
        );
    }
}

#[test]
fn a_key_that_is_alone_with_the_canary_decides_where_no_other_key_calls_the_route() {
    let at = |second: u64| UnixNanos::new(second * 1_000_000_000);
    let ended = |watch: &CanaryWatch, canary, went, count: u32, caller, second| {
        (0..count).for_each(|_| watch.ended(canary, went, Some(1000), (caller, at(second))));
    };
    let alone = watch();
    ended(&alone, false, CallVerdict::Well, 100, 1, 1);
    ended(&alone, true, CallVerdict::Failed, 80, 1, 1);
    assert!(alone.is_out());
    let beside = watch();
    ended(&beside, false, CallVerdict::Well, 100, 2, 1);
    ended(&beside, true, CallVerdict::Failed, 800, 1, 1);
    assert!(!beside.is_out(), "another key calls the route, and has seen nothing wrong");
    ended(&beside, true, CallVerdict::Failed, 8, 2, 1);
    assert!(beside.is_out(), "it has now");
}
