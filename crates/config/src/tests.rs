//! Tests of the whole configuration: its defaults equal those of the crates, and every fault is found.

use std::{collections::BTreeMap, sync::Arc};

use headrace_catalog::{ControlTokenPolicy, InputKinds, OffForm, OnBreak, PastAnswers, ToolsOrder};
use headrace_domain::{KeyId, MediaKind, OrgId, PriceTier};
use headrace_fleet::HedgePolicy;
use headrace_store::trace::TraceRetention;
use headrace_trace::RecorderConfig;

use super::*;

fn read(text: &str) -> Result<ServerSettings, String> {
    let mut settings = SettingLayers::defaults();
    settings.file(Path::new("h.toml"), text);
    ServerSettings::from_settings(settings, false).map_err(|error| error.to_string())
}

#[test]
fn the_defaults_are_those_of_the_crates() {
    let config = read("").unwrap();
    assert_eq!(config.gateway.wire, WireLimits::default());
    assert_eq!(config.scheduler, SchedulerConfig { context_window: usize::MAX, ..Default::default() });
    assert_eq!(config.traces.retention, TraceRetention::default());
    assert_eq!(config.traces.queue_records, RecorderConfig::default().queue_records);
    assert_eq!(config.traces.recent_records, RecorderConfig::default().recent_records);
    let gateway = headrace_gateway::GatewayConfig::default();
    assert_eq!(config.gateway.default_max_tokens, gateway.default_max_tokens);
    assert_eq!(config.gateway.hold_lifetime, gateway.hold_lifetime);
    assert_eq!(config.gateway.stall_timeout, gateway.stall_timeout);
    assert_eq!(config.gateway.delivery_buffer_bytes, gateway.delivery_buffer_bytes);
    assert_eq!(config.gateway.first_event_wait, gateway.first_event_wait);
    assert_eq!(config.gateway.keep_alive, gateway.keep_alive);
    assert_eq!(config.gateway.render_inline_bytes, gateway.render_inline_bytes);
    assert_eq!(config.gateway.client_address, gateway.client_address);
    assert_eq!(config.server.edge, headrace_edge::EdgeConfig::new(([127, 0, 0, 1], 8080).into()));
    let names: Vec<_> = config.models.iter().map(|model| model.name.as_str()).collect();
    assert_eq!(names, [DEMO_NAME]);
    assert!(config.prices.iter().any(|price| price.model.as_str() == DEMO_NAME));
}

#[test]
fn a_whole_file_is_understood() {
    let text = r#"
        data_dir = "/var/lib/headrace"
        [server]
        listen = "0.0.0.0:443"
        [[models]]
        name = "demo-2026"
        path = "builtin:demo"
        kv_memory = "64MiB"
        limits = { concurrency = 2 }
        [[prices]]
        model = "demo-2026"
        input = "1"
        output = "2"
        [aliases]
        "gpt-4o-mini" = "demo-2026"
        [[routes]]
        name = "demo"
        to = [{ model = "demo-2026", weight = 95 }, { model = "demo-2027", weight = 0 }, "demo-2028"]
        sticky = "conversation"
        seed = 3
        fallbacks = { context_too_long = ["demo-long"], failed = "demo-2026" }
        [scheduler]
        prefix_lifetime = "5m"
        keep_aborted = true
        [[scheduler.weights]]
        org = "acme"
        weight = 3
        [limits.key]
        requests_per_minute = 9
        [[moderation.rules]]
        name = "no-foo"
        kind = "words"
        words = ["foo"]
        action = "block"
    "#;
    let config = read(text).unwrap();
    let [model] = config.models.as_slice() else { panic!() };
    assert_eq!((model.kv_bytes, model.limits.concurrency), (Some(64 << 20), Some(2)));
    assert_eq!(config.limits.key.requests_per_minute, Some(9));
    assert_eq!(config.rules.map(|rules| rules.len()), Some(1));
    let names: Vec<_> =
        config.aliases.iter().map(|(name, route)| (name.as_str(), route.arms.len())).collect();
    assert_eq!(names, [("demo", 3), ("gpt-4o-mini", 1)]);
    let route = &config.aliases[&ModelName::new("demo").unwrap()];
    let weights: Vec<_> = route.arms.iter().map(|arm| (arm.model.as_str(), arm.weight)).collect();
    assert_eq!(weights, [("demo-2026", 95), ("demo-2027", 0), ("demo-2028", 1)]);
    assert_eq!((route.sticky, route.seed), (headrace_rollout::StickyBy::Conversation, 3));
    let others: Vec<_> = route.fallbacks.all().map(ModelName::as_str).collect();
    assert_eq!(others, ["demo-long", "demo-2026"]);
    assert_eq!(config.weights, BTreeMap::from([(OrgId::new("acme").unwrap(), 3)]));
    assert_eq!(config.scheduler.prefix_lifetime_ns, Some(300_000_000_000));
    assert!(config.scheduler.keep_aborted);
}

#[test]
fn what_upstreams_charge_is_read_as_prices_are() {
    let known = r#"
        [[upstreams]]
        name = "a"
        kind = "openai"
        url = "http://127.0.0.1:9"
        [[costs]]
        upstream = "a"
        model = "big"
        input = "1"
        cached_input = "0.1"
        cache_write = "1.25"
        cache_write_1h = "2"
        output = "4"
        reasoning = "5"
        from = "2026-01-01"
        [[costs]]
        upstream = "a"
        model = "big"
        input = "0.5"
        output = "2"
        tier = "batch"
        above = 272000
    "#;
    let config = read(known).unwrap();
    let [first, second] = config.costs.as_slice() else { panic!("{:?}", config.costs) };
    assert_eq!((first.upstream.as_str(), first.price.model.as_str()), ("a", "big"));
    let dollar = 1_000_000_000;
    assert_eq!(first.price.cache_write_1h, Some(2 * dollar));
    assert_eq!((first.price.cached_input, first.price.reasoning), (Some(dollar / 10), Some(5 * dollar)));
    assert_eq!((second.price.tier, second.price.above), (Some(PriceTier::Batch), Some(272_000)));
    for (more, expected) in [
        (
            "[[costs]]\nupstream = \"b\"\nmodel = \"m\"\ninput = \"1\"\noutput = \"1\"",
            "costs[2].upstream: there is no upstream `b`",
        ),
        ("[[costs]]\nmodel = \"m\"\ninput = \"1\"\noutput = \"1\"", "costs[2].upstream: "),
        ("[[costs]]\nupstream = \"a\"\nmodel = \"m\"\ninput = \"1\"", "costs[2].output: is missing"),
        ("[[costs]]\nupstream = \"a\"\nmodel = \"m\"\ninput = \"-1\"\noutput = \"1\"", "costs: "),
        ("[[costs]]\nupstream = \"a\"\nmodel = \"m\"\ninput = \"1\"\noutput = \"1\"\nabove = 5", "costs: "),
        (
            "[[costs]]\nupstream = \"a\"\nmodel = \"m\"\ninput = \"1\"\noutput = \"1\"\nmargin = 3",
            "costs[2].margin: ",
        ),
    ] {
        let said = read(&format!("{known}\n{more}")).err().unwrap_or_default();
        assert!(said.contains(expected), "{more}: {said}");
    }
    // A reload applies it while calls run.
    assert!(sections::is_live("costs"));
}

#[test]
fn a_region_is_a_name_of_the_server_and_of_each_upstream() {
    let text = |of_server: &str, of_upstream: &str| {
        format!(
            "[server]\nregion = \"{of_server}\"\n[[upstreams]]\nname = \"a\"\nkind = \"openai\"\n\
             url = \"http://127.0.0.1:9\"\nregion = \"{of_upstream}\""
        )
    };
    let config = read(&text("us", "eu-west-1")).unwrap();
    let region = |name: &str| Region::new(name).ok();
    assert_eq!(
        (config.gateway.region, config.upstreams[0].region.clone()),
        (region("us"), region("eu-west-1"))
    );
    let moved = read(&text("us", "eu-west-2")).unwrap();
    assert_ne!(moved.upstreams[0].fingerprint, config.upstreams[0].fingerprint, "it is another server then");
    let said = read(&text("u s", "")).err().unwrap_or_default();
    for expected in ["server.region: not a valid region", "upstreams[0].region: not a valid region"] {
        assert!(said.contains(expected), "{said}");
    }
    assert!(!sections::is_live("server.region"));
}

#[test]
fn every_fault_is_reported_at_once() {
    let text = r#"
        [server]
        tls_cert = "a.pem"
        [scheduler]
        step_tokens = 4
        [[scheduler.weights]]
        org = "acme"
        weight = 0
        [[scheduler.weights]]
        org = "acme"
        weight = 1
        [[models]]
        name = "a"
        path = "/does/not/exist"
        [[models]]
        name = "a"
        path = "builtin:demo"
        kv_memory = "lots"
        colour = "blue"
        [[models]]
        name = "b"
        path = "builtin:demo"
        threads = 0
        [[prices]]
        model = "b"
        input = "-1"
        output = "2"
        [[routes]]
        name = "r"
        to = [{ model = "b", weight = 0 }, { model = "b", weigth = 1 }, 5]
        sticky = "cookie"
        [[routes]]
        name = "r"
        to = []
        fallbacks = { overload = [], failed = [7] }
        [[moderation.rules]]
        name = "bad"
        kind = "regex"
        pattern = "("
        action = "block"
    "#;
    let Err(said) = read(text) else { panic!() };
    for expected in [
        "server.tls_cert: needs `server.tls_key`",
        "scheduler.weights[0]: `weight` is 0; it must be 1 to 1000",
        "scheduler.weights[1]: `org` acme is listed twice",
        "scheduler.max_running: 64 running sequences",
        "models[0].path: /does/not/exist: there is no such file or directory",
        "models[1].name: `a` is named twice",
        "models[1].kv_memory: \"lots\" is not a size such as \"256MiB\", from 64KiB to 64TiB",
        "models[1].colour: there is no such setting",
        "models[2].threads: 0 is not an integer from 1 to 1024",
        "prices: model `a` has no price",
        "must not be below zero",
        "routes[0].to: `b` is listed twice: give it one weight",
        "routes[0].to[1].weigth: there is no such setting; did you mean `weight`?",
        "routes[0].to[2].model: 5 is not text",
        "routes[0].sticky: \"cookie\" is not one of none, key, user, conversation",
        "routes[1].name: `r` is an alias or another route already",
        "routes[1].fallbacks.overload: there is no such setting; did you mean `overloaded`?",
        "routes[1].fallbacks.failed: 7 is no model's name",
        "routes[1].to: must be a list of models: { model = \"a\", weight = 95 }",
        "moderation.rules: ",
        "(file h.toml)",
    ] {
        assert!(said.contains(expected), "{expected}\n---\n{said}");
    }
}

#[test]
fn a_value_out_of_bounds_is_refused_with_them() {
    let rows = [
        (
            "[gateway]\nstall_timeout = \"0s\"",
            "gateway.stall_timeout: \"0s\" is not a duration such as \"30s\", from 1s to 1h",
        ),
        (
            "[gateway]\nhold_lifetime = \"0s\"",
            "gateway.hold_lifetime: \"0s\" is not a duration such as \"30s\", from 1s to 1d",
        ),
        (
            "[server]\nwrite_timeout = \"30s\"",
            "server.write_timeout: 30 s is not longer than `gateway.stall_timeout`, 30 s",
        ),
        ("[gateway]\nkeep_alive = 0", "gateway.keep_alive: 0 is not a duration"),
        ("[gateway]\nkeep_alive = \"2h\"", "gateway.keep_alive: \"2h\" is not a duration"),
        (
            "[gateway]\ndelivery_buffer = 0",
            "gateway.delivery_buffer: 0 is not a size such as \"256MiB\", from 4KiB to 64MiB",
        ),
        ("[gateway]\ndelivery_buffer = \"1TiB\"", "gateway.delivery_buffer: \"1TiB\" is not a size"),
        ("[server]\nidle_timeout = \"0s\"", "server.idle_timeout: \"0s\" is not a duration"),
        ("[server]\nmax_body = 0", "server.max_body: 0 is not a size"),
        ("[engine]\nkv_memory = 1", "engine.kv_memory: 1 is not a size"),
        ("[engine]\nthreads = 100000", "engine.threads: 100000 is not an integer from 1 to 1024"),
        ("[wire]\nmax_json_depth = 513", "wire.max_json_depth: 513 is not an integer from 1 to 512"),
    ];
    for (text, expected) in rows {
        let said = read(text).err().unwrap_or_default();
        assert!(said.contains(expected), "{text}: {said}");
    }
}

#[test]
fn every_default_is_within_its_bounds_and_every_size_has_some() {
    for field in fields::FIELDS {
        let bounded = match field.kind {
            value::SettingKind::Count { least, most } => least < most,
            value::SettingKind::Bytes { least, most } => least < most,
            value::SettingKind::Duration { least, most } => least < most && most < Duration::MAX,
            _ => true,
        };
        assert!(bounded, "{}", field.path);
    }
    assert_eq!(SettingLayers::defaults().problems, []);
}

#[test]
fn prices_are_dollars_and_every_fault_of_a_table_is_shown() {
    let prices = |text: &str| {
        let text =
            format!("[[models]]\nname = \"m\"\npath = \"builtin:demo\"\n[[prices]]\nmodel = \"m\"\n{text}");
        read(&text).map(|config| {
            let model = ModelName::new("m").unwrap();
            let prices = headrace_ledger::prices::PriceList::from_config(&config.prices).unwrap();
            let quote = prices.quote(&model, headrace_domain::UnixNanos::new(1)).unwrap();
            quote.hold_for(None, 1_000_000, 1_000_000).unwrap().get()
        })
    };
    let dollars = prices("input = \"0.10\"\noutput = \"0.40\"").unwrap();
    let bare = prices("input = 100_000_000\noutput = 4").unwrap_err();
    assert!(bare.contains("prices[0].input: 100000000 must stand in quotes"), "{bare}");
    assert!(bare.contains("\"4\" is $4 per million tokens"), "{bare}");
    let thousand = prices("per = \"thousand\"\ninput = \"0.0001\"\noutput = \"0.0004\"").unwrap();
    assert_eq!((dollars, thousand), (500_000_000, 500_000_000));
    let longer = "[[prices]]\nmodel = \"m\"\nabove = 272_000\ntier = \"priority\"\ninput = \"0.20\"\noutput = \"0.60\"";
    let longer = prices(&format!("input = \"0.10\"\noutput = \"0.40\"\n{longer}")).unwrap();
    assert_eq!(longer, 800_000_000, "a hold takes the dearest that could apply");
    let bad = prices("input = \"1\"\noutput = \"1\"\nabove = 0\ntier = \"gold\"").unwrap_err();
    for expected in ["above", "0 is not an integer from 1", "tier", "flex, batch, priority"] {
        assert!(bad.contains(expected), "{expected}: {bad}");
    }
    let said = prices("input = 0.1\noutput = \"0.00000000001\"\ncached = 1\nper = \"word\"").unwrap_err();
    for expected in [
        "prices[0].input: 0.1 must stand in quotes to be exact",
        "prices[0].output: \"0.00000000001\" is no price: write dollars, such as \"0.10\"",
        "prices[0].cached: there is no such setting",
        "prices[0].per: \"word\" is not one of million, thousand",
    ] {
        assert!(said.contains(expected), "{expected}\n---\n{said}");
    }
    assert!(!said.contains("no price and would be refused"), "{said}");
}

#[test]
fn copies_of_calls_stand_with_the_names_whose_calls_they_are_of() {
    let models = |shadow: &str, more: &str| {
        read(&format!(
            "[[models]]\nname = \"m\"\npath = \"builtin:demo\"\n{shadow}\n[[prices]]\nmodel = \"m\"\ninput = \"1\"\noutput = \"1\"\n{more}"
        ))
    };
    let config = models(
        "shadow = { model = \"n\", share = 0.1, budget = \"$5/day\" }",
        "[[routes]]\nname = \"r\"\nto = [\"m\"]\nshadow = { model = \"m\", budget = \"1/hour\", compare = false, in_flight = 1, queue = 0 }",
    )
    .unwrap();
    let of = |name: &str| config.names.shadows.get(&ModelName::new(name).unwrap()).unwrap();
    let (m, r) = (of("m"), of("r"));
    assert_eq!((m.model.as_str(), m.share, m.compare, m.in_flight, m.queue), ("n", 0.1, true, 4, 64));
    assert_eq!((r.model.as_str(), r.share, r.compare, r.in_flight, r.queue), ("m", 1.0, false, 1, 0));
    let said = models(
        "shadow = { model = \"n\", share = 2, bugdet = \"$5/day\" }",
        "[[routes]]\nname = \"r\"\nto = [\"m\"]\nshadow = \"m\"",
    )
    .err()
    .unwrap();
    for expected in [
        "models[0].shadow.share: 2 is no share",
        "models[0].shadow.budget: is missing",
        "models[0].shadow.bugdet: there is no such setting; did you mean `budget`?",
        "routes[0].shadow: \"m\" is no table",
    ] {
        assert!(said.contains(expected), "{expected}\n---\n{said}");
    }
}

#[test]
fn a_model_of_a_route_may_be_on_trial() {
    let route = |canary: &str| {
        read(&format!(
            "[[routes]]\nname = \"r\"\nto = [\"headrace-demo\", {{ model = \"n\", weight = 5, canary = {canary} }}]"
        ))
    };
    let of = |canary: &str| {
        let config = route(canary).unwrap();
        config.aliases.get(&ModelName::new("r").unwrap()).unwrap().arms[1].canary
    };
    let usual = of("true").unwrap();
    assert_eq!((usual.window.as_secs(), usual.min_calls), (1800, 40));
    assert_eq!((usual.errors, usual.refusals, usual.first_token), (0.01, 0.02, 1.5));
    let own = of("{ window = \"5m\", min_calls = 100, errors = 0, first_token = 2 }").unwrap();
    assert_eq!((own.window.as_secs(), own.min_calls), (300, 100));
    assert_eq!((own.errors, own.refusals, own.first_token), (0.0, 0.02, 2.0));
    assert_eq!(of("false"), None);
    let said = route("{ min_calls = 1, errors = 2, first_token = \"fast\", window = \"1s\", ttft = 1 }")
        .err()
        .unwrap();
    for expected in [
        "canary.min_calls: 1 is not",
        "canary.errors: 2 is no number from 0 to 1",
        "canary.first_token: \"fast\" is no number from 1 to 100",
        "canary.window",
        "canary.ttft: there is no such setting",
    ] {
        assert!(said.contains(expected), "{expected}\n---\n{said}");
    }
}

#[test]
fn a_name_may_end_on_a_day() {
    let route = |more: &str| read(&format!("[[routes]]\nname = \"r\"\nto = [\"headrace-demo\"]\n{more}"));
    let of = |more: &str| route(more).unwrap().names.notices.remove(&ModelName::new("r").unwrap());
    let day = |text: &str| headrace_trace::utc_midnight(text).unwrap();
    let ends = of("retires = \"2027-01-31\"\ndeprecated = 2026-12-01\nsuccessor = \"headrace-demo\"\npage = \"https://example.com/x\"\nafter = \"move\"").unwrap();
    assert_eq!((ends.retires, ends.deprecated), (day("2027-01-31"), Some(day("2026-12-01"))));
    assert_eq!(ends.successor.as_ref().map(ModelName::as_str), Some("headrace-demo"));
    assert_eq!((ends.link.as_deref(), ends.moves), (Some("https://example.com/x"), true));
    assert!(!of("retires = 2027-01-31").unwrap().moves);
    assert_eq!(of(""), None);
    assert!(
        read("").unwrap().names.show_aliases
            && !read("[gateway]\nalias_header = false").unwrap().names.show_aliases
    );
    for (more, expected) in [
        ("retires = \"soon\"", "retires: \"soon\" is no day"),
        ("successor = \"x\"", "successor: says something of an end that has no day"),
        ("retires = 2027-01-31\ndeprecated = 2027-02-01", "deprecated: is later than `retires`"),
        ("retires = 2027-01-31\npage = \"example.com\"", "page: is no address"),
        ("retires = 2027-01-31\nafter = \"burn\"", "after: \"burn\" is not one of refuse, move"),
    ] {
        let said = route(more).err().unwrap();
        assert!(said.contains(expected), "{expected}\n---\n{said}");
    }
}

#[test]
fn model_flags() {
    let dir = tempfile::tempdir().unwrap();
    let odd = dir.path().join("a=b");
    std::fs::create_dir(&odd).unwrap();
    let rows = [
        ("llama=/models/x".to_owned(), Ok(("llama".to_owned(), "/models/x".to_owned()))),
        ("/models/llama-1b".to_owned(), Ok(("llama-1b".to_owned(), "/models/llama-1b".to_owned()))),
        ("/models/tiny.gguf".to_owned(), Ok(("tiny".to_owned(), "/models/tiny.gguf".to_owned()))),
        (
            "/m/big-q4-00001-of-00003.GGUF".to_owned(),
            Ok(("big-q4".to_owned(), "/m/big-q4-00001-of-00003.GGUF".to_owned())),
        ),
        ("/m/qwen3-0.6b".to_owned(), Ok(("qwen3-0.6b".to_owned(), "/m/qwen3-0.6b".to_owned()))),
        (odd.display().to_string(), Ok(("a=b".to_owned(), odd.display().to_string()))),
        (DEMO_PATH.to_owned(), Ok((DEMO_NAME.to_owned(), DEMO_PATH.to_owned()))),
        ("=/x".to_owned(), Err(())),
    ];
    for (flag, expected) in rows {
        let read = model_flag(&flag).map_err(drop).map(|table| {
            let text = |key: &str| table.get(key).and_then(toml::Value::as_str).unwrap().to_owned();
            (text("name"), text("path"))
        });
        assert_eq!(read, expected, "{flag}");
    }
}

#[test]
fn the_reference_in_the_repository_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    let hint = "run `headrace config reference > docs/configuration.md`";
    assert!(kept == reference::markdown(), "docs/configuration.md is not the generated one: {hint}");
}

#[test]
fn what_is_done_where_a_target_is_lost_or_late_is_the_models_own() {
    let text = |more: &str| {
        format!(
            "[[upstreams]]\nname = \"gpu\"\nkind = \"vllm\"\nurl = \"http://127.0.0.1:9\"\n\
             [[models]]\nname = \"m\"\ntargets = [\"gpu/m\"]\n{more}\n\
             [[prices]]\nmodel = \"m\"\ninput = \"1\"\noutput = \"2\"\n"
        )
    };
    let policy = |more: &str| {
        read(&text(more)).map(|config| {
            let [model] = config.relayed.as_slice() else { panic!() };
            model.policy.on_break
        })
    };
    assert_eq!(policy(""), Ok(OnBreak::Error));
    assert_eq!(policy("path = \"builtin:demo\"\non_break = \"continue\""), Ok(OnBreak::Continue));
    assert_eq!(policy("path = \"builtin:demo\"\non_break = \"error\""), Ok(OnBreak::Error));
    assert_eq!(policy("on_break = \"continue\""), Ok(OnBreak::Continue));
    let why = policy("on_break = \"goes on\"").unwrap_err();
    assert!(why.contains("models[0].on_break: \"goes on\" is not one of error, continue"), "{why}");
    let order = |more: &str| read(&text(more)).map(|config| config.relayed[0].policy.tools_order);
    assert_eq!(order(""), Ok(ToolsOrder::AsSent));
    assert_eq!(order("tools.order = \"canonical\""), Ok(ToolsOrder::Canonical));
    assert_eq!(order("tools = { order = \"sent\" }"), Ok(ToolsOrder::AsSent));
    for (wrong, told) in [
        ("tools = 1", "models[0].tools: must be a table"),
        ("tools.order = \"any\"", "models[0].tools.order: \"any\" is not one of sent, canonical"),
        ("tools.sort = true", "models[0].tools.sort"),
    ] {
        let why = order(wrong).unwrap_err();
        assert!(why.contains(told), "{why}");
    }
    let off_form = |more: &str| read(&text(more)).map(|config| config.relayed[0].policy.off_form);
    assert_eq!(off_form(""), Ok(OffForm::Refuse));
    assert_eq!(off_form("structured.invalid = \"retry\""), Ok(OffForm::Retry));
    let why = off_form("structured = { invalid = \"ignore\" }").unwrap_err();
    assert!(
        why.contains("models[0].structured.invalid: \"ignore\" is not one of refuse, retry, pass"),
        "{why}"
    );
    let own = "[[models]]\nname = \"m\"\npath = \"builtin:demo\"\ntools.order = \"canonical\"\n\
               [[prices]]\nmodel = \"m\"\ninput = \"1\"\noutput = \"2\"\n";
    assert_eq!(read(own).map(|config| config.models[0].tools_order), Ok(ToolsOrder::Canonical));
    let own = "[[models]]\nname = \"m\"\npath = \"builtin:demo\"\nthinking = { low = 0, xhigh = 9000, last_words = \"So.\" }\n\
               [[prices]]\nmodel = \"m\"\ninput = \"1\"\noutput = \"2\"\n";
    let thinking = read(own).map(|config| config.models[0].thinking.clone()).unwrap();
    let budgets =
        ["minimal", "low", "medium", "high", "xhigh", "max", "other"].map(|word| thinking.budget(word));
    assert_eq!(budgets, [None, Some(0), None, None, Some(9000), None, None]);
    assert_eq!(thinking.last_words.as_deref(), Some("So."));
    for (wrong, told) in [
        ("thinking = 5", "models[0].thinking: must be a table such as"),
        ("thinking.low = -1", "models[0].thinking.low: "),
        ("thinking.some = 1", "models[0].thinking.some"),
        (
            &format!("thinking.last_words = \"{}\"", "x".repeat(501)),
            "thinking.last_words: 501 bytes; at most 500",
        ),
    ] {
        let why = order(wrong).unwrap_err();
        assert!(why.contains(told), "{why}");
    }
    let policy =
        |hedge: &str| read(&text(&format!("hedge = {hedge}"))).map(|config| config.relayed[0].policy.hedge);
    let hedge = |after_percent, most_permille| Some(HedgePolicy { after_percent, most_permille });
    assert_eq!(policy("{ after = \"p95\", share = 0.05 }"), Ok(hedge(95, 50)));
    assert_eq!(policy("{ after = \"p5\", share = 1 }"), Ok(hedge(5, 1_000)));
    for (wrong, told) in [
        ("0.05", "models[0].hedge: must be a table such as"),
        ("{ after = \"95\", share = 0.05 }", "hedge.after: \"95\" is not a percentile"),
        ("{ after = \"p100\", share = 0.05 }", "hedge.after: \"p100\" is not a percentile"),
        ("{ after = \"p95\", share = 2 }", "hedge.share: 2 is not a share of the calls"),
        ("{ after = \"p95\" }", "hedge.share: nothing is not a share of the calls"),
        ("{ share = 0.1 }", "hedge.after: is missing"),
        ("{ after = \"p95\", share = 0.1, most = 3 }", "hedge.most: there is no such setting"),
    ] {
        let why = policy(wrong).unwrap_err();
        assert!(why.contains(told), "{wrong}: {why}");
    }
}

#[test]
fn what_a_model_takes_and_who_may_spell_control_tokens_is_read() {
    let prices = "[[prices]]\nmodel = \"m\"\ninput = \"1\"\noutput = \"2\"\n";
    let far = |more: &str| {
        let upstream = "[[upstreams]]\nname = \"gpu\"\nkind = \"vllm\"\nurl = \"http://127.0.0.1:9\"\n";
        read(&format!("{upstream}[[models]]\nname = \"m\"\ntargets = [\"gpu/m\"]\n{more}\n{prices}"))
    };
    let own =
        |more: &str| read(&format!("[[models]]\nname = \"m\"\npath = \"builtin:demo\"\n{more}\n{prices}"));
    let inputs = |more: &str| far(more).map(|config| config.relayed[0].inputs);
    assert_eq!(inputs(""), Ok(None), "its servers decide");
    assert_eq!(inputs("input = [\"text\"]"), Ok(Some(InputKinds::of([]))));
    let two = inputs("input = [\"document\", \"text\", \"image\"]").unwrap().unwrap();
    let taken = InputKinds::ALL.map(|kind| two.takes(kind));
    assert_eq!(taken, InputKinds::ALL.map(|kind| matches!(kind, MediaKind::Image | MediaKind::Document)));
    let all = inputs("input = [\"text\", \"image\", \"document\", \"audio\", \"video\"]");
    assert_eq!(all, Ok(Some(InputKinds::of(InputKinds::ALL))));

    let key = |id: &str| KeyId::new(id).unwrap();
    for (written, read) in [
        ("", ControlTokenPolicy::Nobody),
        ("parse_special = \"all\"", ControlTokenPolicy::All),
        ("parse_special = []", ControlTokenPolicy::Keys(Arc::default())),
        (
            "parse_special = [\"key_b\", \"key_a\"]",
            ControlTokenPolicy::Keys(Arc::new([key("key_a"), key("key_b")].into())),
        ),
    ] {
        assert_eq!(
            far(written).map(|config| config.relayed[0].policy.parse_special.clone()),
            Ok(read.clone())
        );
        assert_eq!(own(written).map(|config| config.models[0].policy().parse_special), Ok(read), "{written}");
    }
    let shape = "models[0].parse_special: must be a list of ids of keys, or \"all\"";
    let kinds = "models[0].input: must be a list of text, image, document, audio, video, text among them";
    for (wrong, told) in [
        ("input = \"text\"", kinds),
        ("input = []", kinds),
        ("input = [\"image\"]", kinds),
        ("input = [\"text\", \"smell\"]", kinds),
        ("input = [\"text\", 1]", kinds),
        ("parse_special = \"some\"", shape),
        ("parse_special = true", shape),
        ("parse_special = [1]", shape),
        ("parse_special = [\"\"]", shape),
    ] {
        let why = far(wrong).err().unwrap_or_default();
        assert!(why.contains(told), "{wrong}: {why}");
    }
    for (written, read) in [
        ("", PastAnswers::AsGenerated),
        ("past_answers = \"generated\"", PastAnswers::AsGenerated),
        ("past_answers = \"text\"", PastAnswers::AsText),
    ] {
        assert_eq!(far(written).map(|config| config.relayed[0].policy.past_answers), Ok(read), "{written}");
        assert_eq!(own(written).map(|config| config.models[0].policy().past_answers), Ok(read), "{written}");
    }
    let why = own("past_answers = \"ids\"").err().unwrap_or_default();
    assert!(why.contains("models[0].past_answers: \"ids\" is not one of generated, text"), "{why}");
    // The checkpoint decides which inputs a locally computed model takes.
    assert!(own("input = [\"text\"]").err().unwrap_or_default().contains("models[0].input"));
}
