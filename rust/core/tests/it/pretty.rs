//! Answers that people read: with `?pretty` they are told with an indent.

use crate::harness::{CHAT, Rig, post, words};
use penstock_mock::Server;
use serde_json::{Value, to_string_pretty};

#[tokio::test]
async fn a_whole_answer_that_is_to_be_pretty_is_told_with_an_indent() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (query, is_pretty) in [("?pretty", true), ("?a=1&pretty=1", true), ("?prettyish", false), ("", false)] {
        for (path, model, status) in
            [(CHAT, "mock", 200), (CHAT, "mock?status=400", 400), (CHAT, "mock?fault=reset", 502)]
        {
            let told = rig.send(post(&format!("{path}{query}"), words(model, false))).await;
            let pretty = to_string_pretty(&told.json()).unwrap();
            assert_eq!(
                (told.status, told.text() == pretty),
                (status, is_pretty),
                "{path}{query} {model}: {}",
                told.text()
            );
            assert_eq!(told.header("content-length"), Some(told.body.len().to_string().as_str()));
            let said: Value = serde_json::from_slice(&told.body).unwrap();
            assert!(said.is_object());
        }
    }
    // On a path that is passed on the word is the provider's, and its answer is as it came.
    let [raw, plain] = [("?pretty", "/v1/proxy/chat/completions"), ("", CHAT)]
        .map(|(query, path)| post(&format!("{path}{query}"), words("mock", false)));
    let (raw, plain) = (rig.send(raw).await, rig.send(plain).await);
    assert!(!raw.text().contains('\n') && !plain.text().contains('\n'), "{}", raw.text());
    let packed = rig.send(post(&format!("{CHAT}?pretty"), words("mock?fault=gzip", false))).await;
    assert_eq!((packed.header("content-encoding"), packed.body[0]), (Some("gzip"), 0x1f));
    let streamed = rig.send(post(&format!("{CHAT}?pretty"), words("mock", true))).await;
    assert!(streamed.text().ends_with("data: [DONE]\n\n"), "{}", streamed.text());
}
