//! Registers Prometheus figures of crates that keep their own numbers: engines, ledger, limits. Decides nothing.

use std::sync::Arc;

use headrace_config::ServerSettings;
use headrace_engine_api::{GroupBlocks, LoadReport};
use headrace_gateway::Gateway;
use headrace_ledger::{JournalHealth, LedgerAdmin};
use headrace_limits::{LimitMetrics, Limits};
use headrace_rollout::ShadowFigures;
use headrace_trace::Metrics;
use headrace_upstream::{FAILURES, ServerFigures, Upstream};

use crate::local_engine::LocalEngine;

/// Registers the figures of the ledger and the limits, which are read when scraped.
pub(crate) fn register(metrics: &Metrics, ledger: &Arc<dyn LedgerAdmin>, limits: &Limits) {
    register_ledger(metrics, ledger);
    register_limits(metrics, limits);
}

/// Registers the number of calls in flight.
pub(crate) fn register_gateway(metrics: &Metrics, gateway: &Arc<Gateway>) {
    let gateway = Arc::downgrade(gateway);
    let read = move || gateway.upgrade().map_or(0.0, |gateway| gateway.in_flight() as f64);
    metrics.register_gauge("headrace_requests_in_flight", "Calls under way.", &[], Box::new(read));
}

/// Registers which canaries were rolled back.
pub(crate) fn register_canaries(metrics: &Metrics, gateway: &Arc<Gateway>) {
    for (name, route) in gateway.catalog().routes() {
        for arm in route.arms.iter().filter(|arm| arm.canary.is_some()) {
            let labels = [("route", name.as_str()), ("model", arm.model.as_str())];
            let (gateway, name, model) = (Arc::downgrade(gateway), name.clone(), arm.model.clone());
            let read = move || {
                let seen = gateway.upgrade().and_then(|gateway| gateway.catalog().canary(&name, &model));
                if seen.is_some_and(|seen| seen.rolled_back.is_some()) { 1.0 } else { 0.0 }
            };
            let help = "Whether a model on trial was taken out of its route.";
            metrics.register_gauge("headrace_canary_rolled_back", help, &labels, Box::new(read));
        }
    }
}

/// Registers the outcomes and the cost of shadow copies for the shadows in the catalogue.
pub(crate) fn register_shadows(metrics: &Metrics, gateway: &Arc<Gateway>) {
    type Read = fn(&ShadowFigures) -> u64;
    let outcomes: [(&str, Read); 4] = [
        ("made", |of| of.copied),
        ("full", |of| of.full),
        ("unpaid", |of| of.unpaid),
        ("unserved", |of| of.unserved),
    ];
    for (name, shadow) in gateway.catalog().shadows() {
        let (of, to) = (name.to_string(), shadow.model.to_string());
        let figures = {
            let (gateway, name, to) = (Arc::downgrade(gateway), name.clone(), shadow.model.clone());
            move || gateway.upgrade().map(|gateway| gateway.shadow_figures(&name, &to)).unwrap_or_default()
        };
        for (outcome, read) in outcomes {
            let (figures, help) =
                (figures.clone(), "Copies of calls that were drawn, and what became of them.");
            let labels = [("model", of.as_str()), ("shadow", to.as_str()), ("outcome", outcome)];
            let read = Box::new(move || read(&figures()) as f64);
            metrics.register_counter("headrace_shadow_copies_total", help, &labels, read);
        }
        let help = "What copies of calls have cost in the period of their budget, in dollars.";
        let labels = [("model", of.as_str()), ("shadow", to.as_str())];
        let read = Box::new(move || figures().spent.get() as f64 * 1e-9);
        metrics.register_gauge("headrace_shadow_spent_dollars", help, &labels, read);
    }
}

/// Registers the figures of a model's engine, in place of a former engine's.
pub(crate) fn register_engine(metrics: &Metrics, name: &str, engine: &Arc<dyn LocalEngine>) {
    register_health(metrics, name, engine);
    type Read = fn(&LoadReport) -> f64;
    let gauges: [(&str, &str, Read); 11] = [
        ("headrace_engine_running", "Sequences being computed.", |load| f64::from(load.running)),
        (
            "headrace_engine_paused",
            "Sequences that stand still until their readers have caught up.",
            |load| f64::from(load.paused),
        ),
        ("headrace_engine_waiting", "Sequences waiting.", |load| f64::from(load.waiting)),
        ("headrace_engine_waiting_tokens", "Prompt tokens waiting.", |load| load.waiting_tokens as f64),
        ("headrace_engine_kv_blocks", "KV blocks in all.", |load| f64::from(load.blocks_total)),
        ("headrace_engine_kv_blocks_free", "KV blocks that no sequence holds.", |load| {
            f64::from(load.blocks_free)
        }),
        ("headrace_engine_kv_blocks_cached", "Free KV blocks with a cached prefix.", |load| {
            f64::from(load.blocks_cached)
        }),
        ("headrace_engine_tokens_per_second", "Tokens computed per second lately.", |load| {
            f64::from(load.tokens_per_second)
        }),
        (
            "headrace_engine_prefill_tokens_per_second",
            "Prompt tokens per second in steps of nothing else.",
            |load| f64::from(load.prefill_tokens_per_second),
        ),
        (
            "headrace_engine_decode_tokens_per_second",
            "Tokens generated per second at the present batch.",
            |load| f64::from(load.decode_tokens_per_second),
        ),
        (
            "headrace_engine_scheduling_share",
            "Part of the steps' time spent on scheduling and delivering.",
            |load| load.scheduling_share(),
        ),
    ];
    for (metric, help, read) in gauges {
        let engine = Arc::clone(engine);
        metrics.register_gauge(metric, help, &[("model", name)], Box::new(move || read(&engine.load())));
    }
    register_cache_groups(metrics, name, engine);
}

/// Registers the blocks of the cache groups that the general figures do not count.
fn register_cache_groups(metrics: &Metrics, name: &str, engine: &Arc<dyn LocalEngine>) {
    type Group = fn(&LoadReport) -> Option<GroupBlocks>;
    type Read = fn(&GroupBlocks) -> u32;
    let groups: [(&str, Group); 2] = [("window", |load| load.window), ("states", |load| load.states)];
    let counts: [(&str, &str, Read); 3] = [
        ("headrace_engine_cache_group_blocks", "Blocks of a further cache group.", |blocks| blocks.total),
        (
            "headrace_engine_cache_group_blocks_free",
            "Blocks of a further cache group that no sequence holds.",
            |blocks| blocks.free,
        ),
        (
            "headrace_engine_cache_group_blocks_cached",
            "Free blocks of a further cache group with a cached prefix.",
            |blocks| blocks.cached,
        ),
    ];
    for (group, of) in groups {
        if of(&engine.load()).is_none() {
            continue;
        }
        for (metric, help, read) in counts {
            // A later engine of this name may lack the group, and would not replace this gauge.
            let engine = Arc::downgrade(engine);
            let labels = [("model", name), ("group", group)];
            let blocks = move || engine.upgrade().and_then(|engine| of(&engine.load()));
            let value = move || blocks().map_or(0.0, |blocks| f64::from(read(&blocks)));
            metrics.register_gauge(metric, help, &labels, Box::new(value));
        }
    }
}

/// Registers the figures of an upstream.
pub(crate) fn register_upstream(metrics: &Metrics, upstream: &Upstream) {
    let label = upstream.label();
    let labels = [("upstream", label.as_str())];
    type Read = fn(&ServerFigures) -> f64;
    let gauges: [(&str, &str, Read); 2] = [
        ("headrace_upstream_in_flight", "Calls under way at an upstream.", |of| of.in_flight as f64),
        ("headrace_upstream_waiting", "Calls that wait for a place at an upstream.", |of| of.waiting as f64),
    ];
    for (metric, help, read) in gauges {
        let upstream = upstream.clone();
        metrics.register_gauge(metric, help, &labels, Box::new(move || read(&upstream.figures())));
    }
    let up = upstream.clone();
    let read = move || if up.health().is_up() { 1.0 } else { 0.0 };
    metrics.register_gauge(
        "headrace_upstream_up",
        "Whether an upstream is sent calls.",
        &labels,
        Box::new(read),
    );
    let counters: [(&str, &str, Read); 5] = [
        ("headrace_upstream_calls_total", "Calls sent to an upstream.", |of| of.calls as f64),
        (
            "headrace_upstream_given_up_total",
            "Answers of an upstream that were given up before their end.",
            |of| of.given_up as f64,
        ),
        (
            "headrace_upstream_rate_limited_total",
            "Calls that an upstream refused because of their number.",
            |of| of.rate_limited as f64,
        ),
        ("headrace_upstream_sent_bytes_total", "Bytes of bodies sent to an upstream.", |of| {
            of.bytes_sent as f64
        }),
        ("headrace_upstream_received_bytes_total", "Bytes of bodies received from an upstream.", |of| {
            of.bytes_received as f64
        }),
    ];
    for (metric, help, read) in counters {
        let upstream = upstream.clone();
        metrics.register_counter(metric, help, &labels, Box::new(move || read(&upstream.figures())));
    }
    for (at, kind) in FAILURES.into_iter().enumerate() {
        let upstream = upstream.clone();
        let read = move || upstream.figures().failures.get(at).map_or(0.0, |count| *count as f64);
        let labels = [labels[0], ("kind", kind)];
        let help = "Calls that came to nothing by an upstream's fault.";
        metrics.register_counter("headrace_upstream_failures_total", help, &labels, Box::new(read));
    }
}

/// Models with a label of their own in metrics: those that the configuration names. An upstream's list is not under the
/// operator's control, so its other models count as `other`.
pub(crate) fn labelled(config: &ServerSettings) -> impl Iterator<Item = &str> {
    let relayed = config.relayed.iter().map(|model| model.name.as_str());
    relayed.chain(config.prices.iter().map(|price| price.model.as_str()))
}

fn register_health(metrics: &Metrics, name: &str, engine: &Arc<dyn LocalEngine>) {
    let (up, broken) = (Arc::clone(engine), Arc::clone(engine));
    let up = move || if up.health().is_up() { 1.0 } else { 0.0 };
    let help = "Whether the engine takes calls.";
    metrics.register_gauge("headrace_engine_up", help, &[("model", name)], Box::new(up));
    let restarts = move || f64::from(broken.load().restarts);
    let help = "How often the engine's loop broke and began again.";
    metrics.register_counter("headrace_engine_restarts_total", help, &[("model", name)], Box::new(restarts));
}

fn register_ledger(metrics: &Metrics, ledger: &Arc<dyn LedgerAdmin>) {
    const NANOS: f64 = 1e-9;
    type Read = fn(&JournalHealth) -> f64;
    let counters: [(&str, &str, Read); 6] = [
        (
            "headrace_ledger_holds_expired_total",
            "Holds that expired before they were settled; not charged.",
            |h| h.expired as f64,
        ),
        ("headrace_journal_commits_total", "Group commits of the ledger's journal.", |h| h.commits as f64),
        ("headrace_journal_transactions_total", "Transactions in them.", |h| h.transactions as f64),
        ("headrace_journal_commit_seconds_total", "Time that they took.", |h| {
            h.total_commit_nanos as f64 * NANOS
        }),
        ("headrace_journal_failures_total", "Group commits that failed.", |h| h.failures as f64),
        ("headrace_journal_snapshots_total", "Snapshots written.", |h| h.snapshots as f64),
    ];
    for (metric, help, read) in counters {
        let ledger = Arc::clone(ledger);
        metrics.register_counter(metric, help, &[], Box::new(move || read(&ledger.health())));
    }
    let up = Arc::clone(ledger);
    let read = move || if up.health().down.is_none() { 1.0 } else { 0.0 };
    metrics.register_gauge("headrace_ledger_up", "Whether the ledger can be written.", &[], Box::new(read));
    let holds = Arc::clone(ledger);
    let read = move || holds.totals().open_holds as f64;
    metrics.register_gauge("headrace_ledger_open_holds", "Holds open now.", &[], Box::new(read));
}

fn register_limits(metrics: &Metrics, limits: &Limits) {
    type Read = fn(&LimitMetrics) -> f64;
    let gauges: [(&str, &str, Read); 2] = [
        ("headrace_limit_scopes", "Scopes with counters now.", |of| of.scopes as f64),
        ("headrace_limit_leases", "Leases open now.", |of| of.leases as f64),
    ];
    for (metric, help, read) in gauges {
        let limits = limits.clone();
        metrics.register_gauge(metric, help, &[], Box::new(move || read(&limits.metrics())));
    }
    let counters: [(&str, &str, Read); 2] = [
        ("headrace_limit_leases_abandoned_total", "Leases dropped without an end.", |of| of.abandoned as f64),
        ("headrace_limit_leases_expired_total", "Leases expired.", |of| of.expired as f64),
    ];
    for (metric, help, read) in counters {
        let limits = limits.clone();
        metrics.register_counter(metric, help, &[], Box::new(move || read(&limits.metrics())));
    }
}
