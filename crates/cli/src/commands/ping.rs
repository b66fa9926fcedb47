//! `headrace ping`: measures the network to a server step by step, and its share of a call's time. An ordinary client
//! that knows the server by HTTP only.

mod call;

use std::process::ExitCode;
use std::time::Duration;

use headrace_client::{Client, ClientConfig, ClientError, Probe, RetryPolicy};
use headrace_config::ca::read_ca;
use headrace_terminal::output;
use serde_json::{Value, json};

use call::{PingCall, call, shown};

use crate::arguments::ping::PingArgs;
use crate::geo::{GeoPlace, floor};

/// Connection times below this are not worth mentioning.
const WORTH_TELLING: Duration = Duration::from_millis(1);

/// Measures and prints the result.
pub(crate) fn run(args: &PingArgs) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let measured = match runtime {
        Ok(runtime) => runtime.block_on(measure(args)),
        Err(error) => return output::fail(&error.to_string()),
    };
    match measured {
        Ok(measured) if args.json => {
            let text = serde_json::to_string_pretty(&measured.as_json()).unwrap_or_default();
            output::say(&format!("{text}\n"));
            ExitCode::SUCCESS
        }
        Ok(measured) => {
            output::say(&measured.as_text());
            ExitCode::SUCCESS
        }
        Err(error) => output::fail(&error.to_string()),
    }
}

/// Sorted times of one step.
struct SortedTimes(Vec<Duration>);

/// The measurements.
struct PingReport {
    url: String,
    remote: Option<String>,
    floor: Option<(Duration, String)>,
    dns: SortedTimes,
    tcp: SortedTimes,
    tls: SortedTimes,
    http: SortedTimes,
    status: u16,
    call: Option<PingCall>,
}

async fn measure(args: &PingArgs) -> Result<PingReport, ClientError> {
    let ca_pem = args.ca.as_deref().map(read_ca).transpose().map_err(ClientError::Config)?;
    let config = ClientConfig { ca_pem, retry: RetryPolicy::none(), ..ClientConfig::new(&args.url) };
    let (mut dns, mut tcp, mut tls, mut http) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut last: Option<(Client, Probe)> = None;
    for _ in 0..args.count {
        // A new client each time, so that no connection or TLS session is reused.
        let client = Client::new(config.clone())?;
        let new = client.probe().await?;
        if let Some(connect) = new.connect {
            dns.extend(connect.dns);
            tcp.push(connect.tcp);
            tls.extend(connect.tls);
        }
        let warm = client.probe().await?;
        if warm.connect.is_none() {
            http.push(warm.round_trip);
        }
        last = Some((client, new));
    }
    let Some((client, probe)) = last else {
        return Err(ClientError::Config("nothing was measured".to_owned()));
    };
    let host = host_of(client.base());
    let to = args.to.clone().or_else(|| GeoPlace::of_host(&host));
    let floor = match (&args.from, to) {
        (Some(from), Some(to)) => {
            let km = from.kilometres(&to);
            Some((
                floor(km),
                format!("{} to {} and back: {km:.0} km, 5 µs each in fibre", from.name, to.name),
            ))
        }
        _ => None,
    };
    let call = if args.call { Some(call(args, config).await?) } else { None };
    Ok(PingReport {
        url: client.base().to_owned(),
        remote: probe.remote.map(|address| address.to_string()),
        floor,
        dns: SortedTimes::new(dns),
        tcp: SortedTimes::new(tcp),
        tls: SortedTimes::new(tls),
        http: SortedTimes::new(http),
        status: probe.status,
        call,
    })
}

/// Returns the host of a server's URL.
fn host_of(base: &str) -> String {
    let rest = base.split_once("://").map_or(base, |(_, rest)| rest);
    let host = rest.split('/').next().unwrap_or_default();
    let without_port = host.rsplit_once(':').map_or(host, |(host, _)| host);
    without_port.trim_start_matches('[').trim_end_matches(']').to_lowercase()
}

impl SortedTimes {
    fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    fn least(&self) -> Option<Duration> {
        self.0.first().copied()
    }

    fn median(&self) -> Option<Duration> {
        self.0.get(self.0.len() / 2).copied()
    }

    fn as_json(&self) -> Value {
        let micros = |time: Option<&Duration>| time.map(|time| time.as_secs_f64() * 1e6);
        json!({"count": self.0.len(), "min_us": micros(self.0.first()), "median_us": micros(self.0.get(self.0.len() / 2)),
            "max_us": micros(self.0.last())})
    }
}

impl PingReport {
    fn as_text(&self) -> String {
        let at = self.remote.as_ref().map(|remote| format!(" ({remote})")).unwrap_or_default();
        let mut text = format!("{}{at}\n\n", self.url);
        let mut line = |name: &str, time: Option<Duration>, what: &str| {
            if let Some(time) = time {
                text.push_str(&format!("  {name:<6}{:>9}  {what}\n", shown(time)));
            }
        };
        if let Some((floor, what)) = &self.floor {
            line("floor", Some(*floor), what);
        }
        line(
            "DNS",
            self.dns.median(),
            &self.dns.about("the name, looked up; this machine may have remembered it"),
        );
        line("TCP", self.tcp.median(), &self.tcp.about("a connection: one round trip"));
        line("TLS", self.tls.median(), &self.tls.about("its handshake: a round trip, and the arithmetic"));
        let what = format!("GET /healthz ({}) on an open connection", self.status);
        line("HTTP", self.http.median(), &self.http.about(&what));
        text.push('\n');
        for said in self.conclusions() {
            text.push_str(&said);
            text.push('\n');
        }
        text
    }

    fn conclusions(&self) -> Vec<String> {
        let mut said = Vec::new();
        if let (Some((floor, _)), Some(round_trip)) = (&self.floor, self.tcp.least())
            && !floor.is_zero()
        {
            let times = round_trip.as_secs_f64() / floor.as_secs_f64();
            said.push(if times < 1.0 {
                format!("The fastest round trip took {times:.2} times what light needs: one of the places is not where it was said to be.")
            } else {
                format!("The fastest round trip took {times:.1} times what light needs: no network makes it shorter than {}.", shown(*floor))
            });
        } else if self.floor.is_none() {
            said.push("How near it could come to what light needs is known with --from and --to.".to_owned());
        }
        let new = self.new_connection();
        said.push(if new >= WORTH_TELLING {
            format!("A new connection costs {} that a warm one does not: keep connections.", shown(new))
        } else {
            format!("A new connection costs {}: too little to matter.", shown(new))
        });
        said.extend(self.call.as_ref().map(|call| call.as_text(self.http.median())));
        said
    }

    /// The cost of a new connection: the sum of the medians of its steps.
    fn new_connection(&self) -> Duration {
        let steps = [&self.dns, &self.tcp, &self.tls];
        steps.iter().filter_map(|times| times.median()).sum()
    }

    fn as_json(&self) -> Value {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let floor =
            self.floor.as_ref().map(|(floor, what)| json!({"round_trip_us": micros(*floor), "way": what}));
        json!({"url": self.url, "remote": self.remote, "floor": floor, "dns": self.dns.as_json(), "tcp": self.tcp.as_json(),
            "tls": self.tls.as_json(), "http": self.http.as_json(), "new_connection_us": micros(self.new_connection()),
            "call": self.call.as_ref().map(|call| call.as_json(self.http.median()))})
    }
}

impl SortedTimes {
    /// Describes a step, with the spread of its times.
    fn about(&self, what: &str) -> String {
        match (self.0.first(), self.0.last()) {
            (Some(least), Some(most)) if self.0.len() > 1 => {
                format!("{what} · {} to {} in {}", shown(*least), shown(*most), self.0.len())
            }
            _ => what.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
