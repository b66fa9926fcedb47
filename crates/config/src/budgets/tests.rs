//! Tests of budgets and of prices for holders of tiers, in whole configurations.

use std::path::Path;

use super::*;
use crate::layers::SettingLayers;
use crate::{DEMO_NAME, ServerSettings};

fn read(text: &str) -> Result<ServerSettings, String> {
    let mut settings = SettingLayers::defaults();
    settings.file(Path::new("h.toml"), text);
    ServerSettings::from_settings(settings, false).map_err(|error| error.to_string())
}

#[test]
fn budgets_are_read_and_every_fault_names_its_key() {
    let config = read(
        r#"
        [[budgets]]
        name = "daily"
        limit = "2.50"
        each = "key"
        per = "day"
        zone = "Europe/Berlin"
        tier = "gold"
        alerts = [100, 50]
        [[budgets]]
        name = "calls"
        measure = "requests"
        limit = 10
        soft = true
        only = "acme"
        "#,
    )
    .unwrap();
    let [daily, calls] = config.budgets.as_slice() else { panic!("{:?}", config.budgets) };
    assert_eq!(
        (daily.scope, daily.window, daily.measure),
        (BudgetScope::Key, BudgetWindow::Day, BudgetMeasure::Dollars)
    );
    assert_eq!((daily.limit, daily.is_hard, &daily.thresholds[..]), (2_500_000_000, true, &[50, 100][..]));
    assert_eq!(daily.tier.as_ref().map(|tier| tier.as_str()), Some("gold"));
    assert_eq!((calls.scope, calls.window, calls.limit), (BudgetScope::Org, BudgetWindow::Month, 10));
    assert_eq!((calls.is_hard, calls.subject.as_deref(), &*calls.zone), (false, Some("acme"), "UTC"));
    assert_eq!(calls.origin, BudgetOrigin::Settings);
    for (table, expected) in [
        ("limit = \"1\"", "budgets[0].name: is missing"),
        ("name = \"b\"", "budgets[0].limit: is missing"),
        ("name = \"b\"\nlimit = 1.5", "budgets[0].limit: 1.5 is not an amount"),
        ("name = \"b\"\nlimit = \"x\"\nmeasure = \"tokens\"", "budgets[0].limit: `x` is not a whole number"),
        ("name = \"b\"\nlimit = \"1\"\nzone = \"Mars\"", "budgets[0].zone: it must be an IANA time zone"),
        ("name = \"b\"\nlimit = \"1\"\nper = \"year\"", "budgets[0].per"),
        ("name = \"b\"\nlimit = \"1\"\nalerts = [0]", "budgets[0].thresholds"),
        ("name = \"b\"\nlimit = \"1\"\nalerts = \"80\"", "budgets[0].alerts"),
        ("name = \"b\"\nlimit = \"1\"\neach = \"model\"\ntier = \"t\"", "budgets[0].tier"),
        ("name = \"b\"\nlimit = \"1\"\nwindow = \"day\"", "budgets[0].window"),
        (
            "name = \"b\"\nlimit = \"1\"\n[[budgets]]\nname = \"b\"\nlimit = \"2\"",
            "budgets[1].name: `b` is named twice",
        ),
    ] {
        let faults = read(&format!("[[budgets]]\n{table}")).err().unwrap();
        assert!(faults.contains(expected), "{table}: {faults}");
    }
}

#[test]
fn prices_of_holders_of_a_tier_come_beside_those_of_all_callers() {
    let price =
        |more: &str| format!("[[prices]]\nmodel = \"{DEMO_NAME}\"\ninput = \"1\"\noutput = \"2\"\n{more}");
    let gold = price("holder_tier = \"gold\"");
    let config = read(&format!("{}\n{gold}", price(""))).unwrap();
    let tiers: Vec<_> =
        config.prices.iter().map(|price| price.holder_tier.as_ref().map(|tier| tier.as_str())).collect();
    assert_eq!(tiers, [None, Some("gold")]);
    // The demo model has a price without a table.
    assert_eq!(read(&gold).unwrap().prices.len(), 2);
    let named = "[[models]]\nname = \"m\"\npath = \"builtin:demo\"\n";
    let own = price("holder_tier = \"bad tier\"").replace(DEMO_NAME, "m");
    let faults = read(&format!("{named}{own}")).err().unwrap();
    assert!(faults.contains("prices[0].holder_tier"), "{faults}");
}
