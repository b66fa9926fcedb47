//! Items of tools that run on a server, as input and as history.

use super::*;

/// Items of tools that ran on a server, and the call and the result that a model reads of each.
fn hosted() -> Vec<(Value, Option<ToolCall>, Option<&'static str>)> {
    let mcp = |more: Value| {
        let mut item = json!({"type": "mcp_call", "id": "mcp_1", "server_label": "docs", "name": "find",
            "arguments": "{\"q\": 1}", "status": "completed"});
        for (key, value) in more.as_object().unwrap() {
            item[key] = value.clone();
        }
        item
    };
    let find = || Some(call("mcp_1", "docs__find", "{\"q\": 1}"));
    let listed =
        json!({"name": "find", "input_schema": {"type": "object"}, "description": null, "annotations": null});
    let searched =
        |more: Value| json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": more});
    vec![
        (
            json!({"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "docs", "tools": [listed], "error": null}),
            None,
            None,
        ),
        (mcp(json!({"output": "found", "error": null, "approval_request_id": null})), find(), Some("found")),
        (mcp(json!({"output": null, "error": "no"})), find(), Some("no")),
        (
            mcp(json!({"error": {"type": "mcp_protocol_error", "code": -32601, "message": "no such tool"}})),
            find(),
            Some("no such tool"),
        ),
        (
            mcp(
                json!({"error": {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "broke"}]}}),
            ),
            find(),
            Some("broke"),
        ),
        (mcp(json!({"status": "failed"})), find(), Some("This call did not complete.")),
        (mcp(json!({})), find(), Some("The result of this call was not kept.")),
        (
            json!({"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "docs", "name": "drop", "arguments": ""}),
            Some(call("mcpr_1", "docs__drop", "{}")),
            None,
        ),
        (
            json!({"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["a", "b"], "results": [
                {"file_id": "file_1", "filename": "x.md", "score": 0.5, "text": "one", "attributes": {}},
                {"file_id": "file_2", "filename": "y.md", "text": "two"}]}),
            Some(call("fs_1", "file_search", "{\"queries\":[\"a\",\"b\"]}")),
            Some("[x.md]\none\n[y.md]\ntwo"),
        ),
        (
            json!({"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": [], "results": null}),
            Some(call("fs_1", "file_search", "{\"queries\":[]}")),
            Some("The result of this call was not kept."),
        ),
        (
            json!({"type": "code_interpreter_call", "id": "ci_1", "status": "completed", "container_id": "c",
                "code": "print(1)", "outputs": [{"type": "logs", "logs": "1"}, {"type": "image", "url": "u"}]}),
            Some(call("ci_1", "code_interpreter", "{\"code\":\"print(1)\"}")),
            Some("1\n[image]"),
        ),
        (
            searched(
                json!({"type": "search", "query": "q", "queries": ["q"], "sources": [{"type": "url", "url": "https://a"}]}),
            ),
            Some(call("ws_1", "web_search", "{\"type\":\"search\",\"query\":\"q\",\"queries\":[\"q\"]}")),
            Some("https://a"),
        ),
        (
            searched(json!({"type": "open_page", "url": "https://a"})),
            Some(call("ws_1", "web_search", "{\"type\":\"open_page\",\"url\":\"https://a\"}")),
            Some("The result of this call was not kept."),
        ),
    ]
}

#[test]
fn items_of_tools_that_ran_on_a_server_read_as_calls_and_results() {
    let user = json!({"role": "user", "content": "hi"});
    for (item, expected, result) in hosted() {
        // In the input, and in what was stored before.
        let here = read(&with(&json!({"input": [user, item, user]}))).unwrap();
        let next = read(&with(&json!({"previous_response_id": "resp_1", "input": [user]}))).unwrap();
        let history = json!([user, item]).to_string();
        let after = crate::responses::with_history(next, &[&history], &WireLimits::default()).unwrap();
        for call in [&here, &after] {
            let messages = &conversation(call).messages;
            let calls: Vec<ToolCall> = messages.iter().flat_map(|m| m.tool_calls.clone()).collect();
            assert_eq!(calls.first(), expected.as_ref(), "{item}");
            let results: Vec<_> = messages.iter().filter(|m| m.role == Role::Tool).collect();
            assert_eq!(results.len(), usize::from(result.is_some()), "{item}");
            for message in results {
                assert_eq!(message.content.as_deref(), result, "{item}");
                assert_eq!(message.tool_call_id.as_ref(), calls.first().map(|call| &call.id), "{item}");
            }
            let spoken = messages.iter().filter(|m| m.role == Role::User).count();
            assert_eq!(
                messages.len(),
                spoken + usize::from(expected.is_some()) + usize::from(result.is_some())
            );
        }
    }
}

#[test]
fn an_approval_answers_its_request_and_the_call_answers_the_approval() {
    let request = json!({"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "docs", "name": "drop", "arguments": "{}"});
    let answer = |approve: bool, reason: Value| {
        json!({"type": "mcp_approval_response", "id": "x", "approval_request_id": "mcpr_1",
        "approve": approve, "reason": reason})
    };
    let ran = json!({"type": "mcp_call", "id": "mcp_1", "server_label": "docs", "name": "drop", "arguments": "{}",
        "output": "dropped", "approval_request_id": "mcpr_1"});
    let rows = [
        (vec![answer(false, json!("not today"))], "The call was not approved and did not run. not today"),
        (vec![answer(false, Value::Null)], "The call was not approved and did not run."),
        (vec![answer(true, Value::Null)], "The call was approved. It has not run yet."),
        (vec![answer(true, Value::Null), ran], "dropped"),
    ];
    for (items, result) in rows {
        let list: Vec<Value> = [request.clone()].into_iter().chain(items.clone()).collect();
        let here = read(&with(&json!({"input": list}))).unwrap();
        let messages = &conversation(&here).messages;
        assert_eq!(messages.len(), 2, "one call and one result: {messages:?}");
        assert_eq!(messages[0].tool_calls, [call("mcpr_1", "docs__drop", "{}")]);
        assert_eq!(
            (messages[1].tool_call_id.as_deref(), messages[1].content.as_deref()),
            (Some("mcpr_1"), Some(result))
        );
    }
    // The request is stored, and the answer to it comes later.
    let next = with(&json!({"previous_response_id": "resp_1", "input": [answer(true, Value::Null)]}));
    let history = json!([request]).to_string();
    let after =
        crate::responses::with_history(read(&next).unwrap(), &[&history], &WireLimits::default()).unwrap();
    assert_eq!(conversation(&after).messages.len(), 2);
    let lost = read(&with(&json!({"input": [{"role": "user", "content": "hi"}, answer(true, Value::Null)]})));
    let lost = lost.unwrap_err();
    assert_eq!(lost.param.as_deref(), Some("input"));
    assert!(lost.to_string().contains("an output (item 1) names a call"), "{lost}");
}

#[test]
fn a_malformed_item_of_a_tool_on_a_server_is_named() {
    let mcp = json!({"type": "mcp_call", "id": "m", "server_label": "s", "name": "n", "arguments": "{}"});
    let without = |key: &str| {
        let mut item = mcp.clone();
        item.as_object_mut().unwrap().remove(key);
        item
    };
    let changed = |key: &str, value: Value| {
        let mut item = mcp.clone();
        item[key] = value;
        item
    };
    for (item, param) in [
        (without("id"), "id"),
        (without("server_label"), "server_label"),
        (without("name"), "name"),
        (without("arguments"), "arguments"),
        (changed("arguments", json!("[1]")), "arguments"),
        (changed("arguments", json!({})), "arguments"),
        (changed("output", json!(7)), "output"),
        (changed("error", json!(7)), "error"),
        (changed("queries", json!([])), "queries"),
        (json!({"type": "mcp_list_tools", "id": "l", "server_label": "s"}), "tools"),
        (json!({"type": "mcp_list_tools", "id": "l", "server_label": "s", "tools": [{}]}), "tools[0].name"),
        (json!({"type": "mcp_approval_response", "approval_request_id": "r"}), "approve"),
        (json!({"type": "mcp_approval_response", "approve": true}), "approval_request_id"),
        (json!({"type": "file_search_call", "id": "f"}), "queries"),
        (json!({"type": "file_search_call", "id": "f", "queries": "q"}), "queries"),
        (
            json!({"type": "code_interpreter_call", "id": "c", "outputs": [{"type": "logs"}]}),
            "outputs[0].logs",
        ),
        (json!({"type": "code_interpreter_call", "id": "c", "outputs": [{"type": "x"}]}), "outputs[0].type"),
        (json!({"type": "web_search_call", "id": "w"}), "action"),
        (json!({"type": "web_search_call", "id": "w", "action": {"query": "q"}}), "action.type"),
        (json!({"type": "web_search_call", "id": "w", "action": {"type": "search", "x": 1}}), "action.x"),
    ] {
        let fault = read(&with(&json!({"input": [{"role": "user", "content": "hi"}, item]}))).unwrap_err();
        assert_eq!(fault.param.as_deref(), Some(format!("input[1].{param}").as_str()), "{item}");
    }
}
