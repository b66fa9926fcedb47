//! Error bodies as servers send them: the class of each failure, and the part of its message that is kept.

use headrace_domain::Dialect::{self, Anthropic, OpenAi};
use serde_json::json;

use super::FailureClass::*;
use super::*;

/// Dialect, status, body. Then the expected class, code, and a part of the message.
type Row = (Dialect, u16, &'static str, FailureClass, Option<&'static str>, &'static str);

const OPENAI: &[Row] = &[
    (
        OpenAi,
        400,
        r#"{"error":{"message":"This model's maximum context length is 128000 tokens. However, your messages resulted in 140014 tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
        ContextTooLong,
        Some("context_length_exceeded"),
        "140014 tokens",
    ),
    (
        OpenAi,
        429,
        r#"{"error":{"message":"Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 2s.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#,
        RateLimited,
        Some("rate_limit_exceeded"),
        "try again in 2s",
    ),
    (
        OpenAi,
        429,
        r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#,
        Quota,
        Some("insufficient_quota"),
        "exceeded your current quota",
    ),
    (
        OpenAi,
        401,
        r#"{"error":{"message":"Incorrect API key provided: sk-****************wxyz. You can find your API key at https://platform.openai.com/account/api-keys.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}"#,
        AuthOfOurs,
        Some("invalid_api_key"),
        "provided: sk-***",
    ),
    (
        OpenAi,
        404,
        r#"{"error":{"message":"The model `gpt-9` does not exist or you do not have access to it.","type":"invalid_request_error","param":null,"code":"model_not_found"}}"#,
        NotFound,
        Some("model_not_found"),
        "`gpt-9` does not exist",
    ),
    (
        OpenAi,
        400,
        r#"{"error":{"message":"Invalid prompt: your prompt was flagged as potentially violating our usage policy.","type":"invalid_request_error","param":null,"code":"invalid_prompt"}}"#,
        ContentRefused,
        Some("invalid_prompt"),
        "flagged",
    ),
    (
        OpenAi,
        400,
        r#"{"error":{"message":"Unsupported value: 'temperature' does not support 0.2 with this model.","type":"invalid_request_error","param":"temperature","code":"unsupported_value"}}"#,
        BadRequest,
        Some("unsupported_value"),
        "'temperature'",
    ),
    (
        OpenAi,
        503,
        r#"{"error":{"message":"The server is currently overloaded with other requests. Sorry about that!","type":"server_error","param":null,"code":null}}"#,
        Overloaded,
        Some("server_error"),
        "overloaded",
    ),
    (
        OpenAi,
        400,
        r#"{"error":{"message":"The response was filtered due to the prompt triggering Azure OpenAI's content management policy.","type":null,"param":"prompt","code":"content_filter","status":400,"innererror":{"code":"ResponsibleAIPolicyViolation","content_filter_result":{"hate":{"filtered":true,"severity":"high"}}}}}"#,
        ContentRefused,
        Some("content_filter"),
        "content management policy",
    ),
    (
        OpenAi,
        404,
        r#"{"error":{"code":"DeploymentNotFound","message":"The API deployment for this resource does not exist."}}"#,
        NotFound,
        Some("DeploymentNotFound"),
        "deployment",
    ),
    (
        OpenAi,
        429,
        r#"{"error":{"code":"429","message":"Requests have exceeded call rate limit of your current pricing tier."}}"#,
        RateLimited,
        Some("429"),
        "call rate limit",
    ),
    (
        OpenAi,
        401,
        r#"{"statusCode":401,"message":"Unauthorized. Access token is missing, invalid, or expired."}"#,
        AuthOfOurs,
        None,
        "Access token",
    ),
];

const SELF_HOSTED: &[Row] = &[
    (
        OpenAi,
        400,
        r#"{"error":{"message":"The decoder prompt (length 1800) is longer than the maximum model length of 1024.","type":"BadRequestError","param":null,"code":400}}"#,
        ContextTooLong,
        Some("BadRequestError"),
        "1800",
    ),
    (
        OpenAi,
        400,
        r#"{"object":"error","message":"The input (2050 tokens) is longer than the model's context length (2048 tokens).","type":"BadRequestError","param":null,"code":400}"#,
        ContextTooLong,
        Some("BadRequestError"),
        "2050 tokens",
    ),
    (
        OpenAi,
        400,
        r#"{"object":"error","message":"[{'type': 'missing', 'loc': ('body', 'model')}]","type":"Bad Request","param":null,"code":400}"#,
        BadRequest,
        Some("Bad Request"),
        "missing",
    ),
    (
        OpenAi,
        503,
        r#"{"object":"error","message":"The request queue is full.","type":"ServiceUnavailableError","param":null,"code":503}"#,
        Overloaded,
        Some("ServiceUnavailableError"),
        "queue is full",
    ),
    (
        OpenAi,
        422,
        r#"{"detail":[{"type":"missing","loc":["body","messages"],"msg":"Field required"},{"msg":"Second"}]}"#,
        BadRequest,
        None,
        "Field required; Second",
    ),
    (OpenAi, 404, r#"{"detail":"Not Found"}"#, NotFound, None, "Not Found"),
    (OpenAi, 401, r#"{"error":"Unauthorized"}"#, AuthOfOurs, None, "Unauthorized"),
    (
        OpenAi,
        400,
        r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_prompt_tokens":4012,"n_ctx":2048}}"#,
        ContextTooLong,
        Some("exceed_context_size_error"),
        "available context size",
    ),
    (
        OpenAi,
        503,
        r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#,
        Overloaded,
        Some("unavailable_error"),
        "Loading model",
    ),
    (
        OpenAi,
        500,
        r#"{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","type":"InternalServerError","param":null,"code":500}}"#,
        ServerError,
        Some("InternalServerError"),
        "EngineCore",
    ),
    (
        OpenAi,
        404,
        r#"{"error":{"message":"model 'x' not found","type":"api_error","param":null,"code":null}}"#,
        NotFound,
        Some("api_error"),
        "not found",
    ),
    (
        OpenAi,
        400,
        r#"[{"error":{"code":400,"message":"The input token count (1048577) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]"#,
        ContextTooLong,
        None,
        "1048577",
    ),
    (
        OpenAi,
        502,
        "<html><head><title>502 Bad Gateway</title></head></html>",
        ServerError,
        None,
        "page of HTML",
    ),
    (OpenAi, 504, "upstream request timeout", Timeout, None, "upstream request timeout"),
    (OpenAi, 429, "", RateLimited, None, "empty body"),
    (OpenAi, 413, "{}", TooLarge, None, "without a message"),
];

const ANTHROPIC: &[Row] = &[
    (
        Anthropic,
        400,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 215137 tokens > 200000 maximum"},"request_id":"req_1"}"#,
        ContextTooLong,
        Some("invalid_request_error"),
        "215137",
    ),
    (
        Anthropic,
        400,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000, decrease input length or `max_tokens` and try again"}}"#,
        ContextTooLong,
        Some("invalid_request_error"),
        "8192",
    ),
    (
        Anthropic,
        400,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."}}"#,
        Quota,
        Some("invalid_request_error"),
        "credit balance",
    ),
    (
        Anthropic,
        400,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1: `tool_use` ids were found without `tool_result` blocks"}}"#,
        BadRequest,
        Some("invalid_request_error"),
        "tool_use",
    ),
    (
        Anthropic,
        401,
        r#"{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}"#,
        AuthOfOurs,
        Some("authentication_error"),
        "x-api-key",
    ),
    (
        Anthropic,
        403,
        r#"{"type":"error","error":{"type":"permission_error","message":"Your API key does not have permission."}}"#,
        AuthOfOurs,
        Some("permission_error"),
        "permission",
    ),
    (
        Anthropic,
        404,
        r#"{"type":"error","error":{"type":"not_found_error","message":"model: claude-9"}}"#,
        NotFound,
        Some("not_found_error"),
        "claude-9",
    ),
    (
        Anthropic,
        413,
        r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#,
        TooLarge,
        Some("request_too_large"),
        "maximum size",
    ),
    (
        Anthropic,
        429,
        r#"{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your organization's rate limit of 40,000 input tokens per minute."}}"#,
        RateLimited,
        Some("rate_limit_error"),
        "40,000",
    ),
    (
        Anthropic,
        529,
        r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
        Overloaded,
        Some("overloaded_error"),
        "Overloaded",
    ),
    (
        Anthropic,
        500,
        r#"{"type":"error","error":{"type":"api_error","message":"Internal server error"}}"#,
        ServerError,
        Some("api_error"),
        "Internal",
    ),
    (
        Anthropic,
        402,
        r#"{"type":"error","error":{"type":"billing_error","message":"payment required"}}"#,
        Quota,
        Some("billing_error"),
        "payment",
    ),
];

#[test]
fn failures_of_every_server() {
    for (dialect, status, body, class, code, words) in [OPENAI, SELF_HOSTED, ANTHROPIC].concat() {
        let failed = failure(dialect, status, body.as_bytes());
        assert_eq!((failed.class, failed.code.as_deref()), (class, code), "{status} {body}");
        assert!(failed.message.contains(words), "{:?} of {body}", failed.message);
    }
}

#[test]
fn an_error_inside_of_an_answer_has_the_status_that_it_names() {
    for (body, class) in [
        (json!({"error": {"message": "m", "code": 429}}), RateLimited),
        (json!({"error": {"message": "m", "type": "BadRequestError", "code": 400}}), BadRequest),
        (json!({"error": {"message": "m", "code": "502"}}), ServerError),
        (json!({"error": {"message": "m"}}), ServerError),
        (json!({"error": "m"}), ServerError),
        (json!({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}), Overloaded),
    ] {
        assert_eq!(inside(OpenAi, &body).class, class, "{body}");
    }
}

#[test]
fn keys_are_masked() {
    for (said, shown) in [
        ("key sk-abc_DEF-123 is bad", "key sk-*** is bad"),
        ("(sk-live-03-xyz)", "(sk-***)"),
        ("Bearer abc.def.ghi expired", "Bearer *** expired"),
        ("authorization: bearer  x, y", "authorization: bearer  ***, y"),
        ("AIzaSyA-12345678, hf_abcdefghij", "AIza***, hf_***"),
        ("risk-free, ask-me, sk-1, é sk-é", "risk-free, ask-me, sk-1, é sk-é"),
        ("", ""),
    ] {
        assert_eq!(masked(said), shown);
    }
    let body = json!({"error": {"message": "m", "code": "sk-abcdefgh", "param": "sk-abcdefgh"}});
    let failed = failure(OpenAi, 400, body.to_string().as_bytes());
    assert_eq!((failed.code.as_deref(), failed.param.as_deref()), (Some("sk-***"), Some("sk-***")));
}

#[test]
fn words_are_bounded_and_on_one_line() {
    let long =
        json!({"error": {"message": format!("a\n\u{1b}[31mb{}", "é".repeat(4000)), "code": "c".repeat(999)}});
    let failed = failure(OpenAi, 400, long.to_string().as_bytes());
    assert!(failed.message.starts_with("a  [31mbé") && failed.message.ends_with("é…"), "{}", failed.message);
    assert!(failed.message.len() <= MESSAGE_BYTES + '…'.len_utf8());
    assert_eq!(failed.code.map(|code| code.chars().count()), Some(WORD_BYTES + 1));
    assert_eq!(failure(Anthropic, 500, &vec![0xff; 9999]).class, ServerError);
}
