//! Settings of free tiers: `[[free_tiers]]`. Each key of a table is checked separately, so that one fault does not hide
//! another. Must not know what was used.

use std::sync::Arc;

use headrace_domain::ModelName;
use headrace_ledger::{BudgetWindow, FreeTier};

use super::SettingsReader;
use super::budgets::measured_rule;
use super::table::TableReader;

impl SettingsReader {
    /// Reads the free tiers.
    pub(super) fn free_tiers(&mut self) -> Vec<FreeTier> {
        let mut tiers: Vec<FreeTier> = Vec::new();
        for mut table in self.list("free_tiers") {
            let models = models(&mut table);
            let rule = measured_rule(&mut table, BudgetWindow::Day);
            if let (Some(rule), Some(models)) = (rule, models) {
                let tier = FreeTier { rule, models };
                if let Err(fault) = tier.check() {
                    let key = if fault.field == "scope" { "each" } else { fault.field };
                    table.problem(key, fault.why.to_owned());
                }
                if tiers.iter().any(|other| other.rule.name == tier.rule.name) {
                    table.problem("name", format!("`{}` is named twice", tier.rule.name));
                }
                tiers.push(tier);
            }
            self.settings.problems.extend(table.end());
        }
        tiers
    }
}

/// Takes the models. Returns `None` if the value is not a list of names, which is recorded.
fn models(table: &mut TableReader) -> Option<Option<Arc<[ModelName]>>> {
    let Some(value) = table.raw("models") else { return Some(None) };
    let name = |value: &toml::Value| value.as_str().and_then(|text| ModelName::new(text).ok());
    let names = value.as_array().and_then(|values| values.iter().map(name).collect::<Option<Vec<_>>>());
    if names.is_none() {
        table.problem("models", format!("{value} is not a list of names, such as [\"demo-1\"]"));
    }
    names.map(|names| Some(names.into()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use headrace_ledger::{BudgetMeasure, BudgetOrigin, BudgetScope, BudgetWindow};

    use crate::ServerSettings;
    use crate::layers::SettingLayers;

    fn read(text: &str) -> Result<ServerSettings, String> {
        let mut settings = SettingLayers::defaults();
        settings.file(Path::new("h.toml"), text);
        ServerSettings::from_settings(settings, false).map_err(|error| error.to_string())
    }

    #[test]
    fn free_tiers_are_read_and_every_fault_names_its_key() {
        let config = read(
            r#"
            [[free_tiers]]
            name = "daily"
            measure = "requests"
            limit = 20
            each = "key"
            zone = "Europe/Berlin"
            models = ["demo-1"]
            [[free_tiers]]
            name = "trial"
            limit = "0.50"
            per = "total"
            "#,
        )
        .unwrap();
        let [daily, trial] = config.free_tiers.as_slice() else { panic!("{:?}", config.free_tiers) };
        let of = |rule: &headrace_ledger::BudgetRule| (rule.scope, rule.window, rule.measure, rule.limit);
        assert_eq!(of(&daily.rule), (BudgetScope::Key, BudgetWindow::Day, BudgetMeasure::Requests, 20));
        assert_eq!(daily.models.as_ref().map(|models| models.len()), Some(1));
        assert_eq!(
            of(&trial.rule),
            (BudgetScope::Org, BudgetWindow::Total, BudgetMeasure::Dollars, 500_000_000)
        );
        assert_eq!((trial.models.as_ref(), trial.rule.origin), (None, BudgetOrigin::Settings));
        for (table, expected) in [
            ("limit = \"1\"", "free_tiers[0].name: is missing"),
            ("name = \"b\"", "free_tiers[0].limit: is missing"),
            ("name = \"b\"\nlimit = \"1\"\neach = \"model\"", "free_tiers[0].each"),
            ("name = \"b\"\nlimit = \"1\"\nmodels = \"m\"", "free_tiers[0].models: \"m\" is not a list"),
            ("name = \"b\"\nlimit = \"1\"\nmodels = []", "free_tiers[0].models: there must be 1 to 64"),
            ("name = \"b\"\nlimit = \"1\"\nalerts = [80]", "free_tiers[0].alerts"),
            ("name = \"b\"\nlimit = \"1\"\nsoft = true", "free_tiers[0].soft"),
            (
                "name = \"b\"\nlimit = \"1\"\n[[free_tiers]]\nname = \"b\"\nlimit = \"2\"",
                "free_tiers[1].name: `b` is named twice",
            ),
        ] {
            let error = read(&format!("[[free_tiers]]\n{table}\n")).err().unwrap_or_default();
            assert!(error.contains(expected), "{table}: {error}");
        }
    }
}
