//! What a relayed call asks for besides tokens. Each server receives only what it may receive, and its cache reveals
//! nothing to other tenants. Extras that cost money are held for and charged, or rejected by name.

use std::sync::Arc;

use headrace_call_state::Answer;
use headrace_domain::{Clock, Dialect, Endpoint, OrgId, ProjectId, Region, Residency, TokenClass};
use headrace_engine_api::PrefixCache;
use headrace_identity::{ExposeSecret, NewKey, RateLimits};
use headrace_ledger::prices::CostList;
use serde_json::{Value, json};

use crate::scripted_server::{
    Script, ScriptedServer, altered, answer_of, body, head, named, priced_world, server, spent, stream,
    whole, world,
};
use crate::world::{World, read, read_to_the_end};

/// Adds a second organisation. From then on upstreams are shared.
fn second_org(world: &World) -> (OrgId, ProjectId) {
    let now = world.clock.now();
    let (org, project) = (OrgId::new("other").unwrap(), ProjectId::new("po").unwrap());
    world.directory.create_org(org.clone(), RateLimits::default(), "test", now).unwrap();
    world.directory.create_project(project.clone(), org.clone(), RateLimits::default(), "test", now).unwrap();
    (org, project)
}

fn server_with(cache: PrefixCache, dialect: Dialect, scripts: Vec<Script>) -> Arc<ScriptedServer> {
    altered(server("gpu", dialect, scripts), "https://", |facts| facts.cache = cache)
}

async fn said(answer: Answer) -> (u16, Value) {
    let status = answer.status;
    let text = read_to_the_end(answer).await.0;
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

fn sent(server: &ScriptedServer, at: usize) -> Value {
    serde_json::from_slice(&server.asked.lock().unwrap()[at].body).unwrap()
}

fn asked(server: &ScriptedServer) -> usize {
    server.asked.lock().unwrap().len()
}

/// An answer in Anthropic's dialect with this usage.
fn message(usage: &Value) -> Value {
    json!({"id": "m", "type": "message", "role": "assistant", "model": "claude-x",
        "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn", "stop_sequence": null, "usage": usage})
}

fn streamed(usage: &Value) -> Script {
    let start = json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant",
        "model": "claude-x", "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage}});
    vec![
        head(),
        named(&start),
        named(
            &json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        ),
        named(
            &json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}),
        ),
        named(&json!({"type": "content_block_stop", "index": 0})),
        named(
            &json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null}, "usage": usage}),
        ),
        named(&json!({"type": "message_stop"})),
    ]
}

fn cached_answer(cached: u64) -> Value {
    let mut answer = answer_of("Hi you");
    answer["usage"]["prompt_tokens_details"] = json!({"cached_tokens": cached});
    answer["timings"] = json!({"cache_n": cached});
    answer
}

#[tokio::test]
async fn every_body_carries_its_tenants_label_and_no_salt_of_a_caller() {
    for (field, other) in [("cache_salt", "extra_key"), ("extra_key", "cache_salt")] {
        let answers = || (0..6).map(|_| whole(&answer_of("Hi"))).collect();
        let server = server_with(PrefixCache::Labelled(field), Dialect::OpenAi, answers());
        let world = world(&[Arc::clone(&server)]);
        for more in [json!({}), json!({}), json!({"cache_salt": "team1"}), json!({"extra_key": "team1"})] {
            assert_eq!(said(world.call(Endpoint::ChatCompletions, body(false, &more)).await).await.0, 200);
        }
        let response = json!({"model": "far", "input": "hello", "store": false});
        assert_eq!(said(world.call(Endpoint::Responses, response).await).await.0, 200);
        let mut message = body(false, &json!({}));
        message.as_object_mut().unwrap().remove("unknown_to_us");
        assert_eq!(said(world.call(Endpoint::Messages, message).await).await.0, 200);
        let labels: Vec<String> = (0..6)
            .map(|at| {
                let sent = sent(&server, at);
                assert!(sent.get(other).is_none() && !sent.to_string().contains("team1"), "{sent}");
                sent[field].as_str().unwrap().to_owned()
            })
            .collect();
        assert!(labels.iter().all(|label| label.len() == 32), "{labels:?}");
        // On every endpoint, one tenant has one label. Its own salts divide that further.
        assert!(labels[0] == labels[1] && labels[0] == labels[4] && labels[0] == labels[5], "{labels:?}");
        assert!(labels[0] != labels[2] && labels[0] != labels[3] && labels[2] != labels[3], "{labels:?}");
    }
}

#[tokio::test]
async fn two_tenants_with_one_word_have_two_labels() {
    let answers = (0..2).map(|_| whole(&answer_of("Hi"))).collect();
    let server = server_with(PrefixCache::Labelled("cache_salt"), Dialect::OpenAi, answers);
    let mut world = world(&[Arc::clone(&server)]);
    let asks = body(false, &json!({"cache_salt": "team1"}));
    assert_eq!(said(world.call(Endpoint::ChatCompletions, asks.clone()).await).await.0, 200);
    let project = ProjectId::new("p2").unwrap();
    let now = world.clock.now();
    world
        .directory
        .create_project(project.clone(), world.org.clone(), RateLimits::default(), "test", now)
        .unwrap();
    let (_, secret) = world
        .directory
        .create_key(NewKey::new(world.org.clone(), project.clone(), "b"), "test", now)
        .unwrap();
    let open = headrace_ledger::LedgerOperation::OpenProject { org: world.org.clone(), project };
    world.ledger.transact(vec![open], now).durable.wait().unwrap();
    world.key = secret.expose_secret().to_owned();
    let answer = said(world.call(Endpoint::ChatCompletions, asks).await).await;
    assert_eq!(answer.0, 200, "{}", answer.1);
    assert_ne!(sent(&server, 0)["cache_salt"], sent(&server, 1)["cache_salt"]);
}

/// Prices per million: $1 input, $0.10 cached, $4 output. 20 prompt tokens and 2 answer tokens, however many were
/// cached.
#[tokio::test]
async fn a_shared_cache_shows_in_no_answer_no_bill_and_no_trace() {
    let openai = |cached: u64| {
        let mut events = stream();
        let usage = crate::scripted_server::chunk(&crate::scripted_server::usage(20, cached, 2));
        events[4] = usage;
        vec![whole(&cached_answer(cached)), events]
    };
    let mut shown = Vec::new();
    for cached in [0, 16] {
        let server = server_with(PrefixCache::Hidden, Dialect::OpenAi, openai(cached));
        let world = world(&[server]);
        second_org(&world);
        let answer = world.call(Endpoint::ChatCompletions, body(false, &json!({}))).await;
        let whole = read(answer).await;
        let more = json!({"stream_options": {"include_usage": true}});
        let stream = read(world.call(Endpoint::ChatCompletions, body(true, &more)).await).await;
        assert_eq!(spent(world.balance_when_idle().await), 2 * (20_000 + 8_000));
        let usage = world.last_trace().usage;
        assert_eq!((usage.input, usage.cached_input), (20, 0));
        shown.push((whole, stream));
    }
    assert!(shown[0].0 == shown[1].0, "{shown:?}");
    // Rewritten events are formatted anew in both streams.
    assert!(shown[0].1 == shown[1].1 && shown[0].1.contains("\"cached_tokens\":0"), "{shown:?}");

    // With one organisation, or if the operator discloses the cache, nothing is hidden.
    for (cache, several) in [(PrefixCache::Hidden, false), (PrefixCache::Disclosed, true)] {
        let server = server_with(cache, Dialect::OpenAi, openai(16));
        let world = world(&[server]);
        if several {
            second_org(&world);
        }
        let whole = read(world.call(Endpoint::ChatCompletions, body(false, &json!({}))).await).await;
        assert_eq!(whole, cached_answer(16).to_string());
        assert_eq!(spent(world.balance_when_idle().await), 4_000 + 1_600 + 8_000);
    }
}

#[tokio::test]
async fn a_shared_cache_shows_in_neither_dialect() {
    // A hit, a miss that is written to the cache, and half of each.
    let usages = [(16, 0), (0, 16), (6, 10)].map(|(read, written)| {
        json!({"input_tokens": 4, "cache_read_input_tokens": read, "cache_creation_input_tokens": written,
            "output_tokens": 2})
    });
    for endpoint in [Endpoint::Messages, Endpoint::ChatCompletions] {
        for (marked, charged) in [(false, 20_000 + 8_000), (true, 4_000 + 16 * 1_250 + 8_000)] {
            if marked && endpoint == Endpoint::ChatCompletions {
                continue;
            }
            let mut shown = Vec::new();
            for usage in &usages {
                let scripts = vec![whole(&message(usage)), streamed(usage)];
                let server = server_with(PrefixCache::Hidden, Dialect::Anthropic, scripts);
                let prices = json!([{"model": "far", "input": 1_000_000_000, "cached_input": 100_000_000,
                    "cache_write": 1_250_000_000, "output": 4_000_000_000_i64}]);
                let world = priced_world(&[server], &prices.to_string(), CostList::default());
                second_org(&world);
                let mut texts = Vec::new();
                for stream in [false, true] {
                    let mut body = body(stream, &json!({}));
                    body.as_object_mut().unwrap().remove("unknown_to_us");
                    if marked {
                        body["cache_control"] = json!({"type": "ephemeral"});
                    }
                    if stream && endpoint == Endpoint::ChatCompletions {
                        body["stream_options"] = json!({"include_usage": true});
                    }
                    let text = read(world.call(endpoint, body).await).await;
                    // Answers that are written here differ in ids and times.
                    let usage = text.rfind("\"usage\"").unwrap();
                    texts.push(if endpoint == Endpoint::Messages { text } else { text[usage..].to_owned() });
                }
                assert_eq!(spent(world.balance_when_idle().await), 2 * charged, "{endpoint:?} {usage}");
                shown.push(texts);
            }
            assert!(shown[0] == shown[1] && shown[0] == shown[2], "{endpoint:?} {marked}: {shown:#?}");
        }
    }
}

#[tokio::test]
async fn an_extra_without_a_price_is_refused_by_name_unless_the_upstream_allows_it() {
    let rows = [
        (Endpoint::ChatCompletions, json!({"web_search_options": {}}), "web_search_options", "web_search"),
        (Endpoint::ChatCompletions, json!({"service_tier": "priority"}), "service_tier", "service_tier"),
        (
            Endpoint::ChatCompletions,
            json!({"tools": [{"type": "web_search"}]}),
            "tools[0].type",
            "web_search",
        ),
        (Endpoint::Messages, json!({"speed": "fast"}), "speed", "speed"),
        (
            Endpoint::Messages,
            json!({"tools": [{"type": "code_execution_20250522", "name": "c"}]}),
            "tools[0].type",
            "code_execution",
        ),
        (
            Endpoint::Messages,
            json!({"tools": [{"type": "web_search_20250305", "name": "w", "max_uses": 1}]}),
            "tools[0].type",
            "web_search",
        ),
        (
            Endpoint::Messages,
            json!({"mcp_servers": [{"type": "url", "name": "x", "url": "https://x.example/"}]}),
            "mcp_servers",
            "mcp",
        ),
        (Endpoint::Messages, json!({"inference_geo": "us"}), "inference_geo", "inference_geo"),
    ];
    for (endpoint, more, param, name) in rows {
        let dialect = endpoint.dialect();
        let answer = if dialect == Dialect::OpenAi {
            answer_of("Hi")
        } else {
            message(&json!({"input_tokens": 20, "output_tokens": 2}))
        };
        let strict = server("gpu", dialect, vec![]);
        let world = world(&[Arc::clone(&strict)]);
        let (status, told) = said(world.call(endpoint, body(false, &more)).await).await;
        assert_eq!(status, 400, "{told}");
        let message = told["error"]["message"].as_str().unwrap();
        assert!(
            message.contains(&format!("`{param}`")) && message.contains(&format!("`{name}`")),
            "{message}"
        );
        assert_eq!((asked(&strict), spent(world.balance_when_idle().await)), (0, 0), "{more}");
        // If only one of two upstreams allows it, only that one is asked.
        let strict = server("strict", dialect, vec![]);
        let lax = altered(server("lax", dialect, vec![whole(&answer)]), "https://", |facts| {
            facts.allow_unpriced = Arc::from([name]);
        });
        let world = crate::scripted_server::world(&[Arc::clone(&strict), Arc::clone(&lax)]);
        let (status, told) = said(world.call(endpoint, body(false, &more)).await).await;
        assert_eq!((status, asked(&strict), asked(&lax)), (200, 0, 1), "{told}");
    }
}

#[tokio::test]
async fn searches_are_held_for_and_charged_to_the_nano_dollar() {
    // $0.01 per search.
    let prices = json!([{"model": "far", "input": 1_000_000_000, "output": 4_000_000_000_i64, "per_search": 10_000_000_000_000_i64}]);
    let used = json!({"input_tokens": 20, "output_tokens": 2, "server_tool_use": {"web_search_requests": 3}});
    let beyond =
        json!({"input_tokens": 20, "output_tokens": 2, "server_tool_use": {"web_search_requests": 50}});
    let scripts = vec![whole(&message(&used)), streamed(&used), whole(&message(&beyond))];
    let server = server("claude", Dialect::Anthropic, scripts);
    let world = priced_world(&[Arc::clone(&server)], &prices.to_string(), CostList::default());
    let tool = |most: Value| json!({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": most}]});
    for stream in [false, true] {
        assert_eq!(said(world.call(Endpoint::Messages, body(stream, &tool(json!(5)))).await).await.0, 200);
    }
    let each = 20_000 + 8_000 + 3 * 10_000_000;
    assert_eq!(spent(world.balance_when_idle().await), 2 * each);
    let record = world.last_trace();
    assert!(record.held.get() >= 5 * 10_000_000 && record.usage.web_searches == 3, "{record:?}");
    let line = record.billed.as_ref().unwrap().lines.iter().find(|line| line.class == TokenClass::WebSearch);
    assert_eq!(line.map(|line| (line.tokens, line.amount.get())), Some((3, 30_000_000)));
    // Reported usage beyond the hold is the operator's loss.
    assert_eq!(said(world.call(Endpoint::Messages, body(false, &tool(json!(1)))).await).await.0, 200);
    let record = world.last_trace();
    assert_eq!(spent(world.balance_when_idle().await), 2 * each + record.held.get());
    assert_eq!(record.cost, record.held);
    assert_eq!(record.cost.get() + record.loss.get(), 28_000 + 50 * 10_000_000);
    // Without a bound, there is no amount to hold.
    let (status, told) = said(world.call(Endpoint::Messages, body(false, &tool(Value::Null))).await).await;
    assert!(status == 400 && told.to_string().contains("tools[0].max_uses"), "{told}");
    assert_eq!(asked(&server), 3);
}

/// Each prompt of a list is answered, and paid for.
#[tokio::test]
async fn every_prompt_of_a_body_is_held_for() {
    let choice =
        |index: u32| json!({"index": index, "text": "x", "finish_reason": "length", "logprobs": null});
    let answer = json!({"id": "c", "object": "text_completion", "created": 1, "model": "m",
        "choices": (0..8).map(choice).collect::<Vec<_>>(),
        "usage": {"prompt_tokens": 8, "completion_tokens": 80, "total_tokens": 88}});
    let server = server("gpu", Dialect::OpenAi, vec![whole(&answer)]);
    let world = world(&[server]);
    let call = json!({"model": "far", "max_tokens": 10, "prompt": vec!["hi"; 8]});
    let (status, told) = said(world.call(Endpoint::Completions, call).await).await;
    assert_eq!((status, told["choices"].as_array().map(Vec::len)), (200, Some(8)), "{told}");
    assert_eq!(spent(world.balance_when_idle().await), 8 * 1_000 + 80 * 4_000);
    let record = world.last_trace();
    assert!(record.held.get() >= 8 * 10 * 4_000 && record.loss.get() == 0, "{record:?}");
}

#[tokio::test]
async fn a_tier_is_asked_for_where_it_has_a_price() {
    let server = server("gpu", Dialect::OpenAi, vec![whole(&answer_of("Hi"))]);
    let price = |times: i64, tier: Option<&str>| {
        let mut price =
            json!({"model": "far", "input": times * 1_000_000_000, "output": times * 4_000_000_000});
        tier.into_iter().for_each(|tier| price["tier"] = json!(tier));
        price
    };
    let prices = json!([price(1, None), price(2, Some("priority"))]).to_string();
    let world = priced_world(&[server], &prices, CostList::default());
    for (tier, status) in [("priority", 200), ("scale", 400), ("ultra", 400)] {
        let answer = world.call(Endpoint::ChatCompletions, body(false, &json!({"service_tier": tier}))).await;
        assert_eq!(said(answer).await.0, status, "{tier}");
    }
}

#[tokio::test]
async fn an_address_goes_to_servers_that_may_be_handed_it() {
    let image = |url: &str| {
        json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": url}}]}]})
    };
    let off = altered(server("off", Dialect::OpenAi, vec![]), "never:", |_| {});
    let public = server("public", Dialect::OpenAi, vec![whole(&answer_of("Hi"))]);
    let world = world(&[Arc::clone(&off), Arc::clone(&public)]);
    let ask = |url: &'static str| world.call(Endpoint::ChatCompletions, body(false, &image(url)));
    assert_eq!(said(ask("https://example.com/a.png").await).await.0, 200);
    assert_eq!((asked(&off), asked(&public)), (0, 1));
    let mut messages = Vec::new();
    for url in ["http://169.254.169.254/", "file:///etc/passwd", "/etc/passwd"] {
        let (status, told) = said(ask(url).await).await;
        assert_eq!((status, &told["error"]["code"]), (400, &json!("url_not_allowed")), "{told}");
        assert_eq!(told["error"]["param"], json!("messages[0].content[1].image_url.url"));
        messages.push(told["error"]["message"].clone());
    }
    messages.dedup();
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert_eq!((asked(&off), asked(&public), spent(world.balance_when_idle().await)), (0, 1, 28_000));
    // A response that is turned into a chat, and a count, are judged in the same way.
    let response = json!({"model": "far", "input": [{"role": "user", "content": [
        {"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "http://10.0.0.1/"}]}]});
    let (status, told) = said(world.call(Endpoint::Responses, response).await).await;
    assert_eq!((status, &told["error"]["param"]), (400, &json!("input[0].content[1]")), "{told}");
}

#[tokio::test]
async fn a_pinned_call_leaves_its_region_by_no_word_of_its_body() {
    let answer = message(&json!({"input_tokens": 20, "output_tokens": 2}));
    let every: Arc<[&'static str]> = headrace_relay::ALLOWABLE.into();
    let claude = altered(
        crate::scripted_server::server_in(
            Some("eu"),
            "claude",
            Dialect::Anthropic,
            vec![whole(&answer), whole(&answer)],
        ),
        "https://",
        |facts| facts.allow_unpriced = every,
    );
    let world = world(&[Arc::clone(&claude)]);
    let eu = Residency::only([Region::new("eu").unwrap()]);
    world.directory.set_org_regions(&world.org, eu, "test", world.clock.now()).unwrap();
    let image = json!([{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://us.example/"}}]}]);
    for (more, param) in [
        (json!({"inference_geo": "us"}), "inference_geo"),
        (json!({"inference_geo": "global"}), "inference_geo"),
        (json!({"mcp_servers": [{"type": "url", "url": "https://us.example/", "name": "x"}]}), "mcp_servers"),
        (json!({"tools": [{"type": "web_search_20250305", "name": "w", "max_uses": 1}]}), "tools[0].type"),
        (json!({"tools": [{"type": "web_fetch_20250910", "name": "w"}]}), "tools[0].type"),
        (json!({"container": "c"}), "container"),
        (json!({"messages": image}), "messages[0].content[0].source.url"),
    ] {
        let (status, told) = said(world.call(Endpoint::Messages, body(false, &more)).await).await;
        assert!(status == 403 && told.to_string().contains(&format!("`{param}")), "{more}: {told}");
    }
    assert_eq!(asked(&claude), 0);
    for more in [json!({}), json!({"inference_geo": "eu"})] {
        assert_eq!(said(world.call(Endpoint::Messages, body(false, &more)).await).await.0, 200, "{more}");
    }
}
