//! Measures the limits' cost per call (enter, take and settle over four scopes), alone and against a second thread.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use criterion::{Criterion, criterion_group, criterion_main};
use headrace_domain::{IdError, KeyId, ModelName, OrgId, ProjectId, RequestId, UnixNanos};
use headrace_limits::{LimitSpec, Limits, Scope};

fn scopes(key: &str) -> Result<[(Scope, LimitSpec); 4], IdError> {
    let spec = LimitSpec {
        requests_per_minute: Some(u32::MAX),
        tokens_per_minute: Some(u64::MAX / 4),
        concurrency: Some(1_000),
    };
    Ok([
        (Scope::Key(KeyId::new(key)?), spec),
        (Scope::Project(ProjectId::new("project")?), spec),
        (Scope::Org(OrgId::new("org")?), spec),
        (Scope::Model(ModelName::new("model")?), spec),
    ])
}

fn call(limits: &Limits, scopes: &[(Scope, LimitSpec)], now: &mut u64) {
    *now += 1_000;
    let at = UnixNanos::new(*now);
    let (admission, more) = scopes.split_at(3);
    if let Ok(mut lease) = limits.enter(admission, RequestId::from_bits(1), at)
        && lease.take(more, 1_000, at).is_ok()
    {
        lease.settle(black_box(100), at);
    }
}

fn bench(criterion: &mut Criterion) {
    let (Ok(mine), Ok(other)) = (scopes("mine"), scopes("other")) else { return };
    let limits = Limits::new();
    let mut now = 1_700_000_000_000_000_000;
    criterion
        .bench_function("enter, take and settle, 4 scopes", |b| b.iter(|| call(&limits, &mine, &mut now)));
    criterion.bench_function("standing, 4 scopes", |b| {
        b.iter(|| limits.standing(black_box(&mine), UnixNanos::new(now)));
    });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut theirs = now;
        let (limits, stop, other) = (&limits, &stop, &other);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                call(limits, other, &mut theirs);
            }
        });
        criterion.bench_function("enter, take and settle, 4 scopes, 3 of them contended", |b| {
            b.iter(|| call(limits, &mine, &mut now));
        });
        stop.store(true, Ordering::Relaxed);
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
