//! Settings of shutdown: how long the server still accepts calls, and how long calls in flight may take. Must not know
//! who stops the server.

use std::time::Duration;

use super::field::{SettingField, field};
use super::kinds::{DAY, HOUR, seconds};

/// How long `serve` accepts calls after SIGTERM by default. Load balancers check readiness about once a second.
pub const SERVE_DRAIN_DELAY: Duration = Duration::from_secs(5);

/// The settings of shutdown.
pub(super) const FIELDS: &[SettingField] = &[
    field(
        "server.drain",
        seconds(0, DAY),
        "\"30s\"",
        "Maximum time that calls in flight may continue after SIGTERM or Ctrl-C (and after `server.drain_delay`). Then the server cuts them off and settles them. With `\"0s\"`, the server cuts calls off at once.",
    ),
    field(
        "server.drain_delay",
        seconds(0, HOUR),
        "",
        "Time during which the server still accepts calls after SIGTERM or Ctrl-C, so that load balancers can send new calls elsewhere. `/readyz` returns 503 at once, answers in HTTP/1 have `connection: close`, and HTTP/2 connections get GOAWAY. Then the listener closes and `server.drain` begins. Default: `\"5s\"` under `serve`, `\"0s\"` under `up`. A second signal ends the delay.",
    ),
];
