//! Keeps the connection: opens it again after a loss, renews the sign of life of this gateway, and sends what calls did
//! not use. Must not know how slices are decided.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headrace_limits::QuotaReturn;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::connection::ServerConnector;
use crate::functions;
use crate::settings::ValkeySettings;
use crate::state::SourceState;

/// The pause between two signs of life, and between two tries to connect.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// How long the server may take to open a connection, or to answer outside of a call.
const PATIENCE: Duration = Duration::from_secs(3);
/// What an outage charges a server that has kept its data: a bucket owes a minute's worth at most.
const CHARGED_TIME: Duration = Duration::from_secs(60);
/// What an outage charges a server whose buckets started empty: the time in which gateways reach it one after another.
const CHARGED_TIME_AFTER_LOSS: Duration = Duration::from_secs(2);
/// The most changes in one command.
const CHUNK: usize = 256;

/// The task that keeps the connection.
pub(crate) struct ConnectionSupervisor {
    connector: ServerConnector,
    shared: Arc<SourceState>,
    returns: mpsc::Receiver<QuotaReturn>,
    gateway: String,
    address: String,
    /// The epoch of the server's data, once known.
    epoch: Option<String>,
    /// What this gateway let pass in an outage, until the server has charged it.
    uncharged: Vec<QuotaReturn>,
    is_failing: bool,
}

impl ConnectionSupervisor {
    pub(crate) fn new(
        settings: &ValkeySettings,
        connector: ServerConnector,
        shared: Arc<SourceState>,
        returns: mpsc::Receiver<QuotaReturn>,
    ) -> Self {
        let (gateway, address) = (settings.gateway.clone(), settings.address.to_string());
        Self {
            connector,
            shared,
            returns,
            gateway,
            address,
            epoch: None,
            uncharged: Vec::new(),
            is_failing: false,
        }
    }

    /// Tries to connect once.
    pub(crate) async fn connect(&mut self) {
        match timeout(PATIENCE, self.open()).await {
            Ok(Ok(mut connection)) => {
                self.shared.set_connection(connection.clone());
                // Calls that came while the connection was opened.
                if let Err(why) = within(self.charge(&mut connection, CHARGED_TIME_AFTER_LOSS)).await {
                    return self.shared.lose(why);
                }
                if std::mem::take(&mut self.is_failing) {
                    tracing::warn!(server = %self.address, "the server of rate limits is reached again");
                }
            }
            Ok(Err(error)) => self.report(&error),
            Err(_) => self.report(&"no answer within three seconds"),
        }
    }

    /// Runs until `is_ending` says so.
    pub(crate) async fn run(mut self, mut is_ending: watch::Receiver<bool>) {
        let shared = Arc::clone(&self.shared);
        let mut beat = tokio::time::interval(BEAT_EVERY);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut returned = Vec::new();
        while !*is_ending.borrow_and_update() {
            tokio::select! {
                _ = is_ending.changed() => break,
                () = shared.lost.notified() => {}
                _ = beat.tick() => self.beat().await,
                _ = self.returns.recv_many(&mut returned, CHUNK) => {
                    if let Some(mut connection) = shared.connection() {
                        let sent = functions::give_back(&mut connection, &shared.keys, &returned);
                        if let Err(why) = within(sent).await {
                            shared.lose(why);
                        }
                    }
                    returned.clear();
                }
            }
            if shared.connection().is_none() {
                self.connect().await;
                if shared.connection().is_none() {
                    let _ = timeout(BEAT_EVERY, is_ending.changed()).await;
                }
            }
        }
        if let Some(mut connection) = shared.connection() {
            let _ = within(functions::leave(&mut connection, &shared.keys, &self.gateway)).await;
        }
    }

    async fn beat(&mut self) {
        let Some(mut connection) = self.shared.connection() else { return };
        match within(functions::beat(&mut connection, &self.shared.keys, &self.gateway)).await {
            Ok((gateways, epoch)) if epoch == self.epoch => self.shared.set_gateways(gateways),
            Ok(_) => self.shared.lose("the server has lost its data"),
            Err(why) => self.shared.lose(why),
        }
    }

    /// Opens a connection, loads the functions, and charges what this gateway let pass without the server.
    async fn open(&mut self) -> RedisResult<MultiplexedConnection> {
        let (shared, keys) = (Arc::clone(&self.shared), self.shared.keys.clone());
        let mut connection = self.connector.open().await?;
        functions::load(&mut connection).await?;
        let epoch = functions::begin(&mut connection, &keys, self.epoch.is_none()).await?;
        let (gateways, _) = functions::beat(&mut connection, &keys, &self.gateway).await?;
        let kept = self.epoch.as_ref() == Some(&epoch);
        self.epoch = Some(epoch);
        shared.set_gateways(gateways);
        self.charge(&mut connection, if kept { CHARGED_TIME } else { CHARGED_TIME_AFTER_LOSS }).await?;
        Ok(connection)
    }

    /// Charges what this gateway let pass without the server.
    async fn charge(&mut self, connection: &mut MultiplexedConnection, most: Duration) -> RedisResult<()> {
        self.uncharged.extend(self.shared.end_outage(most));
        while !self.uncharged.is_empty() {
            let first = self.uncharged.len().saturating_sub(CHUNK);
            let last = self.uncharged.get(first..).unwrap_or_default();
            functions::charge(connection, &self.shared.keys, last).await?;
            self.uncharged.truncate(first);
        }
        Ok(())
    }

    fn report(&mut self, why: &dyn fmt::Display) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::error!(
                server = %self.address,
                %why,
                policy = ?self.shared.policy,
                "the server of rate limits cannot be reached; it is tried again every second"
            );
        }
    }
}

/// Waits for an answer outside of a call.
async fn within<T>(answer: impl Future<Output = RedisResult<T>>) -> Result<T, String> {
    match timeout(PATIENCE, answer).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("no answer within three seconds".to_owned()),
    }
}
