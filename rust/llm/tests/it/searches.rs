//! Counts of searches that providers run and bill per use: in complete, streamed and large responses, and in sessions.

use crate::golden_cases::translated_cases;
use penstock_llm::{
    api_format::ApiFormat::{self, Gemini, OpenAi},
    operation::Operation,
    stream::{meter::SseMeter, session::SessionMeter, skim::ResponseSkimmer},
    usage::{ToolUses, Usage},
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn usage_of_complete(api_format: ApiFormat, response: &Value) -> Usage {
    Usage::from_response(api_format, response.to_string().as_bytes()).unwrap()
}

fn usage_of_stream(api_format: ApiFormat, events: &[Value]) -> Usage {
    let events = events.iter().map(|event| format!("data: {event}\n\n")).collect::<Vec<_>>().concat();
    let read = |size: usize| {
        let mut meter = SseMeter::for_operation(api_format, Operation::CreateModelResponse);
        events.as_bytes().chunks(size).for_each(|chunk| meter.feed(chunk));
        meter.finish().usage.unwrap()
    };
    assert_eq!(read(7), read(usize::MAX));
    read(usize::MAX)
}

fn usage_of_skimmed(api_format: ApiFormat, response: &str, size: usize) -> Usage {
    let mut skim = ResponseSkimmer::for_operation(Operation::CreateModelResponse);
    response.as_bytes().chunks(size).for_each(|chunk| skim.feed(chunk));
    skim.finish(api_format).unwrap()
}

/// Returns two billable web searches among six similar items, and one file search.
fn output_items() -> Value {
    json!([
        {"id": "rs", "type": "reasoning", "summary": []},
        {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "a"}},
        {"id": "ws_2", "type": "web_search_call", "status": "completed", "action": {"type": "open_page", "url": "u"}},
        {"id": "ws_3", "type": "web_search_call", "status": "completed", "action": {"type": "find_in_page"}},
        {"id": "ws_4", "type": "web_search_call", "status": "failed", "action": {"type": "search"}},
        {"id": "ws_5", "type": "web_search_call", "status": "completed"},
        {"id": "fs_1", "type": "file_search_call", "status": "completed", "queries": ["q"], "results": null},
        {"id": "fc_1", "type": "function_call", "name": "web_search_call", "arguments": "{\"type\":\"web_search_call\"}"},
        {"id": "m", "type": "message", "content": [{"type": "output_text", "text": "\"type\":\"web_search_call\""}]},
    ])
}

fn response_with_items(items: &Value) -> Value {
    json!({"id": "resp", "object": "response", "model": "gpt-5.1", "output": items,
        "metadata": {"type": "web_search_call"},
        "usage": {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}})
}

/// Returns a response for tests without full buffering. In such responses, metadata with the key `type` would be
/// counted as an item, so the metadata here has another key.
fn large_response(items: &Value) -> String {
    let mut response = response_with_items(items);
    response["metadata"] = json!({"kind": "web_search_call"});
    response.to_string()
}

const EXPECTED_TOOLS: ToolUses = ToolUses {
    web_searches: 2,
    file_searches: 1,
    x_searches: 0,
    code_executions: 0,
    attachment_searches: 0,
    maps: 0,
    rankings: 0,
};

#[test]
fn counts_searches_complete_streamed_and_in_a_session() {
    let (items, expected) =
        (output_items(), Usage { input: 100, output: 10, tool_uses: EXPECTED_TOOLS, ..Usage::default() });
    let response = response_with_items(&items);
    assert_eq!(usage_of_complete(OpenAi, &response), expected);
    let mut events = vec![json!({"type": "response.created", "response": {"model": "gpt-5.1", "output": []}})];
    for item in items.as_array().unwrap() {
        let mut begun = item.clone();
        begun["status"] = "in_progress".into();
        events.push(json!({"type": "response.output_item.added", "item": begun}));
        events.push(json!({"type": "response.output_item.done", "item": item}));
    }
    let mut short = response.clone();
    short["output"] = json!([]);
    // The last event may repeat the items or omit them.
    for last in [&response, &short] {
        let last = json!({"type": "response.completed", "response": last});
        assert_eq!(usage_of_stream(OpenAi, &[&events[..], &[last]].concat()), expected);
    }
    let mut session = SessionMeter::default();
    session.read_event(json!({"type": "response.created", "response": {"model": "gpt-5.1"}}).to_string().as_bytes());
    session.read_event(json!({"type": "response.completed", "response": response}).to_string().as_bytes());
    assert_eq!(session.total_usage(), Some(expected));
}

#[test]
fn counts_searches_of_a_response_too_large_to_buffer() {
    let mut items = output_items();
    items[8]["content"][0]["text"] = "x\\\"y".repeat(100_000).into();
    let response = large_response(&items);
    for size in [1 << 10, 1 << 14, response.len()] {
        assert_eq!(usage_of_skimmed(OpenAi, &response, size).tool_uses, EXPECTED_TOOLS, "{size}");
    }
}

fn grounded_response(model: &str, queries: &Value) -> Value {
    json!({"candidates": [{"content": {"parts": [{"text": "\"groundingMetadata\":{\"webSearchQueries\":[\"no\"]}"}]},
        "finishReason": "STOP", "groundingMetadata": {"searchEntryPoint": {"renderedContent": "<b>"},
            "groundingChunks": [{"web": {"uri": "u"}}], "webSearchQueries": queries}}],
        "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 1, "totalTokenCount": 10}, "modelVersion": model})
}

/// Since Gemini 3, Google counts distinct non-empty queries; for earlier models it counts prompts.
#[test]
fn counts_gemini_searches_by_query_or_by_prompt() {
    for (model, queries, expected) in [
        ("gemini-3-flash-preview", json!(["", "a", "b", "a"]), 2),
        ("gemini-3.1-pro-preview", json!([]), 0),
        ("gemini-2.5-flash", json!(["a", "b", "c"]), 1),
        ("gemini-2.0-flash", json!([]), 0),
    ] {
        let response = grounded_response(model, &queries);
        let tools = ToolUses { web_searches: expected, ..ToolUses::default() };
        let usage = Usage { input: 9, output: 1, tool_uses: tools, ..Usage::default() };
        assert_eq!(usage_of_complete(Gemini, &response), usage, "{model}");
        let first = json!({"candidates": [{"content": {"parts": [{"text": "x"}]}}], "modelVersion": model});
        // A stream may repeat its metadata.
        assert_eq!(usage_of_stream(Gemini, &[first.clone(), response.clone(), response.clone()]), usage, "{model}");
        assert_eq!(usage_of_complete(Gemini, &json!([first, response])), usage, "{model}");
    }
}

#[test]
fn reads_usage_from_the_end_of_a_large_gemini_response() {
    let mut response = grounded_response("gemini-3-flash", &json!(["a", "b"]));
    response["candidates"][0]["content"]["parts"] = json!([{"inlineData": {"data": "A".repeat(400_000)}}]);
    let expected = Usage {
        input: 9,
        output: 1,
        tool_uses: ToolUses { web_searches: 2, ..ToolUses::default() },
        ..Usage::default()
    };
    for text in [response.to_string(), format!("[{response}\n,{response}]\n")] {
        assert_eq!(usage_of_skimmed(Gemini, &text, 1 << 14), expected);
    }
}

#[test]
fn counts_a_gemini_response_that_used_maps() {
    let mut response = grounded_response("gemini-2.5-flash", &json!([]));
    response["candidates"][0]["groundingMetadata"]["groundingChunks"] = json!([{"maps": {"uri": "u"}}, {"maps": {}}]);
    assert_eq!(usage_of_complete(Gemini, &response).tool_uses, ToolUses { maps: 1, ..ToolUses::default() });
}

#[test]
fn counts_searches_of_a_translated_gemini_response() {
    let all = translated_cases();
    let translated = |name: &str| all.iter().find(|case| case.name() == name).unwrap().translate_request().unwrap().0;
    let response = grounded_response("gemini-3-flash", &json!(["a", "b"]));
    let searches = |usage: Option<Usage>| usage.map(|usage| usage.tool_uses.web_searches);
    let result = translated("google/chatComplete/complete");
    result.translate_response(response.to_string().as_bytes()).unwrap();
    assert_eq!(searches(result.response_context.report.usage()), Some(2));
    let result = translated("google/messages/stream");
    let dropped = result.response_context.report.clone();
    let mut transcoder = result.transcoder();
    drop(transcoder.push_chunk(format!("data: {response}\n\n").into()));
    drop(transcoder.finish());
    assert_eq!(searches(dropped.usage()), Some(2));
}

#[test]
fn reads_tool_counts_from_each_usage_format() {
    let tools = |usage: Value| usage_of_complete(OpenAi, &json!({"choices": [], "usage": usage})).tool_uses;
    let cost = json!({"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10});
    let with = |key: &str, value: Value| {
        let mut usage = cost.clone();
        usage[key] = value;
        usage
    };
    let searched = |web_searches| ToolUses { web_searches, ..ToolUses::default() };
    assert_eq!(tools(with("num_search_queries", 18.into())), searched(18));
    assert_eq!(tools(with("num_search_queries", Value::Null)), searched(0));
    assert_eq!(tools(with("server_tool_use", json!({"web_search_requests": 2}))), searched(2));
    assert_eq!(
        tools(with("tool_calls_details", json!({"search_web": {"invocation": 3}, "x": {"invocation": 9}}))),
        searched(3)
    );
    let xs = json!({"web_search_calls": 1, "x_search_calls": 2, "code_interpreter_calls": 3, "document_search_calls": 4,
        "file_search_calls": 5, "mcp_calls": 6});
    let expected = ToolUses {
        web_searches: 1,
        x_searches: 2,
        code_executions: 3,
        attachment_searches: 4,
        file_searches: 5,
        ..ToolUses::default()
    };
    assert_eq!(tools(with("server_side_tool_usage_details", xs)), expected);
    let ranked = json!({"results": [], "meta": {"billed_units": {"search_units": 2}}});
    assert_eq!(usage_of_complete(OpenAi, &ranked).tool_uses, ToolUses { rankings: 2, ..ToolUses::default() });
}

/// Perplexity's total omits citation and reasoning tokens, but bills them.
#[test]
fn counts_perplexity_research_beyond_its_total() {
    let usage = json!({"prompt_tokens": 33, "completion_tokens": 7163, "total_tokens": 7196, "citation_tokens": 16362,
        "num_search_queries": 18, "reasoning_tokens": 69203});
    let usage = usage_of_complete(OpenAi, &json!({"choices": [], "usage": usage}));
    let tools = ToolUses { web_searches: 18, ..ToolUses::default() };
    assert_eq!(
        usage,
        Usage { input: 33 + 16362, output: 7163, reasoning: 69203, tool_uses: tools, ..Usage::default() }
    );
}

proptest! {
    #[test]
    fn a_large_response_counts_the_same_however_it_was_cut(sizes in prop::collection::vec(1usize..5000, 1..40)) {
        let response = [large_response(&output_items()), " ".repeat(40_000)].concat();
        let mut skim = ResponseSkimmer::for_operation(Operation::CreateModelResponse);
        let (mut rest, mut sizes) = (response.as_bytes(), sizes.iter().cycle());
        while !rest.is_empty() {
            let (chunk, more) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
            skim.feed(chunk);
            rest = more;
        }
        prop_assert_eq!(skim.finish(OpenAi).unwrap().tool_uses, EXPECTED_TOOLS);
    }
}
