//! One setting: its name, kind, default and what it does. Must not know which there are.

use super::value::Kind;

/// One setting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    /// Its name in the file, with dots between sections.
    pub(crate) path: &'static str,
    /// What it may be, with the least and the most of everything that has a size.
    pub(crate) kind: Kind,
    /// Its default as written in TOML; empty where there is none.
    pub(crate) default: &'static str,
    /// What it does, in a sentence or two.
    pub(crate) doc: &'static str,
}

impl Field {
    /// The environment variable that sets it.
    pub(crate) fn variable(&self) -> String {
        variable_of(self.path)
    }
}

/// The environment variable that sets what is called so.
pub(super) fn variable_of(path: &str) -> String {
    format!("HEADRACE_{}", path.replace('.', "__").to_ascii_uppercase())
}

pub(super) const fn field(path: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Field {
    Field { path, kind, default, doc }
}

/// Two lists as one. Every index is below the length of its list, or this would not compile.
pub(super) const fn joined<const N: usize>(first: &[Field], more: &[Field]) -> [Field; N] {
    let mut all = [first[0]; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < first.len() { first[at] } else { more[at - first.len()] };
        at += 1;
    }
    all
}
