//! The functions that run in the server, and their calls. A bucket is a hash with what is left, the time of that in
//! microseconds, and the limit. It is removed when it has been full for a minute.

use headrace_limits::{QuotaDemand, QuotaGrant, QuotaReturn, RateRule, Scope};
use redis::aio::ConnectionLike;
use redis::{Cmd, RedisResult, Value};

/// The library. Its name has a version, so that gateways of several versions can use one server.
const LIBRARY: &str = include_str!("functions.lua");
/// The largest amount that a number of the server's functions can count exactly.
const MAX_EXACT: u64 = 1 << 53;

/// The names of a deployment's keys. All have the same hash tag, because one call uses several of them.
#[derive(Debug, Clone)]
pub(crate) struct KeyNames {
    prefix: String,
}

/// What the server answered to a demand.
pub(crate) enum LeaseAnswer {
    Grants(Vec<QuotaGrant>),
    /// The server has lost its data since the gateway connected.
    NoEpoch,
}

impl KeyNames {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: format!("{{{prefix}}}") }
    }

    fn epoch(&self) -> String {
        format!("{}:epoch", self.prefix)
    }

    fn gateways(&self) -> String {
        format!("{}:gateways", self.prefix)
    }

    fn bucket(&self, scope: &Scope, rule: RateRule) -> String {
        let rule = match rule {
            RateRule::Requests => "requests",
            RateRule::Tokens => "tokens",
        };
        format!("{}:{rule}:{}:{}", self.prefix, scope.kind(), scope.id())
    }
}

/// Loads the library. Other gateways may have done so already.
pub(crate) async fn load(connection: &mut impl ConnectionLike) -> RedisResult<()> {
    let mut command = redis::cmd("FUNCTION");
    command.arg("LOAD").arg("REPLACE").arg(LIBRARY);
    command.query_async(connection).await
}

/// Begins the counting of a server without data. Buckets are empty at the start and full after a minute. With
/// `is_first`, they are full, because no gateway has counted before.
pub(crate) async fn begin(
    connection: &mut impl ConnectionLike,
    keys: &KeyNames,
    is_first: bool,
) -> RedisResult<String> {
    call("headrace_begin_1", &[keys.epoch()]).arg(u8::from(is_first)).query_async(connection).await
}

/// Notes that this gateway is alive. Returns the number of live gateways, and the epoch. `None` if the server has lost
/// its data.
pub(crate) async fn beat(
    connection: &mut impl ConnectionLike,
    keys: &KeyNames,
    gateway: &str,
) -> RedisResult<(u32, Option<String>)> {
    call("headrace_beat_1", &[keys.epoch(), keys.gateways()]).arg(gateway).query_async(connection).await
}

/// Removes this gateway from the live ones.
pub(crate) async fn leave(
    connection: &mut impl ConnectionLike,
    keys: &KeyNames,
    gateway: &str,
) -> RedisResult<()> {
    redis::cmd("ZREM").arg(keys.gateways()).arg(gateway).query_async(connection).await
}

/// Takes a slice of each limit, or of none.
pub(crate) async fn take(
    connection: &mut impl ConnectionLike,
    keys: &KeyNames,
    demands: &[QuotaDemand],
) -> RedisResult<LeaseAnswer> {
    let names: Vec<String> = std::iter::once(keys.epoch())
        .chain(demands.iter().map(|demand| keys.bucket(&demand.scope, demand.rule)))
        .collect();
    let mut command = call("headrace_take_1", &names);
    for QuotaDemand { limit, needed, wanted, .. } in demands {
        for amount in [limit, needed, wanted] {
            command.arg((*amount).min(MAX_EXACT));
        }
    }
    let amounts: Option<Vec<u64>> = command.query_async(connection).await?;
    Ok(amounts.map_or(LeaseAnswer::NoEpoch, |amounts| {
        let pairs = amounts.as_chunks::<2>().0.iter();
        LeaseAnswer::Grants(
            pairs.map(|[granted, left]| QuotaGrant { granted: *granted, left: *left, share: None }).collect(),
        )
    }))
}

/// Gives back what was not used.
pub(crate) async fn give_back(
    connection: &mut impl ConnectionLike,
    keys: &KeyNames,
    returned: &[QuotaReturn],
) -> RedisResult<()> {
    change(connection, keys, returned.iter().map(|one| (one, 1))).await
}

/// Charges what was used without the server. A bucket may owe up to a minute's worth.
pub(crate) async fn charge(
    connection: &mut impl ConnectionLike,
    keys: &KeyNames,
    used: &[QuotaReturn],
) -> RedisResult<()> {
    change(connection, keys, used.iter().map(|one| (one, -1))).await
}

async fn change(
    connection: &mut impl ConnectionLike,
    keys: &KeyNames,
    changes: impl Iterator<Item = (&QuotaReturn, i64)> + Clone,
) -> RedisResult<()> {
    let names: Vec<String> = std::iter::once(keys.epoch())
        .chain(changes.clone().map(|(one, _)| keys.bucket(&one.scope, one.rule)))
        .collect();
    let mut command = call("headrace_change_1", &names);
    for (one, sign) in changes {
        let amount = i64::try_from(one.amount.min(MAX_EXACT)).unwrap_or(i64::MAX);
        command.arg(one.limit.min(MAX_EXACT)).arg(amount * sign);
    }
    let _: Value = command.query_async(connection).await?;
    Ok(())
}

fn call(function: &str, keys: &[String]) -> Cmd {
    let mut command = redis::cmd("FCALL");
    command.arg(function).arg(keys.len()).arg(keys);
    command
}
