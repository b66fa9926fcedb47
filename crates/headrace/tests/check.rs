//! `config check` and `serve` report the same faults of a bad configuration, before anything is written.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::path::Path;

use common::{Server, program, said};

/// Configurations with the faults that each must report. `DIR` is replaced by the test's directory.
const BAD: &[(&str, &[&str])] = &[
    (
        "[server]\ntls_cert = \"DIR/none.pem\"\ntls_key = \"DIR/none.key\"",
        &["server.tls_cert: DIR/none.pem: "],
    ),
    (
        "[server]\ntls_cert = \"DIR/text\"\ntls_key = \"DIR/text\"",
        &["server.tls_cert: DIR/text: holds no certificate"],
    ),
    ("[server]\ntls_cert = \"DIR/text\"", &["server.tls_cert: needs `server.tls_key`"]),
    ("[admin]\ntls = true", &["admin.tls: needs `server.tls_cert`"]),
    ("[server]\ncors = \"*\"", &["server.cors: `*` is everybody"]),
    (
        "[server]\ncors = \"https://a.example/\"",
        &["server.cors: `https://a.example/` has more than scheme, host and port"],
    ),
    ("[server]\nlisten = \"nowhere\"", &["server.listen: \"nowhere\" is not an address"]),
    ("[server]\nlisten = \"192.0.2.1:1\"", &["server.listen: cannot listen on 192.0.2.1:1"]),
    (
        "[server]\nlisten = \"127.0.0.1:18099\"\nmetrics_listen = \"127.0.0.1:18099\"",
        &["server.metrics_listen: is the address of `server.listen`"],
    ),
    (
        "[server]\nmax_header = \"64KiB\"\ntransport_buffer = \"32KiB\"",
        &["server: transport_buffer_bytes must be"],
    ),
    ("[server]\nidle_timeout = \"0s\"", &["server.idle_timeout: \"0s\" is not a duration"]),
    (
        "[aliases]\na = \"nosuch\"\nheadrace-demo = \"headrace-demo\"",
        &[
            "aliases: `a` points to `nosuch`, which is not served; there is headrace-demo",
            "aliases: `headrace-demo` has the name of a served model",
        ],
    ),
    (
        "[[routes]]\nname = \"r\"\nto = [{ model = \"headrace-demo\", weight = 1, canary = true }]",
        &["routes: `r` has only canaries: give it a model that they are compared with"],
    ),
    (
        "[[routes]]\nname = \"r\"\nto = [\"headrace-demo\"]\nfallbacks = { failed = [\"nosuch\"] }",
        &["routes: `r` points to `nosuch`, which is not served; there is headrace-demo"],
    ),
    (
        "[[routes]]\nname = \"r\"\nto = [\"headrace-demo\"]\nfallbacks = { failed = [\"s\"] }\n\
         [aliases]\ns = \"headrace-demo\"",
        &["routes: `r` points to `s`, which is an alias or a route: name a model that is served"],
    ),
    (
        "[[upstreams]]\nname = \"u\"\nkind = \"openai\"\nurl = \"https://127.0.0.1:9\"\nca_file = \"DIR/text\"",
        &["upstreams[0]"],
    ),
    ("[log]\nfilter = \"blah\"", &["log.filter: `blah` is no level (off, error, warn, info, debug, trace)"]),
    ("[log]\nfilter = \"headrace=loud\"", &["log.filter: `headrace=loud` is no filter"]),
    (
        "[engine]\nkv_memory = 1",
        &["engine.kv_memory: 1 is not a size such as \"256MiB\", from 64KiB to 64TiB"],
    ),
    (
        "[engine]\nkv_memory = \"64KiB\"",
        &[
            "engine.kv_memory: 64 KiB holds ",
            " tokens of model `headrace-demo`; a context of 256 tokens needs ",
        ],
    ),
    (
        "[[models]]\nname = \"m\"\npath = \"builtin:demo\"\nkv_memory = \"1MiB\"\nmax_positions = 2048",
        &["models[0].kv_memory: 1 MiB holds ", "a context of 2048 tokens needs ", "or lower `max_positions`"],
    ),
    (
        "[engine]\nkv_memory = \"60TiB\"",
        &["engine.kv_memory: the KV caches of all models come to ", " of memory are left beside "],
    ),
    ("[engine]\nisa = \"neon\"", &["engine.isa: "]),
    ("[[models]]\nname = \"m\"\npath = \"DIR/none\"", &["models[0].path: DIR/none: there is no such file"]),
    (
        "[[models]]\nname = \"m\"\npath = \"DIR/gpt9\"",
        &["models[0]: model `m` cannot be served: ", "Gpt9ForCausalLM"],
    ),
    (
        "[[prices]]\nmodel = \"headrace-demo\"\nfrom = \"2199-01-01\"\ninput = \"1\"\noutput = \"1\"",
        &["prices: the prices of `headrace-demo` all begin later"],
    ),
    ("[[prices]]\nmodel = \"headrace-demo\"\ninput = 0.1", &["prices[0].input: 0.1 must stand in quotes"]),
    (
        "[[prices]]\nmodel = \"headrace-demo\"\ninput = 10\noutput = 40",
        &["prices[0].input: 10 must stand in quotes", "prices[0].output: 40 must stand in quotes"],
    ),
    (
        "[[upstreams]]\nname = \"u\"\nkind = \"openai\"\nurl = \"http://127.0.0.1:9\"\nprice = { input = 10, output = 40 }",
        &["upstreams[0].price.input: 10 must stand in quotes"],
    ),
    (
        "[[moderation.rules]]\nname = \"r\"\nkind = \"regex\"\npattern = \"(\"\naction = \"block\"",
        &["moderation.rules: "],
    ),
    ("[secrets]\nkey_hash_file = \"DIR/none\"", &["secrets.key_hash_file: cannot read the secret DIR/none"]),
    ("[secrets]\ncache_salt_file = \"DIR/text\"", &["secrets.cache_salt_file: DIR/text does not hold 64"]),
    ("[first_start]\nkey_file = \"DIR/none\"", &["first_start.key_file: cannot read a key from DIR/none"]),
    ("[first_start]\nkey_file = \"DIR/text\"", &["first_start.key_file: is no API key"]),
    (
        "[gateway]\nstall_timeout = \"0s\"\nhold_lifetime = \"0s\"\ndelivery_buffer = 0",
        &[
            "gateway.stall_timeout: \"0s\" is not a duration such as \"30s\", from 1s to 1h",
            "gateway.hold_lifetime: \"0s\" is not a duration such as \"30s\", from 1s to 1d",
            "gateway.delivery_buffer: 0 is not a size such as \"256MiB\", from 4KiB to 64MiB",
            "3 faults",
        ],
    ),
];

/// Runs a command and returns its exit code and the faults that it reports.
fn faults(command: &[&str], file: &Path, data: &Path) -> (Option<i32>, String) {
    let output =
        program().args(command).arg("--config").arg(file).arg("--data-dir").arg(data).output().unwrap();
    let said = said(&output);
    let at = said.find("headrace: the configuration has").unwrap_or_else(|| panic!("{command:?}: {said}"));
    (output.status.code(), said[at..].to_owned())
}

#[test]
fn what_serve_refuses_config_check_finds_in_the_same_words() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    std::fs::write(dir.path().join("text"), "neither a key nor a certificate").unwrap();
    std::fs::create_dir(dir.path().join("gpt9")).unwrap();
    let config = r#"{"architectures":["Gpt9ForCausalLM"],"model_type":"gpt9"}"#;
    std::fs::write(dir.path().join("gpt9/config.json"), config).unwrap();
    let (file, data) = (dir.path().join("headrace.toml"), dir.path().join("data"));
    for (text, expected) in BAD {
        // Prices for the rows' models, so that only the intended fault is found.
        let price = "\n[[prices]]\nmodel = \"m\"\ninput = \"0.10\"\noutput = \"0.40\"\n";
        std::fs::write(&file, format!("{}{price}", text.replace("DIR", root))).unwrap();
        let (code, checked) = faults(&["config", "check"], &file, &data);
        assert_eq!(code, Some(2), "{text}");
        for part in *expected {
            assert!(checked.contains(&part.replace("DIR", root)), "{text}\n{part}\n---\n{checked}");
        }
        let served = faults(&["serve"], &file, &data);
        assert_eq!(served, (Some(2), checked), "{text}");
        assert!(!data.exists(), "{text}");
    }
}

#[test]
fn a_good_configuration_shows_what_will_be_served() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("headrace.toml");
    std::fs::write(&file, "[gateway]\ndefault_max_tokens = 777\n[engine]\nkv_memory = \"64MiB\"\n").unwrap();
    let output = program().args(["config", "check", "--config"]).arg(&file).output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for part in ["headrace-demo", "777 tokens (gateway.default_max_tokens)", "63 MiB", "no faults"] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    // The verdict comes first, then the changed settings, then the prices. `--all` shows the rest.
    assert!(said.starts_with("no faults\n"), "{said}");
    for part in ["--all shows them", "dollars per million tokens", "$0.10", "$0.01", "$0.40"] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    assert!(!said.contains("server.max_header"), "{said}");
    let output = program().args(["config", "check", "--all", "--config"]).arg(&file).output().unwrap();
    assert!(common::said(&output).contains("server.max_header"), "{}", common::said(&output));
}

#[test]
fn a_reload_refuses_what_config_check_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap().to_owned();
    std::fs::write(dir.path().join("text"), "neither a key nor a certificate").unwrap();
    std::fs::create_dir(dir.path().join("gpt9")).unwrap();
    let config = r#"{"architectures":["Gpt9ForCausalLM"],"model_type":"gpt9"}"#;
    std::fs::write(dir.path().join("gpt9/config.json"), config).unwrap();
    let mut server = Server::serve(dir.path(), "", None);
    let file = dir.path().join("headrace.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    for (text, expected) in BAD {
        // Only a first start reads the first key, and a flag sets this server's address.
        if text.contains("first_start") || text.contains("listen = \"1") {
            continue;
        }
        let price = "\n[[prices]]\nmodel = \"m\"\ninput = \"0.10\"\noutput = \"0.40\"\n";
        std::fs::write(&file, format!("{}{price}", text.replace("DIR", &root))).unwrap();
        let output = server.command(&["reload"]);
        let said = said(&output);
        assert!(!output.status.success(), "{text}: {said}");
        for part in *expected {
            // A reload also reports settings that need a restart. Running models already fit.
            let found = part.ends_with("faults")
                || said.contains(&part.replace("DIR", &root))
                || said.contains("engine.kv_memory needs a restart");
            assert!(found, "{text}\n{part}\n---\n{said}");
        }
    }
    std::fs::write(&file, good).unwrap();
    server.stop();
}
