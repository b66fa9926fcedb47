//! Variables of the environment that are no settings of the table, or set one under a shorter name. Must not know who reads them.

/// Where the key of an upstream may stand: `HEADRACE_UPSTREAM_NAME_KEY`.
pub(crate) const KEY_PREFIX: &str = "HEADRACE_UPSTREAM_";
/// See [`KEY_PREFIX`].
pub(crate) const KEY_SUFFIX: &str = "_KEY";
/// The same for what it is asked with as a worker: `HEADRACE_UPSTREAM_NAME_SECRET`.
pub(crate) const SECRET_SUFFIX: &str = "_SECRET";
/// Where the secret of our own worker may stand.
pub(crate) const WORKER_SECRET: &str = "HEADRACE_WORKER_SECRET";

/// Variables that are not settings of the table, or set one under a shorter name.
pub(crate) const OTHER_VARIABLES: &[(&str, Option<&str>)] = &[
    ("HEADRACE_ISA", Some("engine.isa")),
    ("HEADRACE_LOG", Some("log.filter")),
    ("HEADRACE_BOOTSTRAP_KEY", None),
    ("HEADRACE_API_KEY", None),
    ("HEADRACE_BASE_URL", None),
    ("HEADRACE_MODEL", None),
    (WORKER_SECRET, None),
];
