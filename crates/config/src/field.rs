//! One setting: its name, kind, default and description. Must not know which settings there are.

use super::value::SettingKind;

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct SettingField {
    /// Its name in the file, with dots between sections.
    pub path: &'static str,
    /// The kind of its value, with bounds for everything that has a size.
    pub(crate) kind: SettingKind,
    /// Its default as written in TOML. Empty if it has none.
    pub(crate) default: &'static str,
    /// What it does, in one or two sentences.
    pub doc: &'static str,
}

impl SettingField {
    /// The environment variable that sets it.
    pub(crate) fn variable(&self) -> String {
        variable_of(self.path)
    }
}

/// The environment variable for a setting's path.
pub(super) fn variable_of(path: &str) -> String {
    format!("HEADRACE_{}", path.replace('.', "__").to_ascii_uppercase())
}

pub(super) const fn field(
    path: &'static str,
    kind: SettingKind,
    default: &'static str,
    doc: &'static str,
) -> SettingField {
    SettingField { path, kind, default, doc }
}

/// Concatenates two lists in constant evaluation. An index out of bounds would be a compile error.
pub(super) const fn joined<const N: usize>(
    first: &[SettingField],
    more: &[SettingField],
) -> [SettingField; N] {
    let mut all = [first[0]; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < first.len() { first[at] } else { more[at - first.len()] };
        at += 1;
    }
    all
}
