//! Tests of the bounds that bodies set.

use serde_json::{Value, json};

use super::*;

fn parse_as(operation: Operation, body: &Value) -> BodyBounds {
    BodyBounds::parse(body.to_string().as_bytes(), operation)
}

fn parse(body: &Value) -> BodyBounds {
    parse_as(Operation::ChatComplete, body)
}

fn content(part: &Value) -> BodyBounds {
    parse(&json!({"messages": [{"role": "user", "content": [part]}]}))
}

#[test]
fn reads_limits_of_responses_in_all_formats() {
    use Operation::{ChatComplete, Complete, Converse, CreateModelResponse, GenerateContent, InvokeModel, Messages};
    for (operation, body, expected) in [
        (ChatComplete, json!({}), None),
        (ChatComplete, json!({"max_tokens": 5}), Some(5)),
        (ChatComplete, json!({"max_tokens": 5, "max_completion_tokens": 9, "n": 3}), Some(27)),
        (Messages, json!({"max_tokens": 8}), Some(8)),
        (CreateModelResponse, json!({"max_output_tokens": 7}), Some(7)),
        (GenerateContent, json!({"generationConfig": {"maxOutputTokens": 4, "candidateCount": 2}}), Some(8)),
        (GenerateContent, json!({"generation_config": {"max_output_tokens": 4}}), Some(4)),
        (Converse, json!({"inferenceConfig": {"maxTokens": 6}}), Some(6)),
        (InvokeModel, json!({"anthropic_version": "v", "max_tokens": 3}), Some(3)),
        (InvokeModel, json!({"prompt": "x", "max_gen_len": 3}), Some(3)),
        (InvokeModel, json!({"inputText": "x", "textGenerationConfig": {"maxTokenCount": 3}}), Some(3)),
        (InvokeModel, json!({"inferenceConfig": {"max_new_tokens": 3}}), Some(3)),
        (Complete, json!({"prompt": ["a", "b", [1, 2]], "max_tokens": 10, "best_of": 2}), Some(60)),
        (Complete, json!({"prompt": "a", "max_tokens": 10}), Some(10)),
        (ChatComplete, json!({"max_tokens": null, "n": null, "generationConfig": null}), None),
        (ChatComplete, json!({"max_tokens": "many"}), None),
        (ChatComplete, json!({"max_tokens": -1}), None),
        // Decoders of some providers ignore the case of keys, or respect parameters of other providers.
        (ChatComplete, json!({"max_tokens": 5, "Max_Tokens": 900, "N": 2}), Some(1800)),
        (ChatComplete, json!({"max_tokens": 5, "max_new_tokens": 900}), Some(900)),
        (ChatComplete, json!({"max_tokens": 5, "num_return_sequences": 3}), Some(15)),
        (
            Converse,
            json!({"inferenceConfig": {"maxTokens": 6}, "additionalModelRequestFields": {"max_tokens": 9}}),
            Some(9),
        ),
    ] {
        let bounds = parse_as(operation, &body);
        assert_eq!(bounds.output_tokens(), expected, "{operation:?} {body}");
    }
    let cut_off = BodyBounds::parse(b"{\"max_tokens\": 5,", ChatComplete);
    assert_eq!(cut_off.output_tokens(), None);
}

#[test]
fn limits_that_a_translation_drops_only_raise_the_bound() {
    use Operation::{ChatComplete, Complete, Converse, CreateModelResponse, GenerateContent, InvokeModel, Messages};
    for (operation, body) in [
        (ChatComplete, json!({"max_new_tokens": 9})),
        (ChatComplete, json!({"max_output_tokens": 9})),
        (ChatComplete, json!({"Max_Tokens": 9})),
        (ChatComplete, json!({"options": {"num_predict": 9}})),
        (ChatComplete, json!({"extra_body": {"max_tokens": 9}})),
        (ChatComplete, json!({"toolConfig": {"maxTokens": 9}})),
        (ChatComplete, json!({"generationConfig": {"maxOutputTokens": 9}})),
        (Complete, json!({"max_completion_tokens": 9})),
        (Messages, json!({"max_tokens_to_sample": 9})),
        (CreateModelResponse, json!({"max_tokens": 9})),
        (GenerateContent, json!({"maxOutputTokens": 9})),
        (GenerateContent, json!({"GenerationConfig": {"maxOutputTokens": 9}})),
        (GenerateContent, json!({"extra_body": {"generationConfig": {"maxOutputTokens": 9}}})),
        (Converse, json!({"additionalModelRequestFields": {"max_tokens": 9}})),
        (Converse, json!({"max_tokens": 9})),
        (InvokeModel, json!({"anthropic_version": "v", "max_gen_len": 9})),
        (InvokeModel, json!({"max_gen_len": 9, "anthropic_version": "v"})),
    ] {
        let bounds = parse_as(operation, &body);
        assert_eq!((bounds.output_tokens(), bounds.min_output_tokens()), (None, 9), "{operation:?} {body}");
    }
}

#[test]
fn limit_that_is_set_twice_has_no_bound() {
    for (operation, body) in [
        (Operation::ChatComplete, r#"{"max_tokens": 5, "max_tokens": 900}"#),
        (Operation::ChatComplete, r#"{"max_tokens": 5, "max_tokens": null}"#),
        (Operation::GenerateContent, r#"{"generationConfig": {"maxOutputTokens": 5}, "generationConfig": {}}"#),
        (Operation::GenerateContent, r#"{"generationConfig": {}, "generation_config": {"maxOutputTokens": 5}}"#),
        (Operation::GenerateContent, r#"{"generationConfig": {"maxOutputTokens": null, "max_output_tokens": 5}}"#),
        (Operation::Converse, r#"{"inferenceConfig": {"maxTokens": 5}, "inferenceConfig": null}"#),
    ] {
        assert!(BodyBounds::parse(body.as_bytes(), operation).unbounded.is_some(), "{body}");
    }
    let both = json!({"max_tokens": 5, "max_completion_tokens": null});
    assert_eq!(parse(&both).unbounded, None);
}

#[test]
fn finds_tools_of_providers_among_those_of_clients() {
    use Operation::{ChatComplete, Converse, GenerateContent, Messages};
    for (operation, tools, tool) in [
        (ChatComplete, json!([{"functionDeclarations": [], "googleSearch": {}}]), Some("googleSearch")),
        (GenerateContent, json!([{"functionDeclarations": [{"name": "f"}], "googleSearch": {}}]), Some("googleSearch")),
        (GenerateContent, json!([{"googleSearch": {}, "input_schema": {}}]), Some("googleSearch")),
        (GenerateContent, json!([{"codeExecution": {}, "type": "function"}]), Some("codeExecution")),
        (GenerateContent, json!({"googleSearch": {}}), Some("googleSearch")),
        (Converse, json!([{"systemTool": {"name": "nova_grounding"}, "toolSpec": {}}]), Some("systemTool")),
        (ChatComplete, json!({"type": "web_search"}), Some("web_search")),
        (ChatComplete, json!({"googleSearch": {}}), Some("googleSearch")),
        (GenerateContent, json!([{"function_declarations": [{"name": "f"}]}]), None),
        (GenerateContent, json!({"functionDeclarations": [{"name": "f"}], "googleSearch": null}), None),
        (Converse, json!([{"toolSpec": {}}, {"cachePoint": {"type": "default"}}]), None),
        (Messages, json!([{"name": "f", "input_schema": {"type": "object"}, "cache_control": {}}]), None),
        (ChatComplete, json!({"type": "function", "function": {"name": "f"}}), None),
    ] {
        let bounds = parse_as(operation, &json!({"tools": tools}));
        let expected = tool.map(|tool| format!("the provider's tool `{tool}`"));
        assert_eq!((bounds.unbounded, bounds.has_tools), (expected, true), "{operation:?} {tools}");
    }
    for tools in [json!(["web_search"]), json!([[{"type": "function"}]])] {
        assert!(parse(&json!({"tools": tools})).unbounded.is_some(), "{tools}");
    }
}

#[test]
fn counts_images_in_all_formats() {
    for part in [
        json!({"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}),
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}),
        json!({"image": {"format": "png", "source": {"bytes": "AA"}}}),
        json!({"inlineData": {"mimeType": "image/png", "data": "AA"}}),
        json!({"image_url": {"url": "https://a.example/b.png"}}),
        json!({"type": "image", "image": "https://a.example/b.png"}),
        json!({"type": "tool_result", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}),
        json!({"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": "x"}}),
        json!({"type": "image_base64", "image_base64": "data:image/png;base64,AA"}),
        json!({"toolResult": {"content": [{"image": {"source": {"bytes": "AA"}}}]}}),
        json!({"functionResponse": {"response": {}, "parts": [{"inlineData": {"mimeType": "image/png"}}]}}),
    ] {
        let bounds = content(&part);
        assert_eq!((bounds.images, bounds.unbounded), (1, None), "{part}");
    }
    let images = json!({"messages": [{"role": "user", "content": "x", "images": ["AA", "AA"]}]});
    assert_eq!(parse(&images).images, 2);
    let embedded = json!({"input": [{"image": "https://a.example/b.png"}, {"text": "x"}], "images": ["AA"]});
    assert_eq!(parse(&embedded).images, 2);
    assert_eq!(parse(&json!({"Images": ["AA", "AA"]})).images, 2);
    assert_eq!(parse(&json!({"messages": [{"role": "user", "content": "x", "Images": ["AA"]}]})).images, 1);
}

#[test]
fn finds_what_has_no_bound() {
    for part in [
        json!({"type": "file", "file": {"file_id": "f"}}),
        json!({"type": "input_file", "file_url": "https://a.example/b.pdf"}),
        json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"}}),
        json!({"type": "video_url", "video_url": {"url": "https://a.example/b.mp4"}}),
        json!({"fileData": {"fileUri": "gs://a/b"}}),
        json!({"inlineData": {"mimeType": "video/mp4", "data": "AA"}}),
        json!({"document": {"format": "pdf", "source": {"bytes": "AA"}}}),
        json!({"type": "document_url", "document_url": "https://a.example/b.pdf"}),
        json!({"type": "audio_url", "audio_url": {"url": "https://a.example/b.mp3"}}),
        json!({"type": "input_audio", "input_audio": {"data": "HTTPS://a.example/b.mp3"}}),
        json!({"audio": {"format": "mp3", "source": {"s3Location": {"uri": "s3://a/b"}}}}),
        json!({"audio": {"format": "mp3", "source": {"bytes": "AA", "s3Location": {"uri": "s3://a/b"}}}}),
        json!({"audio": {"id": "audio_1", "source": {"bytes": "AA"}}}),
        json!({"type": "document", "document": {"id": "d"}}),
        json!({"type": "document", "document": {"data": "x", "format": "pdf", "source": {"bytes": "AA"}}}),
        json!({"type": "document", "document": {"data": "https://a.example/b.pdf"}}),
        json!({"type": "document", "document": {"data": "x"}, "source": {"type": "url", "url": "x"}}),
        json!({"document": [{"type": "file"}]}),
        json!({"type": "image_generation_call", "id": "ig_1"}),
        json!({"type": "invented", "url": "https://a.example"}),
    ] {
        assert!(content(&part).unbounded.is_some(), "{part}");
    }
    for body in [
        json!({"previous_response_id": "r", "input": "hi"}),
        json!({"prompt": {"id": "p"}}),
        json!({"input": [{"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "x"}]}]}),
        json!({"input": [{"type": "reasoning", "id": "r", "content": [], "encrypted_content": null}]}),
        json!({"input": [{"type": "item_reference", "id": "msg_1"}]}),
        json!({"input": [{"id": "msg_1"}]}),
        json!({"documents": [{"type": "video_url", "video_url": "https://a.example/b.mp4"}]}),
        json!({"documents": [{"text": "x", "file_id": "f"}]}),
        json!({"tools": [{"type": "web_search"}]}),
        json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        json!({"tools": [{"googleSearch": {}}]}),
        json!({"web_search_options": {}}),
        json!({"cachedContent": "c"}),
        json!({"extra_body": {"google": {"cached_content": "c"}}}),
        json!({"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}),
        json!({"toolConfig": {"tools": [{"systemTool": {"name": "nova_grounding"}}]}}),
        json!({"search_parameters": {"mode": "on"}}),
        json!({"data_sources": [{"type": "azure_search"}]}),
        json!({"models": ["another"]}),
        json!({"prediction": {"type": "content", "content": "x"}}),
        json!({"max_tokens": 0}),
        json!({"generationConfig": {"maxOutputTokens": 0}}),
        json!({"max_tokens": 5, "max_completion_tokens": "900"}),
        json!({"max_tokens": -1}),
        json!({"max_tokens": 5, "n": "1000"}),
        json!({"max_tokens": 5, "n": 1000.0}),
        json!({"max_tokens": 5, "n": [2]}),
        json!({"generationConfig": {"maxOutputTokens": 5, "candidateCount": "8"}}),
    ] {
        assert!(parse(&body).unbounded.is_some(), "{body}");
    }
    let huge = BodyBounds::parse(br#"{"max_tokens": 1e400, "n": 1000}"#, Operation::ChatComplete);
    assert!(huge.unbounded.is_some());
}

#[test]
fn text_and_tools_of_clients_are_bounded() {
    for body in [
        json!({"messages": [{"role": "user", "content": "a file_id in a text"}], "tools": [{"type": "function",
            "function": {"name": "f", "parameters": {"properties": {"file_id": {"type": "file"}}}}}]}),
        json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "read",
            "input": {"file_id": "f", "type": "file"}}]}], "tools": [{"name": "read", "input_schema": {}}]}),
        json!({"contents": [{"parts": [{"functionCall": {"name": "f", "args": {"fileUri": "x"}}}]}],
            "tools": [{"functionDeclarations": []}]}),
        json!({"messages": [{"role": "user", "content": [{"type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "x"}}]}]}),
        json!({"previous_response_id": null, "tools": []}),
        json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "x",
            "cache_control": {"type": "ephemeral"}}, {"type": "input_audio", "input_audio": {"data": "AA"}}]},
            {"role": "assistant", "audio": null, "annotations": [{"type": "url_citation"}], "tool_calls":
            [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]}),
        json!({"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "x"}],
                "encrypted_content": "AA"},
            {"type": "reasoning", "id": "r", "content": [{"type": "reasoning_text", "text": "x"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]},
            {"type": "function_call", "arguments": "{}"}, {"type": "function_call_output", "output": "x"},
            {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"]}}]}),
        json!({"messages": [{"role": "user", "content": [{"text": "x"}, {"cachePoint": {"type": "default"}}]}],
            "toolConfig": {"tools": [{"toolSpec": {}}, {"cachePoint": {"type": "default"}}]}}),
    ] {
        let bounds = parse(&body);
        assert_eq!((bounds.unbounded, bounds.images), (None, 0), "{body}");
    }
}

#[test]
fn ordinary_parts_of_all_formats_are_bounded() {
    for part in [
        json!({"type": "document", "document": {"id": "d", "data": {"title": "x", "type": "faq"}}}),
        json!({"type": "document", "document": {"data": "x"}}),
        json!({"audio": {"format": "mp3", "source": {"bytes": "AA"}}}),
    ] {
        assert_eq!(content(&part).unbounded, None, "{part}");
    }
    let thoughts = json!([{"type": "reasoning.text", "text": "x", "id": null, "signature": "AA"},
        {"type": "reasoning.summary", "summary": "x"}, {"type": "reasoning.encrypted", "id": "r", "data": "AA"}]);
    for body in [
        json!({"messages": [{"role": "assistant", "content": "x", "reasoning_details": thoughts}]}),
        json!({"tools": [{"type": "computer"}], "input": [
            {"type": "computer_call", "call_id": "c", "actions": [{"type": "click", "x": 1, "y": 2}],
                "pending_safety_checks": [{"id": "s", "code": "c", "message": "m"}]},
            {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "x", "stderr": "",
                "outcome": {"type": "exit", "exit_code": 0}}]}]}),
        json!({"documents": [{"text": "x", "type": "faq"}, "y", {"data": {"type": "faq", "title": "x"}}]}),
        json!({"inputs": [{"content": [{"type": "text", "text": "x"}]}]}),
    ] {
        let bounds = parse(&body);
        assert_eq!((bounds.unbounded, bounds.images), (None, 0), "{body}");
    }
    assert_eq!(parse(&json!({"documents": [{"image": "https://a.example/b.png"}]})).images, 1);
}
