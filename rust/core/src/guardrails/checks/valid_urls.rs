//! Checks that the URLs in a text exist. A model may have written any of them. So the gateway's policy for addresses
//! applies, no credentials are sent, and only the heads of responses are read.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use crate::guardrails::{
    check::{Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stages, excerpt, read_parameters},
    host_access::{CheckJob, HostAccess, HostChoice, HostRequest},
    text_scope::TextScope,
};

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "default.validUrls",
    alias: None,
    name: "Valid URLs",
    description: "passes if all URLs in the text answer a `HEAD` request with a status from 200 to 299, at most 50; private addresses are not called",
    stages: Stages::Both,
    secrets: &[],
    schema: r#"{"properties":{"onlyDNS":{"type":"boolean","default":false,"description":"true: it suffices that the host has an address"}}}"#,
    shared: &["not", "scope", "timeout=3000"],
    compile: ValidUrls::compile,
}];

/// Maximum number of URLs in a text. A text with more fails.
const MAX_URLS: usize = 50;
/// Maximum number of URLs that are called at the same time.
const MAX_CALLS: usize = 8;
const MAX_REDIRECTS: usize = 3;
/// Name of the client in requests, because some sites reject clients without a name.
const USER_AGENT: &str = "URLValidator/1.0";

#[derive(Debug, Clone, Copy)]
struct ValidUrls {
    only_dns: bool,
    not: bool,
    scope: TextScope,
    timeout: Duration,
}

impl ValidUrls {
    fn compile(parameters: Value) -> CompileResult {
        #[derive(Deserialize)]
        struct ValidUrlsParameters {
            #[serde(default, rename = "onlyDNS")]
            only_dns: bool,
            #[serde(default)]
            not: bool,
            #[serde(default)]
            scope: TextScope,
            timeout: u64,
        }
        let ValidUrlsParameters { only_dns, not, scope, timeout } = read_parameters(parameters)?;
        Ok(Box::new(Self { only_dns, not, scope, timeout: Duration::from_millis(timeout) }))
    }

    fn outcome(self, urls: &[String], valid: &[bool], excerpt: &str) -> CheckOutcome {
        let method = if self.only_dns { "DNS lookup" } else { "HTTP request" };
        let of = |is_wanted: bool| -> Vec<_> {
            urls.iter().zip(valid).filter(|(_, is_valid)| **is_valid == is_wanted).map(|(url, _)| url).collect()
        };
        let (valid, invalid) = (of(true), of(false));
        let is_too_many = urls.len() > MAX_URLS;
        let all_are_valid = invalid.is_empty() && valid.len() == urls.len();
        let verdict = !urls.is_empty() && !is_too_many && all_are_valid != self.not;
        let explanation = match (urls.len(), is_too_many) {
            (0, _) => "the text has no URL".to_owned(),
            (count, true) => format!("the text has {count} URLs, more than {MAX_URLS}"),
            (count, false) => format!("{} of {count} URLs are valid", valid.len()),
        };
        CheckOutcome::new(
            verdict,
            json!({"verdict": verdict, "not": self.not, "explanation": explanation, "validUrls": valid,
                "invalidUrls": invalid, "validationMethod": method, "textExcerpt": excerpt}),
        )
    }

    async fn is_valid(self, hosts: &dyn HostAccess, url: &str) -> bool {
        if self.only_dns {
            let address = url.split(['?', '#']).next().unwrap_or_default();
            return tokio::time::timeout(self.timeout, hosts.resolve(address))
                .await
                .is_ok_and(|addresses| addresses.is_ok());
        }
        let calls = self.follow(hosts, url);
        tokio::time::timeout(self.timeout, calls).await.unwrap_or_default()
    }

    /// Calls a URL and those to which it redirects, each under the policy for addresses.
    async fn follow(self, hosts: &dyn HostAccess, url: &str) -> bool {
        let Ok(mut url) = Url::parse(url) else { return false };
        for _ in 0..=MAX_REDIRECTS {
            url.set_fragment(None);
            let request = HostRequest {
                method: "HEAD",
                url: url.as_str().to_owned(),
                headers: vec![
                    ("user-agent".to_owned(), USER_AGENT.to_owned()),
                    ("accept".to_owned(), "*/*".to_owned()),
                ],
                body: None,
                timeout: self.timeout,
                max_body_bytes: 0,
                chosen_by: HostChoice::Content,
            };
            let Ok(reply) = hosts.send(request).await else { return false };
            let location = reply.headers.get_str("location").filter(|_| (300..400).contains(&reply.status));
            match location.and_then(|location| url.join(location).ok()) {
                Some(next) => url = next,
                None => return (200..300).contains(&reply.status),
            }
        }
        false
    }
}

/// Returns the different URLs in a text, in their order.
fn find_urls(text: &str) -> Vec<String> {
    let is_end = |letter: char| letter.is_whitespace() || letter.is_control() || "\"'<>`{}|\\^[],".contains(letter);
    let (mut urls, mut known, mut at) = (Vec::new(), HashSet::new(), 0);
    while let Some(mark) = text[at..].find("://") {
        let mark = at + mark;
        at = mark + 3;
        let scheme = ["https", "http"].into_iter().find(|scheme| {
            mark.checked_sub(scheme.len())
                .and_then(|start| text.get(start..mark))
                .is_some_and(|scheme_of_url| scheme_of_url.eq_ignore_ascii_case(scheme))
        });
        let Some(scheme) = scheme else { continue };
        let end = text[at..].find(is_end).map_or(text.len(), |length| at + length);
        let mut url = text[mark - scheme.len()..end].trim_end_matches(['.', ';', ':', '!', '?', '*', '_']);
        // A closing bracket belongs to the sentence if the URL has no opening one.
        while url.ends_with(')') && url.matches('(').count() < url.matches(')').count() {
            url = url[..url.len() - 1].trim_end_matches(['.', ';', ':', '!', '?']);
        }
        at = end;
        if known.insert(url.to_owned()) {
            urls.push(url.to_owned());
        }
    }
    urls
}

impl Check for ValidUrls {
    fn run(&self, _input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        Err(CheckError::new("other hosts cannot be called here"))
    }

    fn job(&self, input: &CheckInput<'_>) -> Option<CheckJob> {
        let (check, selected) = (*self, input.select(self.scope, false));
        let (urls, excerpt) = (find_urls(&selected.text), excerpt(&selected.text));
        Some(Box::new(move |hosts: Arc<dyn HostAccess>| {
            async move {
                let called: Vec<String> = if urls.len() > MAX_URLS { Vec::new() } else { urls.clone() };
                let calls: Vec<BoxFuture<'_, bool>> =
                    called.iter().map(|url| check.is_valid(&*hosts, url).boxed()).collect();
                let valid: Vec<bool> = stream::iter(calls).buffered(MAX_CALLS).collect().await;
                Ok(check.outcome(&urls, &valid, &excerpt))
            }
            .boxed()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_found_without_the_sentence_around_them() {
        let text = "See https://a.example/x_(y), (http://b.example/z?q=1#f). HTTPS://C.example! ftp://d.example \
            [e](https://e.example/ü) https://a.example/x_(y) xhttp://f.example";
        assert_eq!(
            find_urls(text),
            [
                "https://a.example/x_(y)",
                "http://b.example/z?q=1#f",
                "HTTPS://C.example",
                "https://e.example/ü",
                "http://f.example"
            ]
        );
        assert!(find_urls("no url, ://x").is_empty());
    }

    #[test]
    fn a_text_with_too_many_urls_fails() {
        let check = ValidUrls { only_dns: false, not: true, scope: TextScope::All, timeout: Duration::from_secs(1) };
        let urls: Vec<String> = (0..=MAX_URLS).map(|number| format!("https://{number}.example")).collect();
        assert!(!check.outcome(&urls, &[], "").verdict && !check.outcome(&[], &[], "").verdict);
    }
}
