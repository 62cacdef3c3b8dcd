//! Files and batches: which of them the gateway itself keeps, and the output of a batch that its provider keeps.

pub(crate) mod allowlist;
pub(crate) mod azure_blob_output;
pub mod line_requests;

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use penstock_llm::translation::Translation;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::{
    accounting::record::Facts,
    auth::caller::{self, Caller},
    endpoints::management_proxy,
    error::Error,
    gateway::{Gateway, Request},
    ingress::{
        body::Body,
        headers::{Control, Head},
    },
    request::translate,
    resolve::{target::Target, target_resolver::Call},
    response::{
        delivery::Served,
        outgoing::{Answer, Contents},
    },
    state::{
        shared::memory_budget::Share,
        snapshot::{Key, Snapshot},
    },
};

/// The name under which a request asks for what the gateway keeps.
const OURS: &str = "gateway";
const FILE: &str = "gw_file_";
const BATCH: &str = "gw_batch_";
const BATCHES: &str = "/v1/batches";
const FILES: &str = "/v1/files";
const OUTPUT: &str = "/output";
/// What a batch is said to be is far smaller.
const LARGEST_BATCH: usize = 1024 * 1024;
/// What may stand in a segment of a path as it is.
pub(crate) const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Whether a path is that of files, which are as large as they are.
pub fn is_of_files(path: &str) -> bool {
    path.strip_prefix(FILES).is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// Whether a request is about files and batches that the gateway keeps: by their ids, or because nobody else is named.
pub fn asks_for_ours(snapshot: &Snapshot, head: &Head, aliases: &[String]) -> bool {
    let Some(below) = head.path.strip_prefix(FILES).or_else(|| head.path.strip_prefix(BATCHES)) else {
        return false;
    };
    if !snapshot.has_catalogue || !(below.is_empty() || below.starts_with('/')) {
        return false;
    }
    if below.strip_prefix('/').is_some_and(is_our_id) {
        return true;
    }
    let control = Control::read(&head.headers, aliases);
    match control.provider {
        Some(name) => is_our_name(name, aliases),
        None => control.virtual_key.is_none() && control.config.is_none() && !has_config(snapshot, head, &control),
    }
}

/// Whether a provider is called as the gateway is: by its own name, or by that of the other whose header fields it takes for its own.
fn is_our_name(name: &str, aliases: &[String]) -> bool {
    let other = |alias: &String| alias.strip_prefix("x-").and_then(|alias| alias.strip_suffix('-')) == Some(name);
    name == OURS || aliases.iter().any(other)
}

fn is_our_id(id: &str) -> bool {
    id.starts_with(FILE) || id.starts_with(BATCH)
}

/// Whether the key of a request has a config that says where all its requests go.
fn has_config(snapshot: &Snapshot, head: &Head, control: &Control<'_>) -> bool {
    let passport = caller::passport(snapshot, &head.headers, control).ok().flatten();
    let admitted = caller::admit(passport.as_ref(), snapshot, true, &head.headers, control);
    admitted.is_ok_and(|Caller { key, .. }| key.and_then(Key::config).is_some())
}

/// Whether a request takes a walk of its own: only its body says whose batch it makes, or the answer takes two questions.
pub fn is_apart(snapshot: &Snapshot, head: &Head) -> bool {
    head.path.starts_with(BATCHES) && (makes_one(snapshot, head) || batch_of_output(head).is_some())
}

fn makes_one(snapshot: &Snapshot, head: &Head) -> bool {
    snapshot.has_catalogue && head.method == "POST" && head.path == BATCHES
}

/// The path of the batch whose output is asked for.
fn batch_of_output(head: &Head) -> Option<&str> {
    let path = head.path.strip_suffix(OUTPUT).filter(|_| head.method == "GET")?;
    let id = path.strip_prefix(BATCHES)?.strip_prefix('/')?;
    (!id.is_empty() && !id.contains('/')).then_some(path)
}

/// The walk of a request that is apart.
pub async fn walk(gateway: &Arc<Gateway>, snapshot: Arc<Snapshot>, request: Request) -> Answer {
    let Request { head, body } = request;
    if let Some(path) = batch_of_output(&head) {
        let path = path.to_owned();
        return output(gateway, snapshot, head, path).await;
    }
    if gateway.is_full() || is_of_a_stranger(gateway, &snapshot, &head) {
        // Nothing is read for who is refused there.
        return gateway.walk_on(snapshot, Request { head, body }, None).await;
    }
    match collected(gateway, body).await {
        Ok((bytes, _share)) if takes_ours(&bytes) => management_proxy::forward(gateway, head, Body::Whole(bytes)).await,
        Ok((bytes, share)) => {
            // What goes on to a provider takes its room there: nobody else comes between.
            drop(share);
            gateway.walk_on(snapshot, Request { head, body: Body::Whole(bytes) }, None).await
        }
        Err(error) => gateway.walk_on(snapshot, Request { head, body: Body::empty() }, Some(error)).await,
    }
}

/// Whether nobody here knows who sends a request. Who is known and may not call models may still make batches of ours.
fn is_of_a_stranger(gateway: &Gateway, snapshot: &Snapshot, head: &Head) -> bool {
    let control = Control::read(&head.headers, &gateway.settings.header_aliases);
    let passport = caller::passport(snapshot, &head.headers, &control);
    let require = gateway.settings.require_key;
    let admitted = passport
        .and_then(|passport| caller::admit(passport.as_ref(), snapshot, require, &head.headers, &control).map(|_| ()));
    !matches!(admitted, Ok(()) | Err(Error::KeyForbidden { .. } | Error::TokenForbidden { .. }))
}

/// All of a body, and what it took of the room on its way. One that came whole takes nothing yet.
async fn collected(gateway: &Gateway, body: Body) -> crate::error::Result<(Bytes, Option<Share>)> {
    match body.limited(gateway.body_limits)? {
        body @ Body::Whole(_) => body.collect_apart().await,
        body @ Body::Fed(..) => body.in_room(&gateway.shared.bodies)?.collect_apart().await,
    }
}

/// Whether a batch is to be made of a file that the gateway keeps.
fn takes_ours(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Made<'b> {
        #[serde(borrow)]
        input_file_id: Cow<'b, str>,
    }
    serde_json::from_slice::<Made<'_>>(body).is_ok_and(|made| made.input_file_id.starts_with(FILE))
}

/// Asks the provider which file holds the output, then for what is in it.
async fn output(gateway: &Arc<Gateway>, snapshot: Arc<Snapshot>, head: Head, path: String) -> Answer {
    let mut first = Head { path, headers: head.headers.clone(), ..again(&head) };
    // It is read here.
    first.headers.retain(|name| name != b"accept-encoding");
    let batch = gateway.walk_on(Arc::clone(&snapshot), Request { head: first, body: Body::empty() }, None).await;
    if batch.reply.status != 200 {
        return batch;
    }
    match file_of(whole(batch.body).await) {
        Ok((id, output)) => {
            let output = Some(Box::new(output));
            let path = format!("/v1/files/{}/content", utf8_percent_encode(&id, SEGMENT));
            gateway.walk_on(snapshot, Request { head: Head { path, output, ..head }, body: Body::empty() }, None).await
        }
        Err(status) => gateway.turned_away(&Error::NoOutput { status }, &head),
    }
}

fn again(head: &Head) -> Head {
    Head { method: head.method.clone(), query: head.query.clone(), peer: head.peer, ..Head::default() }
}

/// Ends a batch at a provider that deletes it: what it was is looked at before, for nobody knows it after.
pub(crate) async fn delete(
    gateway: &Gateway,
    call: &Call<'_>,
    target: &Target<'_>,
    translation: Translation,
    facts: &mut Facts,
) -> Result<Served, Error> {
    let [look, end] = ["GET", "DELETE"].map(|method| Head { method: method.into(), ..call.head.clone() });
    let nothing = || (Body::empty(), Some(&translation));
    let (mut found, mut deadline) = gateway.exchange(&translate::look(call, &look), target, nothing(), facts).await?;
    if found.head.status < 300 {
        let end = Call { route: call.route, head: &end, control: call.control };
        let (ended, _) = deadline.bound(gateway.exchange(&end, target, nothing(), facts)).await?;
        found = if ended.head.status < 300 { found } else { ended };
    }
    let told = translate::tell(call, translation, found, &mut deadline).await?;
    Ok(Served::new(told, call.dialect(), deadline))
}

/// What is known of a batch's output before it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// It is in a storage of its customer's, at this address.
    Blob(String),
    /// Its lines are in a file of its provider's, and for this endpoint and model.
    Lines { endpoint: String, model: String },
}

/// What a batch's output is called, and what is known of it; or the state of a batch that has none.
fn file_of(batch: Option<Bytes>) -> Result<(String, Output), String> {
    #[derive(Default, Deserialize)]
    struct Batch {
        #[serde(default)]
        status: String,
        output_file_id: Option<String>,
        output_blob: Option<String>,
        endpoint: Option<String>,
        model: Option<String>,
    }
    let batch: Batch = batch.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let said = |text: Option<String>| text.filter(|text| !text.is_empty());
    if let Some(id) = said(batch.output_file_id) {
        let (endpoint, model) = (batch.endpoint.unwrap_or_default(), batch.model.unwrap_or_default());
        return Ok((id, Output::Lines { endpoint, model }));
    }
    let url = said(batch.output_blob).ok_or(batch.status)?;
    // What its address is signed with is nobody's to read in a record.
    Ok((url.split('?').next().unwrap_or_default().to_owned(), Output::Blob(url)))
}

/// All of an answer; `None` where it is too large, or broke off.
async fn whole(contents: Contents) -> Option<Bytes> {
    let mut stream = match contents {
        Contents::Whole(bytes) => return Some(bytes),
        Contents::Stream(stream) => stream,
    };
    let mut read = Vec::new();
    loop {
        match stream.next().await {
            Ok(Some(bytes)) if read.len() + bytes.len() <= LARGEST_BATCH => read.extend_from_slice(&bytes),
            Ok(None) => return Some(read.into()),
            Ok(Some(_)) | Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: &str = r#"{"epoch":"1","catalogue":true,"keys":[
        {"id":"k","name":"n","sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
         "defaults":{"config_id":"pc-1"}}]}"#;

    fn head(method: &str, path: &str, fields: &[(&str, &str)]) -> Head {
        let headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        Head { method: method.into(), path: path.into(), headers, ..Head::default() }
    }

    #[test]
    fn what_names_nobody_or_is_named_by_our_ids_is_ours() {
        let snapshot = Snapshot::compile(STORE.as_bytes()).unwrap();
        let ours = |path, fields: &[(&str, &str)]| asks_for_ours(&snapshot, &head("GET", path, fields), &[]);
        let openai = ("x-gateway-provider", "openai");
        assert!(
            ours("/v1/files", &[])
                && ours("/v1/batches/x/cancel", &[])
                && ours("/v1/files", &[("x-gateway-provider", "gateway")])
        );
        assert!(ours("/v1/files/gw_file_1/content", &[openai]) && ours("/v1/batches/gw_batch_1", &[openai]));
        assert!(!ours("/v1/files", &[openai]) && !ours("/v1/files/file-1", &[openai]));
        for named in [("x-gateway-config", "pc-2"), ("x-gateway-virtual-key", "v"), ("x-gateway-api-key", "abc")] {
            assert!(!ours("/v1/batches", &[named]), "{named:?}");
        }
        assert!(!ours("/v1/filesystem", &[]) && !ours("/v1/vector_stores/v/files", &[]));
        let named = |name: &str, aliases: &[&str]| {
            let aliases: Vec<_> = aliases.iter().map(|&alias| alias.to_owned()).collect();
            asks_for_ours(&snapshot, &head("GET", "/v1/files", &[("x-gateway-provider", name)]), &aliases)
        };
        assert!(named("portkey", &["x-portkey-"]) && named("gateway", &[]));
        assert!(!named("portkey", &[]) && !named("x-portkey-", &["x-portkey-"]) && !named("portkey", &["x-other-"]));
        let storeless = Snapshot::compile(br#"{"epoch":"1"}"#).unwrap();
        assert!(!asks_for_ours(&storeless, &head("GET", "/v1/files", &[]), &[]));
    }

    #[test]
    fn only_makes_and_outputs_walk_apart() {
        let snapshot = Snapshot::compile(STORE.as_bytes()).unwrap();
        let apart = |method, path| is_apart(&snapshot, &head(method, path, &[]));
        assert!(apart("POST", "/v1/batches") && apart("GET", "/v1/batches/b/output"));
        for (method, path) in [
            ("GET", "/v1/batches"),
            ("GET", "/v1/batches/b"),
            ("POST", "/v1/batches/b/output"),
            ("GET", "/v1/batches//output"),
            ("GET", "/v1/batches/a/b/output"),
            ("POST", "/v1/chat/completions"),
        ] {
            assert!(!apart(method, path), "{method} {path}");
        }
    }

    #[test]
    fn a_batch_of_our_file_is_known_by_its_body() {
        assert!(takes_ours(br#"{"a":[1],"input_file_id":"gw_file_1"}"#));
        for body in [&br#"{"input_file_id":"file-1","metadata":{"input_file_id":"gw_file_1"}}"#[..], b"[]", b"", b"{"] {
            assert!(!takes_ours(body));
        }
    }

    #[test]
    fn the_output_is_in_the_file_that_the_batch_names() {
        let of = |batch: &'static str| file_of(Some(Bytes::from_static(batch.as_bytes())));
        let lines = |endpoint: &str, model: &str| Output::Lines { endpoint: endpoint.into(), model: model.into() };
        let plain = of(r#"{"status":"completed","output_file_id":"file-1"}"#);
        assert_eq!(plain, Ok(("file-1".into(), lines("", ""))));
        let url = "https://a/b?sig=1".to_owned();
        let blob = of(r#"{"output_file_id":null,"output_blob":"https://a/b?sig=1"}"#);
        assert_eq!(blob, Ok(("https://a/b".into(), Output::Blob(url))));
        let both = of(r#"{"output_file_id":"f","output_blob":"https://a/b","endpoint":"/v1/x","model":"m"}"#);
        assert_eq!(both, Ok(("f".into(), lines("/v1/x", "m"))));
        assert_eq!(of(r#"{"status":"validating","output_blob":""}"#), Err("validating".into()));
        assert_eq!(of(r#"{"status":"in_progress","output_file_id":null}"#), Err("in_progress".into()));
        assert_eq!((of("no"), file_of(None)), (Err(String::new()), Err(String::new())));
    }
}
