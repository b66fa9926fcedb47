//! A call with a few tokens, timed at both ends: the server's share, and the network's share. Must not know the other
//! measurements.

use std::time::Duration;

use headrace_client::{
    ChatMessage, ChatRequest, Client, ClientConfig, ClientError, ModelInfo, StreamOptions,
};
use headrace_server_access::local_server::LocalServer;
use headrace_trace::humane_duration;
use serde_json::{Value, json};

use crate::arguments::ServerArgs;
use crate::arguments::ping::PingArgs;

/// Maximum number of answer tokens.
const TOKENS: u32 = 16;
/// Number and interval of attempts to fetch a trace. Traces are stored after the call ends.
const TRACE_TRIES: u32 = 10;
const TRACE_WAIT: Duration = Duration::from_millis(100);

/// A call that was answered.
pub(super) struct PingCall {
    pub(super) model: String,
    /// Time from sending the request to the last byte of the answer, without the time for a new connection.
    pub(super) whole: Duration,
    pub(super) first_token: Option<Duration>,
    /// The server's own time, from the first byte of the request to the last byte of the answer. `None` if the server
    /// does not report it.
    pub(super) server: Option<Duration>,
}

/// Makes a call over an open connection.
pub(super) async fn call(args: &PingArgs, config: ClientConfig) -> Result<PingCall, ClientError> {
    let at = ServerArgs { data_dir: args.data_dir.clone(), config: None, json: false };
    let key = match (headrace_server_access::arguments::given_key(&args.key), crate::commands::data_dir(&at))
    {
        (Some(key), _) => Some(key.clone()),
        (None, Ok(data_dir)) => {
            LocalServer::of(data_dir, Some(args.url.clone())).await.map(|lender| lender.key)
        }
        (None, Err(_)) => None,
    };
    let client = Client::new(ClientConfig { key, ..config })?;
    // This also opens the connection.
    let models = client.models().await?;
    let first =
        || models.iter().find(|model| ModelInfo::takes_conversations(model)).map(|model| model.id.clone());
    let model = args.model.clone().or_else(first);
    let model = model.ok_or_else(|| ClientError::Config("the server lists no model to ask".to_owned()))?;
    let request = ChatRequest {
        model: model.clone(),
        messages: vec![ChatMessage::new("user", "Hello!")],
        max_tokens: Some(TOKENS),
        stream_options: Some(StreamOptions { include_usage: true }),
        ..ChatRequest::default()
    };
    let answer = client.chat(&request).await?.finish().await?;
    let server = match &answer.request_id {
        Some(id) => server_time(&client, id).await,
        None => None,
    };
    let connecting = answer.timing.connect.map(|connect| connect.total()).unwrap_or_default();
    let whole = answer.timing.total.saturating_sub(connecting);
    let first_token = answer.timing.first_token.map(|time| time.saturating_sub(connecting));
    Ok(PingCall { model, whole, first_token, server })
}

pub(super) fn shown(time: Duration) -> String {
    humane_duration(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

async fn server_time(client: &Client, request_id: &str) -> Option<Duration> {
    for _ in 0..TRACE_TRIES {
        if let Ok(trace) = client.request_trace(request_id).await {
            let micros = trace.get("duration_us")?.as_f64()?;
            return Duration::try_from_secs_f64(micros / 1e6).ok();
        }
        tokio::time::sleep(TRACE_WAIT).await;
    }
    None
}

impl PingCall {
    /// Returns the network time, and whether it was computed from the server's own time. Otherwise it is one measured
    /// round trip.
    fn network(&self, round_trip: Option<Duration>) -> Option<(Duration, bool)> {
        match self.server {
            Some(server) => Some((self.whole.saturating_sub(server), true)),
            None => round_trip.map(|round_trip| (round_trip.min(self.whole), false)),
        }
    }

    pub(super) fn as_text(&self, round_trip: Option<Duration>) -> String {
        let first =
            self.first_token.map(|time| format!(", first token after {}", shown(time))).unwrap_or_default();
        let mut text = format!("A call to {} took {}{first}", self.model, shown(self.whole));
        let Some((network, told)) = self.network(round_trip) else { return text + "." };
        let share =
            if self.whole.is_zero() { 0.0 } else { network.as_secs_f64() / self.whole.as_secs_f64() * 100.0 };
        match (told, self.server) {
            (true, Some(server)) => text.push_str(&format!(
                "; {} of it at the server, by its own trace: {} ({share:.0} %) was network and this machine.",
                shown(server),
                shown(network)
            )),
            _ => text.push_str(&format!(
                "; the server does not report its own part of it: about one round trip, {} ({share:.0} %), was network.",
                shown(network)
            )),
        }
        text
    }

    pub(super) fn as_json(&self, round_trip: Option<Duration>) -> Value {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let network = self.network(round_trip);
        json!({"model": self.model, "whole_us": micros(self.whole), "first_token_us": self.first_token.map(micros),
            "server_us": self.server.map(micros), "network_us": network.map(|(time, _)| micros(time)),
            "network_is_measured": network.map(|(_, told)| told)})
    }
}
