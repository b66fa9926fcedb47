//! Settings of shutdown: how long the server still accepts calls, and how long calls in flight may take. Must not know
//! who stops the server.

use std::time::Duration;

use super::field::{SettingField, field};
use super::kinds::{DAY, HOUR, seconds};

/// How long `serve` accepts calls after SIGTERM by default. Load balancers check readiness about once a second.
pub(crate) const SERVE_DRAIN_DELAY: Duration = Duration::from_secs(5);

/// The settings of shutdown.
pub(super) const FIELDS: &[SettingField] = &[
    field(
        "server.drain",
        seconds(0, DAY),
        "\"30s\"",
        "How long calls in flight may go on after SIGTERM or Ctrl-C (and after `server.drain_delay`) before they are cut off and settled; `\"0s\"` cuts at once.",
    ),
    field(
        "server.drain_delay",
        seconds(0, HOUR),
        "",
        "How long calls are still taken after SIGTERM or Ctrl-C, so that load balancers can send new ones elsewhere: `/readyz` says 503 at once, answers in HTTP/1 say `connection: close`, and HTTP/2 connections get GOAWAY. Then the listener closes and `server.drain` begins. `\"5s\"` under `serve` and `\"0s\"` under `up` unless given. A second signal ends it.",
    ),
];
