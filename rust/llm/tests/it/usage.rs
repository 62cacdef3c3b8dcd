//! Usage of complete responses and of streams at any chunk boundaries, in disjoint kinds of tokens.

use crate::golden_cases::{Case, UpstreamBody, translated_cases};
use penstock_llm::{
    api_format::ApiFormat::{self, Anthropic, Bedrock, Gemini, OpenAi},
    stream::{
        meter::{SseMeter, StreamSummary},
        skim::ResponseSkimmer,
    },
    usage::{ServiceTier, ToolUses, Usage},
};
use proptest::prelude::*;
use serde_json::Value;

const NO_TOOLS: ToolUses = ToolUses {
    web_searches: 0,
    file_searches: 0,
    x_searches: 0,
    code_executions: 0,
    attachment_searches: 0,
    maps: 0,
    rankings: 0,
};

const NO_USAGE: Usage = Usage {
    input: 0,
    output: 0,
    cache_read: 0,
    cache_write_5m: 0,
    cache_write_1h: 0,
    reasoning: 0,
    audio_in: 0,
    audio_out: 0,
    cache_read_audio: 0,
    cache_read_image: 0,
    image_in: 0,
    image_out: 0,
    tool_uses: NO_TOOLS,
    is_estimated: false,
    service_tier: ServiceTier::Standard,
};

fn tools_with_searches(web_searches: u64) -> ToolUses {
    ToolUses { web_searches, ..NO_TOOLS }
}

fn response_usage(api_format: ApiFormat, body: &str) -> Option<Usage> {
    Usage::from_response(api_format, body.as_bytes())
}

fn meter_chunks<'a>(api_format: ApiFormat, chunks: impl IntoIterator<Item = &'a [u8]>) -> StreamSummary {
    let mut meter = SseMeter::new(api_format);
    for chunk in chunks {
        meter.feed(chunk);
    }
    meter.finish()
}

#[test]
fn openai_token_kinds_are_disjoint_and_sum_to_its_total() {
    let usage = response_usage(OpenAi, r#"{"id":"x","model":"gpt-4o","choices":[{"message":{"content":"\"usage\":{}"}}],"usage":{"prompt_tokens":2006,
        "completion_tokens":300,"total_tokens":2306,"prompt_tokens_details":{"cached_tokens":1920,"audio_tokens":6},
        "completion_tokens_details":{"reasoning_tokens":128,"audio_tokens":10,"accepted_prediction_tokens":3}},"service_tier":"default"}"#).unwrap();
    assert_eq!(
        usage,
        Usage { input: 80, output: 162, cache_read: 1920, reasoning: 128, audio_in: 6, audio_out: 10, ..NO_USAGE }
    );
    assert_eq!((usage.total_input(), usage.total_output(), usage.total()), (2006, 300, 2306));
}

#[test]
fn anthropic_token_kinds_are_read_as_reported() {
    let usage = response_usage(
        Anthropic,
        r#"{"content":[],"usage":{"input_tokens":10,"cache_creation_input_tokens":300,"cache_read_input_tokens":50,
        "cache_creation":{"ephemeral_5m_input_tokens":100,"ephemeral_1h_input_tokens":200},"output_tokens":7,"service_tier":"standard"}}"#,
    );
    assert_eq!(
        usage,
        Some(Usage { input: 10, output: 7, cache_read: 50, cache_write_5m: 100, cache_write_1h: 200, ..NO_USAGE })
    );
    let usage = response_usage(
        Anthropic,
        r#"{"usage":{"input_tokens":1,"cache_creation_input_tokens":9,"cache_read_input_tokens":null,"output_tokens":2}}"#,
    );
    assert_eq!(usage, Some(Usage { input: 1, output: 2, cache_write_5m: 9, ..NO_USAGE }));
}

#[test]
fn reads_other_usage_shapes_of_the_same_api_format() {
    let responses = response_usage(
        OpenAi,
        r#"{"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":6},"output_tokens":87,"output_tokens_details":{"reasoning_tokens":80},"total_tokens":123}}"#,
    );
    assert_eq!(responses, Some(Usage { input: 30, cache_read: 6, output: 7, reasoning: 80, ..NO_USAGE }));
    let embeddings = response_usage(OpenAi, r#"{"data":[],"usage":{"prompt_tokens":8,"total_tokens":8}}"#);
    assert_eq!(embeddings, Some(Usage { input: 8, ..NO_USAGE }));
    let deepseek = response_usage(
        OpenAi,
        r#"{"usage":{"prompt_tokens":10,"prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":6,"completion_tokens":1}}"#,
    );
    assert_eq!(deepseek, Some(Usage { input: 6, cache_read: 4, output: 1, ..NO_USAGE }));
    let transcription = response_usage(
        OpenAi,
        r#"{"usage":{"type":"tokens","input_tokens":14,"input_token_details":{"text_tokens":4,"audio_tokens":10},"output_tokens":5,"total_tokens":19}}"#,
    );
    assert_eq!(transcription, Some(Usage { input: 4, audio_in: 10, output: 5, ..NO_USAGE }));
}

#[test]
fn does_not_subtract_reasoning_that_completion_excludes() {
    let usage = response_usage(OpenAi, r#"{"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":115,"completion_tokens_details":{"reasoning_tokens":100}}}"#).unwrap();
    assert_eq!((usage.output, usage.reasoning, usage.total()), (5, 100, 115));
}

#[test]
fn counts_tokens_that_only_the_total_includes() {
    let result = |body: &str| response_usage(OpenAi, body).unwrap();
    let thought = result(r#"{"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":115}}"#);
    assert_eq!(thought, Usage { input: 10, output: 5, reasoning: 100, ..NO_USAGE });
    let partly = result(
        r#"{"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":115,"completion_tokens_details":{"reasoning_tokens":90}}}"#,
    );
    assert_eq!(partly, Usage { input: 10, output: 15, reasoning: 90, ..NO_USAGE });
    // Some providers report cached tokens in addition to the prompt tokens.
    let cached = result(
        r#"{"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":65,"prompt_tokens_details":{"cached_tokens":50}}}"#,
    );
    assert_eq!(cached, Usage { input: 10, output: 5, cache_read: 50, ..NO_USAGE });
    let gemini = r#"{"usageMetadata":{"promptTokenCount":4,"candidatesTokenCount":2,"totalTokenCount":9}}"#;
    assert_eq!(response_usage(Gemini, gemini), Some(Usage { input: 4, output: 2, reasoning: 3, ..NO_USAGE }));
    for usage in [thought, partly] {
        assert_eq!(usage.total(), 115);
    }
}

#[test]
fn counts_generated_images_as_image_tokens() {
    let body = r#"{"created":1,"data":[{"b64_json":"AA=="}],"usage":{"total_tokens":310,"input_tokens":60,"output_tokens":250,
        "input_tokens_details":{"text_tokens":10,"image_tokens":50}}}"#;
    let expected = Usage { input: 10, image_in: 50, image_out: 250, ..NO_USAGE };
    assert_eq!(response_usage(OpenAi, body), Some(expected));
    let event = format!(
        "data: {}\n\n",
        body.replace("\"created\":1", "\"type\":\"image_generation.completed\"").replace('\n', "")
    );
    assert_eq!(meter_chunks(OpenAi, [event.as_bytes()]).usage, Some(expected));
}

#[test]
fn clamps_invalid_numbers_to_zero_and_to_the_total() {
    let usage = response_usage(
        OpenAi,
        r#"{"usage":{"prompt_tokens":5,"completion_tokens":-3,"prompt_tokens_details":{"cached_tokens":9,"audio_tokens":9},"completion_tokens_details":{"reasoning_tokens":4}}}"#,
    );
    assert_eq!(usage, Some(Usage { cache_read: 5, ..NO_USAGE }));
    let usage = response_usage(OpenAi, r#"{"usage":{"prompt_tokens":5.0,"completion_tokens":1e2,"total_tokens":"7"}}"#);
    assert_eq!(usage, Some(Usage { input: 5, output: 100, ..NO_USAGE }));
    let usage = response_usage(
        OpenAi,
        r#"{"usage":{"prompt_tokens":99999999999999999999999,"completion_tokens":18446744073709551615}}"#,
    )
    .unwrap();
    assert_eq!(usage.total(), u64::MAX);
}

#[test]
fn a_response_without_usage_has_none() {
    for body in [
        "",
        "{}",
        "null",
        r#"{"usage":null}"#,
        r#"{"usage":{}}"#,
        r#"{"usage":{"type":"duration","seconds":9}}"#,
        r#"{"usage":{"prompt_tokens":1}"#,
        r#"{"a":{"usage":{"input_tokens":5}}}"#,
    ] {
        assert_eq!(response_usage(OpenAi, body), None, "{body}");
    }
}

#[test]
fn ignores_usage_inside_a_tool_call() {
    let body = r#"{"usage":{"input_tokens":1,"output_tokens":2},"content":[{"type":"tool_use","input":{"usage":{"input_tokens":999}}}]}"#;
    assert_eq!(response_usage(Anthropic, body), Some(Usage { input: 1, output: 2, ..NO_USAGE }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn buckets_never_exceed_reported_tokens(prompt in 0u64..1000, completion in 0u64..1000, cached in 0u64..2000, audio in 0u64..2000, reasoning in 0u64..2000) {
        let body = serde_json::json!({"usage": {"prompt_tokens": prompt, "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": audio},
            "completion_tokens_details": {"reasoning_tokens": reasoning, "audio_tokens": audio}}}).to_string();
        let usage = response_usage(OpenAi, &body).unwrap();
        prop_assert_eq!(usage.total_input(), prompt);
        prop_assert_eq!(usage.total_output(), completion);
    }
}

#[test]
fn realtime_token_kinds_are_disjoint_and_sum_to_the_total() {
    let usage = response_usage(
        OpenAi,
        r#"{"usage":{"total_tokens":253,"input_tokens":132,"output_tokens":121,
        "input_token_details":{"text_tokens":119,"audio_tokens":13,"cached_tokens":70,
            "cached_tokens_details":{"text_tokens":64,"audio_tokens":6}},
        "output_token_details":{"text_tokens":30,"audio_tokens":91}}}"#,
    )
    .unwrap();
    let expected =
        Usage { input: 55, audio_in: 7, cache_read: 64, cache_read_audio: 6, output: 30, audio_out: 91, ..NO_USAGE };
    assert_eq!((usage, usage.total()), (expected, 253));
}

#[test]
fn counts_image_tokens_separately_from_text() {
    let usage = response_usage(
        OpenAi,
        r#"{"data":[],"usage":{"input_tokens":50,"input_tokens_details":{"text_tokens":10,"image_tokens":40},
        "output_tokens":4160,"output_tokens_details":{"image_tokens":4100,"text_tokens":60},"total_tokens":4210}}"#,
    )
    .unwrap();
    let expected = Usage { input: 10, image_in: 40, output: 60, image_out: 4100, ..NO_USAGE };
    assert_eq!((usage, usage.total()), (expected, 4210));
}

/// Returns the total number of tokens that the provider reports; `None` if it reports none.
fn reported_total(response: &Value) -> Option<u64> {
    let number = |at: &str| response.pointer(at).and_then(Value::as_u64);
    let sum = |parts: &[&str]| parts.iter().filter_map(|at| number(at)).sum::<u64>();
    let anthropics = ["input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
    let anthropics = anthropics.map(|name| format!("/usage/{name}"));
    number("/usageMetadata/totalTokenCount")
        .or_else(|| number("/usage/total_tokens"))
        .or_else(|| number("/usage/totalTokens"))
        .or_else(|| {
            number("/usage/tokens/input_tokens")
                .map(|_| sum(&["/usage/tokens/input_tokens", "/usage/tokens/output_tokens"]))
        })
        .or_else(|| number("/usage/input_tokens").map(|_| sum(&anthropics.each_ref().map(String::as_str))))
}

fn case_usage(case: &Case) -> Option<(u64, Option<Usage>)> {
    let (UpstreamBody::Complete(result), Some(returned)) = (case.upstream_body(), case.client_response()) else {
        return None;
    };
    let total = reported_total(&serde_json::from_slice(&result).ok()?)?;
    let api_format = case.operation().api_format().unwrap_or(OpenAi);
    Some((total, Usage::from_response(api_format, &returned)))
}

#[test]
fn translated_usage_sums_to_the_total_of_the_provider() {
    let mut checked = 0;
    for case in translated_cases() {
        let Some((total, usage)) = case_usage(&case) else { continue };
        assert_eq!(usage.map(|usage| usage.total()), Some(total), "{}", case.name());
        checked += 1;
    }
    assert!(checked > 50, "only {checked} cases say what they cost");
}

/// Returns the API format of the provider's usage fields.
fn usage_format(response: &Value) -> Option<ApiFormat> {
    let has = |at: &str| response.pointer(at).is_some_and(Value::is_number);
    let words = [
        ("/usageMetadata/promptTokenCount", Gemini),
        ("/usage/inputTokens", Bedrock),
        ("/usage/input_tokens", Anthropic),
        ("/usage/prompt_tokens", OpenAi),
    ];
    words.into_iter().find(|(at, _)| has(at)).map(|(_, api_format)| api_format)
}

#[test]
fn records_the_providers_token_kinds_for_every_client_format() {
    let mut checked = 0;
    for case in translated_cases() {
        let (UpstreamBody::Complete(responded), Some(_)) = (case.upstream_body(), case.client_response()) else {
            continue;
        };
        let Some(api_format) = serde_json::from_slice(&responded).ok().as_ref().and_then(usage_format) else {
            continue;
        };
        let (translation, _) = case.translate_request().unwrap();
        translation.translate_response(&responded).unwrap();
        // Forwarded responses and embeddings are returned unchanged, so the translation has no usage.
        let Some(usage) = translation.response_context.report.usage() else { continue };
        assert_eq!(Some(usage), Usage::from_response(api_format, &responded), "{}", case.name());
        checked += 1;
    }
    assert!(checked > 50, "only {checked} cases say what they cost");
}

#[test]
fn separates_gemini_modalities_and_bedrock_cache_lifetimes() {
    let usage = response_usage(
        Gemini,
        r#"{"candidates":[],"usageMetadata":{"promptTokenCount":320,"cachedContentTokenCount":120,"candidatesTokenCount":65,
        "thoughtsTokenCount":3,"totalTokenCount":388,"promptTokensDetails":[{"modality":"TEXT","tokenCount":60},
        {"tokenCount":180,"modality":"AUDIO"},{"modality":"IMAGE","tokenCount":50},{"modality":"IMAGE","tokenCount":30}],
        "cacheTokensDetails":[{"modality":"AUDIO","tokenCount":80},{"modality":"TEXT","tokenCount":40}],
        "candidatesTokensDetails":[{"modality":"IMAGE","tokenCount":60},{"modality":"TEXT","tokenCount":5}]}}"#,
    )
    .unwrap();
    let read = Usage { input: 20, audio_in: 100, image_in: 80, cache_read: 40, cache_read_audio: 80, ..NO_USAGE };
    assert_eq!((usage, usage.total()), (Usage { output: 5, image_out: 60, reasoning: 3, ..read }, 388));
    let usage = response_usage(
        Bedrock,
        r#"{"output":{},"usage":{"inputTokens":10,"outputTokens":5,"totalTokens":325,"cacheReadInputTokens":10,
        "cacheWriteInputTokens":300,"cacheDetails":[{"ttl":"1h","inputTokens":200},{"ttl":"5m","inputTokens":100}]}}"#,
    );
    let expected = Usage { input: 10, output: 5, cache_read: 10, cache_write_5m: 100, cache_write_1h: 200, ..NO_USAGE };
    assert_eq!(usage, Some(expected));
}

/// Usage as clients of Cohere's own API receive it.
#[test]
fn reads_cohere_usage_complete_and_streamed() {
    let usage = r#"{"billed_units":{"input_tokens":9,"output_tokens":4.0},"tokens":{"input_tokens":20,"output_tokens":5},"cached_tokens":8}"#;
    let expected = Some(Usage { input: 12, output: 5, cache_read: 8, ..NO_USAGE });
    let complete = format!(r#"{{"id":"c","message":{{"content":[]}},"finish_reason":"COMPLETE","usage":{usage}}}"#);
    assert_eq!(response_usage(OpenAi, &complete), expected);
    let billed = r#"{"usage":{"billed_units":{"input_tokens":9,"output_tokens":4,"tokens":{"input_tokens":99}}}}"#;
    assert_eq!(response_usage(OpenAi, billed), Some(Usage { input: 9, output: 4, ..NO_USAGE }));
    assert_eq!(response_usage(OpenAi, r#"{"usage":{"tokens":7,"type":"tokens"}}"#), None);
    let events = format!(
        "event: content-delta\ndata: {{\"type\":\"content-delta\",\"delta\":{{\"message\":{{\"content\":{{\"text\":\"a\"}}}}}}}}\n\n\
         event: message-end\ndata: {{\"type\":\"message-end\",\"delta\":{{\"finish_reason\":\"COMPLETE\",\"usage\":{usage}}}}}\n\n"
    );
    let metered = meter_chunks(OpenAi, events.as_bytes().chunks(7));
    assert_eq!((metered.usage, metered.is_terminated, metered.has_error_event), (expected, true, false));
    let failed = "data: {\"type\":\"message-end\",\"delta\":{\"error\":\"broke\",\"usage\":{}}}\n\n";
    assert!(meter_chunks(OpenAi, [failed.as_bytes()]).has_error_event);
}

#[test]
fn reads_vendor_usage_of_bedrock_invoke_responses() {
    let llama = r#"{"generation":"x","prompt_token_count":12,"generation_token_count":5,"stop_reason":"stop"}"#;
    assert_eq!(response_usage(Bedrock, llama), Some(Usage { input: 12, output: 5, ..NO_USAGE }));
    let titan = r#"{"inputTextTokenCount":7,"results":[{"tokenCount":3,"outputText":"a"},{"tokenCount":4}]}"#;
    assert_eq!(response_usage(Bedrock, titan), Some(Usage { input: 7, output: 7, ..NO_USAGE }));
    assert_eq!(response_usage(OpenAi, llama), None);
    assert_eq!(response_usage(Bedrock, r#"{"outputs":[{"text":"x"}],"results":{}}"#), None);
    let from_headers = Usage::from_headers;
    assert_eq!(from_headers(Some("12"), Some("5")), Some(Usage { input: 12, output: 5, ..NO_USAGE }));
    assert_eq!(from_headers(Some("12"), None), Some(Usage { input: 12, ..NO_USAGE }));
    assert_eq!((from_headers(None, None), from_headers(Some("x"), Some("-1"))), (None, None));
}

#[test]
fn reads_service_tier_only_from_the_response_itself() {
    let whole = |api_format, body: &str| response_usage(api_format, body).unwrap().service_tier;
    let cost = r#""usage":{"input_tokens":9,"output_tokens":1}"#;
    for (api_format, body, expected) in [
        (OpenAi, format!(r#"{{{cost},"service_tier":"priority","system_fingerprint":"f"}}"#), ServiceTier::Priority),
        (
            OpenAi,
            format!(r#"{{"service_tier" : "flex","output":[{{"text":"a"}}],{cost},"metadata":{{}}}}"#),
            ServiceTier::Flex,
        ),
        (OpenAi, format!(r#"{{"service_tier":"default",{cost}}}"#), ServiceTier::Standard),
        (OpenAi, format!(r#"{{{cost},"metadata":{{"service_tier":"flex"}}}}"#), ServiceTier::Standard),
        (
            OpenAi,
            format!(r#"{{"tools":[{{"service_tier":"flex"}}],{cost},"x":"\"service_tier\":\"flex\""}}"#),
            ServiceTier::Standard,
        ),
        (
            Anthropic,
            r#"{"usage":{"input_tokens":9,"output_tokens":1,"service_tier":"standard","speed":"fast"}}"#.into(),
            ServiceTier::Fast,
        ),
        (
            Gemini,
            r#"{"usageMetadata":{"promptTokenCount":9,"trafficType":"ON_DEMAND_PRIORITY"}}"#.into(),
            ServiceTier::Priority,
        ),
    ] {
        assert_eq!(whole(api_format, &body), expected, "{body}");
    }
    let streamed = |api_format, events: &[&str]| {
        let events: Vec<_> = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        meter_chunks(api_format, events.iter().map(String::as_bytes)).usage.unwrap().service_tier
    };
    let chunk = |of: &str| format!(r#"{{"model":"m","service_tier":"flex","choices":[]{of}}}"#);
    assert_eq!(streamed(OpenAi, &[&chunk(""), &chunk(&format!(",{cost}"))]), ServiceTier::Flex);
    // The first event has the requested tier, the last one the tier that served the request.
    let response = |kind, tier: &str, of: &str| {
        format!(r#"{{"type":"response.{kind}","response":{{"service_tier":"{tier}","model":"m"{of}}}}}"#)
    };
    let events = [response("created", "priority", ""), response("completed", "default", &format!(",{cost}"))];
    assert_eq!(streamed(OpenAi, &[&events[0], &events[1]]), ServiceTier::Standard);
    let fast = r#"{"type":"message_start","message":{"model":"m","usage":{"input_tokens":9,"speed":"fast"}}}"#;
    assert_eq!(
        streamed(Anthropic, &[fast, r#"{"type":"message_delta","usage":{"output_tokens":1}}"#]),
        ServiceTier::Fast
    );
}

#[test]
fn reads_service_tier_from_the_end_of_a_large_response() {
    let long = "x".repeat(300_000);
    let cost = r#""usage":{"input_tokens":9,"output_tokens":1}"#;
    // The field order of the Responses API: the tier comes before `usage` and after the large output.
    let response = |tier: &str, tools: &str| {
        format!(
            r#"{{"model":"m","output":[{{"text":"{long}"}}],"service_tier":{tier},"tools":[{tools}],{cost},"metadata":{{}}}}"#
        )
    };
    let skimmed = |reply: &str, size: usize| {
        let mut skim = ResponseSkimmer::default();
        reply.as_bytes().chunks(size).for_each(|chunk| skim.feed(chunk));
        let usage = skim.finish(OpenAi).unwrap();
        (usage.service_tier, usage.total())
    };
    let tool = r#"{"name":"f","service_tier":"flex","text":"\"service_tier\":\"flex\""}"#;
    let chat = format!(r#"{{"choices":[{{"text":"{long}"}}],{cost},"service_tier":"flex"}}"#);
    for (reply, expected) in [(response("null", tool), ServiceTier::Standard), (chat, ServiceTier::Flex)] {
        assert_eq!(skimmed(&reply, 1 << 14), (expected, 10), "{}", &reply[300_000..]);
    }
    for (tier, tools, expected) in [
        ("\"flex\"", "", ServiceTier::Flex),
        ("\"priority\"", tool, ServiceTier::Priority),
        ("\"default\"", tool, ServiceTier::Standard),
    ] {
        let reply = response(tier, tools);
        for size in [1 << 14, reply.len()] {
            assert_eq!(skimmed(&reply, size), (expected, 10), "{tier} by {size}");
        }
        // The requested tier may differ from the one that served the request.
        let created = r#"{"type":"response.created","response":{"model":"m","service_tier":"priority"}}"#;
        let completed = format!(r#"{{"type":"response.completed","response":{reply},"sequence_number":9}}"#);
        let events = format!("data: {created}\n\ndata: {completed}\n\n");
        let usage = meter_chunks(OpenAi, events.as_bytes().chunks(1 << 14)).usage.unwrap();
        assert_eq!((usage.service_tier, usage.total()), (expected, 10), "{tier}");
    }
}

#[test]
fn counts_web_searches_besides_tokens() {
    let cost = |searches: u64| {
        format!(
            r#"{{"input_tokens":9,"output_tokens":1,"server_tool_use":{{"web_search_requests":{searches},"web_fetch_requests":5}}}}"#
        )
    };
    let expected = Some(Usage { input: 9, output: 1, tool_uses: tools_with_searches(3), ..NO_USAGE });
    assert_eq!(response_usage(Anthropic, &format!(r#"{{"usage":{}}}"#, cost(3))), expected);
    // A stream repeats the count.
    let events = [
        format!("data: {{\"type\":\"message_start\",\"message\":{{\"model\":\"m\",\"usage\":{}}}}}\n\n", cost(0)),
        format!("data: {{\"type\":\"message_delta\",\"usage\":{}}}\n\n", cost(3)),
    ];
    assert_eq!(meter_chunks(Anthropic, events.iter().map(String::as_bytes)).usage, expected);
    assert_eq!(expected.map(|usage| usage.total()), Some(10));
}

#[test]
fn a_translated_response_reports_its_service_tier() {
    let case = translated_cases().into_iter().find(|case| case.name() == "openrouter/messages/complete").unwrap();
    let (translation, _) = case.translate_request().unwrap();
    let body =
        br#"{"id":"c","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"service_tier":"flex",
        "usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}"#;
    translation.translate_response(body).unwrap();
    assert_eq!(translation.response_context.report.usage().map(|usage| usage.service_tier), Some(ServiceTier::Flex));
}

#[test]
fn all_iterations_of_a_response_are_billed() {
    let compacted = r#"{"input_tokens":181,"cache_read_input_tokens":0,"output_tokens":61,"iterations":[
        {"type":"compaction","input_tokens":100,"cache_read_input_tokens":55096,"output_tokens":30,
         "cache_creation_input_tokens":9,"cache_creation":{"ephemeral_5m_input_tokens":4,"ephemeral_1h_input_tokens":5}},
        {"type":"message","input_tokens":181,"cache_read_input_tokens":0,"output_tokens":61}]}"#;
    let expected =
        Usage { input: 281, output: 91, cache_read: 55096, cache_write_5m: 4, cache_write_1h: 5, ..NO_USAGE };
    assert_eq!(response_usage(Anthropic, &format!(r#"{{"content":[],"usage":{compacted}}}"#)), Some(expected));
    let start = r#"data: {"type":"message_start","message":{"usage":{"input_tokens":100,"cache_read_input_tokens":55096,"output_tokens":1}}}"#;
    let compacted = compacted.replace('\n', " ");
    let stream = format!("{start}\n\ndata: {{\"type\":\"message_delta\",\"delta\":{{}},\"usage\":{compacted}}}\n\n");
    assert_eq!(meter_chunks(Anthropic, [stream.as_bytes()]).usage, Some(expected));
    for none in ["null", "[]", "[{}]", "[[]]"] {
        let usage = format!(r#"{{"usage":{{"input_tokens":3,"output_tokens":2,"iterations":{none}}}}}"#);
        assert_eq!(response_usage(Anthropic, &usage), Some(Usage { input: 3, output: 2, ..NO_USAGE }), "{none}");
    }
}

#[test]
fn a_correction_moves_all_input_to_the_cache() {
    let stream = |first: &str, last: &str| {
        format!(
            "data: {{\"type\":\"message_start\",\"message\":{{\"usage\":{first}}}}}\n\ndata: {{\"type\":\"message_delta\",\"usage\":{last}}}\n\n"
        )
    };
    for (first, last, input, cache_read) in [
        (r#"{"input_tokens":5000}"#, r#"{"input_tokens":0,"cache_read_input_tokens":5000,"output_tokens":2}"#, 0, 5000),
        (
            r#"{"input_tokens":10,"cache_read_input_tokens":50}"#,
            r#"{"input_tokens":0,"cache_read_input_tokens":50,"output_tokens":2}"#,
            10,
            50,
        ),
        (
            r#"{"input_tokens":10,"cache_read_input_tokens":50}"#,
            r#"{"input_tokens":0,"cache_read_input_tokens":0,"output_tokens":2}"#,
            10,
            50,
        ),
    ] {
        let usage = meter_chunks(Anthropic, [stream(first, last).as_bytes()]).usage;
        assert_eq!(usage, Some(Usage { input, cache_read, output: 2, ..NO_USAGE }), "{first} {last}");
    }
}
