//! What operators see about a server, with hints at what may be wrong in its configuration.

use headrace_fault_server::{Fault, FaultServer};
use headrace_upstream::{Upstream, UpstreamKind, UpstreamSpec};
use tokio::net::TcpListener;

use crate::calls::{KEY, spec};

#[tokio::test]
async fn models_are_listed_with_their_windows() {
    let fault_server = FaultServer::start().await.unwrap();
    for kind in UpstreamKind::ALL {
        let upstream = Upstream::new(spec(&fault_server.url(), kind)).unwrap();
        let models = upstream.models().await.unwrap();
        assert_eq!(models.len(), Fault::ALL.len());
        let good = models.iter().find(|model| model.id == "good").unwrap();
        assert_eq!((good.context_window, good.created), (Some(4096), Some(1_790_000_000)));
        upstream.probe().await.unwrap();
    }
    let paths: Vec<String> =
        fault_server.seen().requests.iter().map(|request| request.path.clone()).collect();
    for path in ["/v1/models", "/v1/models?limit=1000", "/health", "/readyz"] {
        assert!(paths.iter().any(|seen| seen == path), "{path}: {paths:?}");
    }
}

#[tokio::test]
async fn what_is_wrong_is_told_in_words_and_without_the_key() {
    let fault_server = FaultServer::start().await.unwrap();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for (url, kind, told) in [
        (format!("http://{free}"), UpstreamKind::Vllm, format!("no connection: connection refused at {free}")),
        (
            fault_server.url_of(Fault::Unauthorized),
            UpstreamKind::OpenAi,
            "401: Incorrect API key provided: Bearer [secret] (it refuses the key that is configured)".to_owned(),
        ),
        (
            fault_server.url_of(Fault::NotFound),
            UpstreamKind::Sglang,
            "404: Not Found (there is no `/not_found/v1/models` there: is the address's path right, and is it of kind \
             `sglang`?)"
                .to_owned(),
        ),
        (fault_server.url_of(Fault::ServerError), UpstreamKind::Vllm, "500: it broke".to_owned()),
        (
            fault_server.url_of(Fault::Html),
            UpstreamKind::Vllm,
            "not JSON: an HTML page titled \"Welcome to nginx!\" (is `/html/v1/models` the right path, and nothing else in \
             between?)"
                .to_owned(),
        ),
        (
            fault_server.url_of(Fault::Empty),
            UpstreamKind::Vllm,
            "an empty body (is `/empty/v1/models` the right path, and nothing else in between?)".to_owned(),
        ),
        (
            fault_server.url_of(Fault::Redirect),
            UpstreamKind::Vllm,
            "it answered with status 307 and points to http://127.0.0.1:1/v1/elsewhere; redirects are not followed"
                .to_owned(),
        ),
        (
            fault_server.url_of(Fault::NoHead),
            UpstreamKind::Vllm,
            "the head of its answer did not come within 0.8 s".to_owned(),
        ),
        (
            fault_server.url_of(Fault::AlwaysWhole),
            UpstreamKind::LlamaCpp,
            "JSON, but no list of models (there is no `data`) (is it of kind `llamacpp`?)".to_owned(),
        ),
    ] {
        let upstream = Upstream::new(spec(&url, kind)).unwrap();
        let error = upstream.models().await.unwrap_err();
        assert_eq!(error.to_string(), told);
        assert!(!format!("{error:?}").contains(KEY));
    }
    let keyless = UpstreamSpec::new("a", UpstreamKind::OpenAi, &fault_server.url_of(Fault::Unauthorized));
    let error = Upstream::new(keyless).unwrap().probe().await.unwrap_err();
    assert_eq!(error.to_string(), "401: Incorrect API key provided: none (no key is configured for it)");
}
