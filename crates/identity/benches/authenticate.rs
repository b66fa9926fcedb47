//! Measures the check of one credential among two thousand keys: a good key and a bad one.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use headrace_domain::{OrgId, ProjectId, UnixNanos};
use headrace_identity::{
    Directory, ExposeSecret, HashSecret, IdentityError, MemoryKeyStore, NewKey, RateLimits, SecretString,
};

const NOW: UnixNanos = UnixNanos::new(1_700_000_000_000_000_000);

fn directory() -> Result<Option<(Directory, SecretString)>, IdentityError> {
    let (Ok(org), Ok(project)) = (OrgId::new("org"), ProjectId::new("project")) else { return Ok(None) };
    let store = Arc::new(MemoryKeyStore::new());
    let first = Directory::open(store.clone(), HashSecret::new([1; 32]))?;
    first.create_org(org.clone(), RateLimits::default(), "bench", NOW)?;
    first.create_project(project.clone(), org.clone(), RateLimits::default(), "bench", NOW)?;
    let mut key = None;
    for _ in 0..2_000 {
        key = Some(first.create_key(NewKey::new(org.clone(), project.clone(), "key"), "bench", NOW)?.1);
    }
    Ok(key.map(|key| (first, key)))
}

fn bench(criterion: &mut Criterion) {
    let Ok(Some((directory, key))) = directory() else { return };
    let bad = format!("sk-{}", "x".repeat(43));
    criterion.bench_function("a good key", |b| {
        b.iter(|| directory.authenticate(black_box(key.expose_secret()), NOW).is_ok());
    });
    criterion.bench_function("a bad key", |b| {
        b.iter(|| directory.authenticate(black_box(&bad), NOW).is_err());
    });
    criterion.bench_function("a malformed key", |b| {
        b.iter(|| directory.authenticate(black_box("x' OR pg_sleep(8)--"), NOW).is_err());
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
