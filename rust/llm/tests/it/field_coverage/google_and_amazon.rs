//! Field coverage of requests from Google and Amazon clients.

use penstock_llm::operation::Operation;
use serde_json::{Value, json};

use super::check_fields;

#[test]
fn google_request_fields_are_sent_rejected_or_reported() {
    let base = json!({"contents": [{"role": "user", "parts": [{"text": "What?"}]}]});
    let config = json!({"generationConfig": {"temperature": 0.3, "topP": 0.3, "topK": 7, "maxOutputTokens": 4096,
        "candidateCount": 2, "stopSequences": ["END"], "seed": 7, "presencePenalty": 0.3, "frequencyPenalty": 0.3,
        "responseLogprobs": true, "logprobs": 3, "responseModalities": ["TEXT", "IMAGE"], "mediaResolution": "LOW",
        "speechConfig": {"languageCode": "de"}, "audioTimestamp": true,
        "thinkingConfig": {"thinkingBudget": 2000, "anything": 7}}});
    let build_config = |key: &str| json!({"generationConfig": {key: config["generationConfig"][key]}});
    let declared = json!({"tools": [{"functionDeclarations": [{"name": "f", "description": "d", "behavior": "BLOCKING",
        "parameters": {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}}, "response": {"type": "STRING"}}]}]});
    let build_value = |part: Value| json!({"contents": [{"role": "user", "one": 7, "parts": [{"text": "a"}, part]}]});
    let picture =
        json!({"inlineData": {"mimeType": "image/png", "data": "AAAA", "displayName": "a"}, "mediaResolution": "LOW"});
    let file = json!({"inlineData": {"mimeType": "application/pdf", "data": "AAAA", "displayName": "a.pdf"}});
    let request_with_call = json!({"contents": [{"role": "user", "parts": [{"text": "What?"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"a": 1}, "one": 7}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "42"}, "willContinue": true}}]}]});
    let choice = json!({"tools": declared["tools"], "toolConfig": {"retrievalConfig": {"languageCode": "de"},
        "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f", "g"], "anything": 7}}});
    let rows = [
        ("/generationConfig/temperature", build_config("temperature")),
        ("/generationConfig/topP", build_config("topP")),
        ("/generationConfig/topK", build_config("topK")),
        ("/generationConfig/maxOutputTokens", build_config("maxOutputTokens")),
        ("/generationConfig/candidateCount", build_config("candidateCount")),
        ("/generationConfig/stopSequences", build_config("stopSequences")),
        ("/generationConfig/seed", build_config("seed")),
        ("/generationConfig/presencePenalty", build_config("presencePenalty")),
        ("/generationConfig/frequencyPenalty", build_config("frequencyPenalty")),
        ("/generationConfig/responseLogprobs", build_config("responseLogprobs")),
        ("/generationConfig/logprobs", json!({"generationConfig": {"responseLogprobs": true, "logprobs": 3}})),
        ("/generationConfig/responseModalities", build_config("responseModalities")),
        ("/generationConfig/mediaResolution", build_config("mediaResolution")),
        ("/generationConfig/speechConfig", build_config("speechConfig")),
        ("/generationConfig/audioTimestamp", build_config("audioTimestamp")),
        ("/generationConfig/thinkingConfig", build_config("thinkingConfig")),
        ("/generationConfig/thinkingConfig/anything", build_config("thinkingConfig")),
        ("/systemInstruction", json!({"systemInstruction": {"parts": [{"text": "Brief."}]}})),
        ("/safetySettings", json!({"safetySettings": [{"category": "c", "threshold": "t"}]})),
        ("/cachedContent", json!({"cachedContent": "c"})),
        ("/labels", json!({"labels": {"a": "b"}})),
        ("/anything_new", json!({"anything_new": 7})),
        ("/tools/0", declared.clone()),
        ("/tools/0/functionDeclarations/0/description", declared.clone()),
        ("/tools/0/functionDeclarations/0/behavior", declared.clone()),
        ("/tools/0/functionDeclarations/0/response", declared),
        ("/tools/0", json!({"tools": [{"googleSearch": {}}]})),
        ("/toolConfig/retrievalConfig", choice.clone()),
        ("/toolConfig/functionCallingConfig", choice.clone()),
        ("/toolConfig/functionCallingConfig/anything", choice.clone()),
        ("/toolConfig/functionCallingConfig/allowedFunctionNames", choice),
        ("/contents/0/one", build_value(picture.clone())),
        ("/contents/0/parts/1", build_value(picture.clone())),
        ("/contents/0/parts/1/inlineData/displayName", build_value(picture.clone())),
        ("/contents/0/parts/1/mediaResolution", build_value(picture)),
        ("/contents/0/parts/1", build_value(file.clone())),
        ("/contents/0/parts/1/inlineData/displayName", build_value(file)),
        ("/contents/1/parts/0/functionCall/one", request_with_call.clone()),
        ("/contents/2/parts/0/functionResponse/willContinue", request_with_call),
    ];
    check_fields(Operation::GenerateContent, &base, &rows);
}

#[test]
fn amazon_request_fields_are_sent_rejected_or_reported() {
    let base = json!({"messages": [{"role": "user", "content": [{"text": "What?"}]}]});
    let spec = json!({"toolSpec": {"name": "f", "description": "d", "strict": true, "one": 7,
        "inputSchema": {"json": {"type": "object", "properties": {"a": {"type": "integer"}}}}}});
    let point = json!({"cachePoint": {"type": "default", "ttl": "1h"}});
    let format = json!({"outputConfig": {"one": 7, "textFormat": {"type": "json_schema", "structure": {"jsonSchema":
        {"name": "n", "description": "d", "schema": "{\"type\":\"object\"}"}}}}});
    let inference = json!({"inferenceConfig": {"maxTokens": 4096, "temperature": 0.3, "topP": 0.3, "stopSequences": ["END"],
        "one": 7}});
    let build_value =
        |block: Value| json!({"messages": [{"role": "user", "two": 7, "content": [{"text": "a"}, block]}]});
    let picture = json!({"image": {"format": "png", "source": {"bytes": "AAAA"}, "one": 7}});
    let file = json!({"document": {"format": "pdf", "name": "a", "context": "c", "citations": {"enabled": true},
        "source": {"bytes": "AAAA"}}});
    let request_with_call = json!({"messages": [{"role": "user", "content": [{"text": "What?"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c1", "name": "f", "input": {"a": 1}, "one": 7}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "status": "error", "two": 7,
            "content": [{"text": "42"}]}}]}]});
    let rows = [
        ("/inferenceConfig/maxTokens", inference.clone()),
        ("/inferenceConfig/temperature", inference.clone()),
        ("/inferenceConfig/topP", inference.clone()),
        ("/inferenceConfig/stopSequences", inference.clone()),
        ("/inferenceConfig/one", inference),
        ("/system", json!({"system": [{"text": "Brief."}]})),
        ("/guardrailConfig", json!({"guardrailConfig": {"guardrailIdentifier": "g", "guardrailVersion": "1"}})),
        ("/performanceConfig", json!({"performanceConfig": {"latency": "optimized"}})),
        ("/promptVariables", json!({"promptVariables": {"a": {"text": "b"}}})),
        ("/requestMetadata", json!({"requestMetadata": {"a": "b"}})),
        ("/serviceTier", json!({"serviceTier": {"type": "priority"}})),
        ("/additionalModelRequestFields/top_k", json!({"additionalModelRequestFields": {"top_k": 7}})),
        ("/additionalModelRequestFields/one", json!({"additionalModelRequestFields": {"one": 7}})),
        ("/additionalModelResponseFieldPaths", json!({"additionalModelResponseFieldPaths": ["/a"]})),
        ("/outputConfig", format.clone()),
        ("/outputConfig/one", format.clone()),
        ("/outputConfig/textFormat/structure/jsonSchema/description", format),
        ("/toolConfig/tools/0/toolSpec/strict", json!({"toolConfig": {"tools": [spec]}})),
        ("/toolConfig/tools/0/toolSpec/description", json!({"toolConfig": {"tools": [spec]}})),
        ("/toolConfig/tools/0/toolSpec/one", json!({"toolConfig": {"tools": [spec]}})),
        ("/toolConfig/tools/1", json!({"toolConfig": {"tools": [spec, point]}})),
        ("/toolConfig/tools/1/cachePoint/ttl", json!({"toolConfig": {"tools": [spec, point]}})),
        ("/toolConfig/tools/0", json!({"toolConfig": {"tools": [{"systemTool": {"name": "nova_grounding"}}]}})),
        ("/toolConfig/toolChoice", json!({"toolConfig": {"tools": [spec], "toolChoice": {"any": {}}}})),
        ("/toolConfig/one", json!({"toolConfig": {"tools": [spec], "one": 7}})),
        ("/messages/0/two", build_value(picture.clone())),
        ("/messages/0/content/1", build_value(picture.clone())),
        ("/messages/0/content/1/image/one", build_value(picture)),
        ("/messages/0/content/1", build_value(file.clone())),
        ("/messages/0/content/1/document/name", build_value(file.clone())),
        ("/messages/0/content/1/document/context", build_value(file.clone())),
        ("/messages/0/content/1/document/citations", build_value(file)),
        ("/messages/0/content/1", build_value(point)),
        ("/messages/1/content/0/toolUse/one", request_with_call.clone()),
        ("/messages/2/content/0/toolResult/status", request_with_call.clone()),
        ("/messages/2/content/0/toolResult/two", request_with_call),
    ];
    check_fields(Operation::Converse, &base, &rows);
}
