//! Rate limits in a Valkey or Redis server, if the program was built with the feature `valkey`; otherwise the reason why
//! not. Must not know how calls are admitted.

use std::time::Duration;

use headrace_config::limit_source::LimitServerSettings;
use headrace_limits::Limits;
use headrace_trace::Metrics;
use tokio::runtime::Handle;

#[cfg(not(feature = "valkey"))]
pub(crate) use without::open;

#[cfg(feature = "valkey")]
pub(crate) use with::open;

/// The connection to a server of rate limits.
pub(crate) struct LimitServer {
    #[cfg(feature = "valkey")]
    source: std::sync::Arc<headrace_valkey::ValkeyQuota>,
}

impl LimitServer {
    /// Removes this gateway from the live ones. Blocks.
    pub(crate) fn close(&self) {
        #[cfg(feature = "valkey")]
        self.source.close();
    }
}

#[cfg(not(feature = "valkey"))]
mod without {
    use super::{Duration, Handle, LimitServer, LimitServerSettings, Limits, Metrics};

    /// Opens the counters of limits.
    ///
    /// # Errors
    /// Always: this program cannot use the server.
    pub(crate) fn open(
        _: &LimitServerSettings,
        _: &str,
        _: Duration,
        _: (&Metrics, &Handle),
    ) -> Result<(Limits, LimitServer), String> {
        Err("`limits.valkey.url` is set, and this program was built without Valkey: build it with `cargo build --release \
             --features valkey`, or leave the setting out; gateways that share a database then divide the limits among \
             themselves"
            .to_owned())
    }
}

#[cfg(feature = "valkey")]
mod with {
    use std::fmt::Write as _;
    use std::sync::Arc;

    use headrace_limits::QuotaSource;
    use headrace_valkey::{UnreachablePolicy, ValkeyQuota, ValkeySettings, ValkeyStatus};

    use super::{Duration, Handle, LimitServer, LimitServerSettings, Limits, Metrics};

    /// Opens the counters of limits. If the server cannot be reached, the policy of the settings applies until it can.
    /// Blocks.
    ///
    /// # Errors
    /// The settings are unusable.
    pub(crate) fn open(
        settings: &LimitServerSettings,
        gateway: &str,
        lifetime: Duration,
        (metrics, runtime): (&Metrics, &Handle),
    ) -> Result<(Limits, LimitServer), String> {
        let LimitServerSettings { url, ca_file, prefix, refuses } = settings;
        let address = url.parse().map_err(|why| format!("`limits.valkey.url` {why}"))?;
        let policy = if *refuses { UnreachablePolicy::Refuse } else { UnreachablePolicy::Share };
        let settings = ValkeySettings {
            address,
            ca_file: ca_file.clone(),
            prefix: prefix.clone(),
            policy,
            gateway: unique_name(gateway)?,
        };
        let source = ValkeyQuota::open(&settings, runtime);
        let source = Arc::new(source.map_err(|why| format!("the server of `limits.valkey.url`: {why}"))?);
        register(metrics, &source);
        let limits = Limits::shared(Arc::clone(&source) as Arc<dyn QuotaSource>, lifetime);
        Ok((limits, LimitServer { source }))
    }

    /// The gateway's name and a random part, because several gateways may have one name.
    fn unique_name(gateway: &str) -> Result<String, String> {
        let mut random = [0_u8; 8];
        getrandom::fill(&mut random).map_err(|error| format!("no random bytes: {error}"))?;
        let mut name = format!("{gateway}-");
        for byte in random {
            let _ = write!(name, "{byte:02x}");
        }
        Ok(name)
    }

    fn register(metrics: &Metrics, source: &Arc<ValkeyQuota>) {
        type Read = fn(&ValkeyStatus) -> f64;
        let gauges: [(&str, &str, Read); 2] = [
            ("headrace_limit_server_up", "Whether the server of rate limits answers.", |of| {
                if of.is_reachable { 1.0 } else { 0.0 }
            }),
            ("headrace_limit_server_gateways", "Gateways that use the server of rate limits.", |of| {
                f64::from(of.gateways)
            }),
        ];
        for (metric, help, read) in gauges {
            let source = Arc::clone(source);
            metrics.register_gauge(metric, help, &[], Box::new(move || read(&source.status())));
        }
        let (metric, source) = ("headrace_limit_server_failures_total", Arc::clone(source));
        let help = "Calls that the server of rate limits did not answer within 50 ms.";
        let read = move || source.status().failures as f64;
        metrics.register_counter(metric, help, &[], Box::new(read));
    }
}
