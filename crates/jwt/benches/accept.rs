//! Measures a token that was verified before, a token that is verified, and one that is refused. Tokens have about 1 KiB,
//! as those of large providers.

#[path = "../tests/verify/provider.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "the provider is one of tests, which use all of it")]
mod provider;

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::json;

use crate::provider::{START, SigningKey, World, claims_with, issuer, rule};

fn bench(criterion: &mut Criterion) {
    let fill: String = ('a'..='z').cycle().take(420).collect();
    let claims = claims_with("fill", json!(fill));
    for algorithm in ["RS256", "ES256", "EdDSA"] {
        let key = SigningKey::new("key-1", algorithm);
        let world = World::of(issuer(vec![rule("lab")]), &[&key]);
        let token = key.token(algorithm, &claims);
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            if let Some(wait) = world.tokens.wait_for_keys(&token, START) {
                wait.await;
            }
        });
        if world.tokens.authenticate(&token, START).is_err() {
            return;
        }
        let name = format!("a repeated {algorithm} token of {} bytes", token.len());
        criterion.bench_function(&name, |b| {
            b.iter(|| {
                let wait = world.tokens.wait_for_keys(black_box(&token), START);
                (wait.is_none(), world.tokens.authenticate(black_box(&token), START).is_ok())
            });
        });
        // Its last second has begun, so it is never kept.
        let ending = key.token(algorithm, &claims_with("exp", json!(provider::START_SECONDS)));
        criterion.bench_function(&format!("a new {algorithm} token"), |b| {
            b.iter(|| world.tokens.authenticate(black_box(&ending), START).is_ok());
        });
        let stranger = SigningKey::new("key-1", algorithm).token(algorithm, &claims);
        criterion.bench_function(&format!("an {algorithm} token with a wrong signature"), |b| {
            b.iter(|| world.tokens.authenticate(black_box(&stranger), START).is_err());
        });
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
