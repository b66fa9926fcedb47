//! The environment: its variables, those outside the table of settings, and short names for settings in it. Must not
//! know who reads them.

/// Start of the variable that may hold an upstream's key: `HEADRACE_UPSTREAM_NAME_KEY`.
pub(crate) const KEY_PREFIX: &str = "HEADRACE_UPSTREAM_";
/// End of that variable. See [`KEY_PREFIX`].
pub(crate) const KEY_SUFFIX: &str = "_KEY";
/// End of the variable that may hold the worker secret for an upstream: `HEADRACE_UPSTREAM_NAME_SECRET`.
pub(crate) const SECRET_SUFFIX: &str = "_SECRET";
/// Start of the variable that may hold an endpoint's secret: `HEADRACE_WEBHOOK_NAME_SECRET`.
pub(crate) const WEBHOOK_PREFIX: &str = "HEADRACE_WEBHOOK_";
/// The variable that may hold the secret of this server's own worker protocol.
pub(crate) const WORKER_SECRET: &str = "HEADRACE_WORKER_SECRET";

/// Variables outside the table of settings. The second part is the setting that the variable sets, if any.
pub(crate) const OTHER_VARIABLES: &[(&str, Option<&str>)] = &[
    ("HEADRACE_ISA", Some("engine.isa")),
    ("HEADRACE_LOG", Some("log.filter")),
    ("HEADRACE_BOOTSTRAP_KEY", None),
    ("HEADRACE_API_KEY", None),
    ("HEADRACE_BASE_URL", None),
    ("HEADRACE_MODEL", None),
    (WORKER_SECRET, None),
];

/// The variables of this process. All names and values that the program reads are UTF-8, so others are left out.
pub fn of_process() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}
