//! Indented JSON for people to read. The query parameter `?pretty` indents a complete response.

use crate::harness::{CHAT_PATH, TestGateway, chat_body, post_request};
use penstock_mock::Server;
use serde_json::{Value, to_string_pretty};

#[tokio::test]
async fn pretty_query_indents_a_complete_response() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (query, is_pretty) in [("?pretty", true), ("?a=1&pretty=1", true), ("?prettyish", false), ("", false)] {
        for (path, model, status) in
            [(CHAT_PATH, "mock", 200), (CHAT_PATH, "mock?status=400", 400), (CHAT_PATH, "mock?fault=reset", 502)]
        {
            let reply = gateway.send(post_request(&format!("{path}{query}"), chat_body(model, false))).await;
            let pretty = to_string_pretty(&reply.json()).unwrap();
            assert_eq!(
                (reply.status, reply.text() == pretty),
                (status, is_pretty),
                "{path}{query} {model}: {}",
                reply.text()
            );
            assert_eq!(reply.header("content-length"), Some(reply.body.len().to_string().as_str()));
            let content: Value = serde_json::from_slice(&reply.body).unwrap();
            assert!(content.is_object());
        }
    }
    // On a pass-through path, the parameter belongs to the provider and the response is unchanged.
    let [raw, plain] = [("?pretty", "/v1/proxy/chat/completions"), ("", CHAT_PATH)]
        .map(|(query, path)| post_request(&format!("{path}{query}"), chat_body("mock", false)));
    let (raw, plain) = (gateway.send(raw).await, gateway.send(plain).await);
    assert!(!raw.text().contains('\n') && !plain.text().contains('\n'), "{}", raw.text());
    let packed = gateway.send(post_request(&format!("{CHAT_PATH}?pretty"), chat_body("mock?fault=gzip", false))).await;
    assert_eq!((packed.header("content-encoding"), packed.body[0]), (Some("gzip"), 0x1f));
    let streamed = gateway.send(post_request(&format!("{CHAT_PATH}?pretty"), chat_body("mock", true))).await;
    assert!(streamed.text().ends_with("data: [DONE]\n\n"), "{}", streamed.text());
}
