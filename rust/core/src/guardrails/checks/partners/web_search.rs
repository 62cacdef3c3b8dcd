//! Web search: adds the results of Exa or Tavily to the last message of the user.

use std::fmt::Write;

use penstock_llm::texts::{TextKind, TextRole};
use serde_json::{Value, json};

use super::{
    BEARER, PARTNER, Partner, PartnerInput, PartnerReply, ROW, SentText, compile, findings::Findings, without_nulls,
};
use crate::guardrails::check::{CheckRow, Stages};

/// Maximum number of characters of a query. Tavily rejects longer queries.
const MAX_QUERY_CHARS: usize = 400;
/// Maximum number of characters of each page, so that all pages fit into a reply.
const MAX_PAGE_CHARS: usize = 3000;

pub(super) const ROWS: &[CheckRow] = &[
    CheckRow {
        id: "exa.online",
        name: "Exa web search",
        description: "searches the web with Exa for the user's last message, and appends what it finds; always passes",
        stages: Stages::Input,
        schema: r#"{"required":["credentials"],"properties":{"prefix":{"type":"string","default":"\n<web_search_context>"},"suffix":{"type":"string","default":"\n</web_search_context>"},"numResults":{"type":"integer","minimum":1,"maximum":20,"default":5},"includeDomains":{"type":"array","maxItems":100,"items":{"type":"string","minLength":1}},"excludeDomains":{"type":"array","maxItems":100,"items":{"type":"string","minLength":1}}}}"#,
        shared: &["credentials", "baseURL", "forwardHeaders", "timeout=10000"],
        compile: |parameters| {
            const EXA: Partner = Partner {
                name: "Exa",
                variant: "text",
                base: "https://api.exa.ai",
                path: "/search",
                headers: &[("x-api-key", "{credentials.apiKey}")],
                build_body: build_exa_query,
                read_reply: read_search_reply,
                may_change: |_| true,
                ..PARTNER
            };
            compile(const { &EXA }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "tavily.online",
        name: "Tavily web search",
        description: "searches the web with Tavily for the user's last message, and appends what it finds; always passes",
        stages: Stages::Input,
        schema: r#"{"required":["credentials"],"properties":{"prefix":{"type":"string","default":"\n<web_search_context>"},"suffix":{"type":"string","default":"\n</web_search_context>"},"maxResults":{"type":"integer","minimum":1,"maximum":20,"default":5},"searchDepth":{"enum":["basic","advanced"],"default":"basic"},"chunksPerSource":{"type":"integer","minimum":1,"maximum":3,"default":3,"description":"parts of each page, if `searchDepth` is `advanced`"},"topic":{"enum":["general","news","finance"],"default":"general"},"timeRange":{"enum":["day","week","month","year"]},"startDate":{"type":"string","pattern":"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},"endDate":{"type":"string","pattern":"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},"includeDomains":{"type":"array","maxItems":100,"items":{"type":"string","minLength":1}},"excludeDomains":{"type":"array","maxItems":100,"items":{"type":"string","minLength":1}},"country":{"type":"string","minLength":1}}}"#,
        shared: &["credentials", "baseURL", "forwardHeaders", "timeout=10000"],
        compile: |parameters| {
            const TAVILY: Partner = Partner {
                name: "Tavily",
                variant: "content",
                base: "https://api.tavily.com",
                path: "/search",
                headers: BEARER,
                build_body: build_tavily_query,
                read_reply: read_search_reply,
                may_change: |_| true,
                ..PARTNER
            };
            compile(const { &TAVILY }, parameters)
        },
        ..ROW
    },
];

/// Returns the last text of the user among the texts of the last message.
fn find_question(texts: &[SentText]) -> Option<usize> {
    texts.iter().rposition(|sent| sent.role == TextRole::User && sent.kind == TextKind::Text)
}

/// Returns the query; `None` if there is nothing to search for. The input of embeddings is not changed.
fn find_query(input: &PartnerInput<'_>) -> Option<String> {
    let question = find_question(input.texts).filter(|_| !input.check.operation.is_embedding())?;
    Some(input.texts[question].text.trim().chars().take(MAX_QUERY_CHARS).collect())
}

fn build_exa_query(input: &PartnerInput<'_>) -> Value {
    let Some(query) = find_query(input) else { return Value::Null };
    let parameters = input.parameters;
    without_nulls(json!({"query": query, "numResults": parameters["numResults"],
        "contents": {"text": {"maxCharacters": MAX_PAGE_CHARS}},
        "includeDomains": parameters["includeDomains"], "excludeDomains": parameters["excludeDomains"]}))
}

fn build_tavily_query(input: &PartnerInput<'_>) -> Value {
    let Some(query) = find_query(input) else { return Value::Null };
    let parameters = input.parameters;
    let is_advanced = parameters["searchDepth"] == "advanced";
    let chunks = if is_advanced { parameters["chunksPerSource"].clone() } else { Value::Null };
    without_nulls(json!({"query": query, "max_results": parameters["maxResults"],
        "search_depth": parameters["searchDepth"], "chunks_per_source": chunks, "topic": parameters["topic"],
        "time_range": parameters["timeRange"], "start_date": parameters["startDate"],
        "end_date": parameters["endDate"], "include_domains": parameters["includeDomains"],
        "exclude_domains": parameters["excludeDomains"], "country": parameters["country"]}))
}

fn read_search_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let results = reply.json["results"].as_array()?;
    let question = find_question(reply.texts)?;
    let mut context = String::new();
    let mut count = 0;
    for result in results {
        let Some(text) = result[reply.variant].as_str().filter(|text| !text.trim().is_empty()) else { continue };
        count += 1;
        let field = |name: &str| result[name].as_str().unwrap_or_default();
        let _ = write!(context, "\n[{count}] {}\n{}\n", field("title"), field("url"));
        let date = ["publishedDate", "published_date"].into_iter().find_map(|name| result[name].as_str());
        if let Some(date) = date {
            let _ = writeln!(context, "{date}");
        }
        context.extend(text.trim().chars().take(MAX_PAGE_CHARS));
    }
    let mut findings =
        Findings { explanation: Some(format!("{count} search results were added")), ..Findings::default() };
    if count > 0 {
        let mut texts: Vec<String> = reply.texts.iter().map(|sent| sent.text.clone()).collect();
        let affix = |name: &str| reply.parameters[name].as_str().unwrap_or_default();
        let _ = write!(texts[question], "{}{context}{}", affix("prefix"), affix("suffix"));
        findings.replaced = Some(texts);
    }
    Some(findings)
}
