//! A client, its requests and the responses that it reads to their end.

pub mod scripted;

use std::time::Duration;

use penstock_net::{
    BaseUrl, BodyFraming, Error, IncomingResponse, LookupFn, Origin, OutgoingRequest, Result, Settings, Upstream,
    body::Body,
};

const TEST_TIMEOUT: Duration = Duration::from_secs(10);

pub async fn with_timeout<F: Future>(work: F) -> F::Output {
    tokio::time::timeout(TEST_TIMEOUT, work).await.expect("it ends in time")
}

/// Settings that allow connections to loopback addresses.
pub fn test_settings() -> Settings {
    Settings {
        trusted_hosts: vec!["127.0.0.1".into(), "127.0.0.2".into(), "llm.example".into()],
        idle_timeout: Duration::from_secs(5),
        ..Settings::default()
    }
}

/// Client that may connect to loopback addresses.
pub fn test_client() -> Upstream {
    Upstream::new(&test_settings()).unwrap()
}

/// Client that resolves names with this function.
pub fn client_with_resolver(look_up: LookupFn, settings: &Settings) -> Upstream {
    Upstream::with_resolver(settings, look_up).unwrap()
}

/// A request. Its path is fixed, because each test server has one response.
pub struct TestRequest {
    method: &'static str,
    body: Body,
    is_replayable: bool,
}

impl TestRequest {
    pub fn get() -> Self {
        Self { method: "GET", body: Body::empty(), is_replayable: true }
    }

    pub fn head() -> Self {
        Self { method: "HEAD", ..Self::get() }
    }

    pub fn post() -> Self {
        Self::post_body(Body::Complete("{}".into()))
    }

    pub fn post_body(body: Body) -> Self {
        Self { method: "POST", body, is_replayable: false }
    }

    /// Marks the request as replayable, as an idempotency key does.
    pub fn replayable(mut self) -> Self {
        self.is_replayable = true;
        self
    }

    pub fn render_for(self, origin: &Origin) -> OutgoingRequest {
        let length = self.body.length();
        let framing =
            length.map_or("transfer-encoding: chunked\r\n".into(), |length| format!("content-length: {length}\r\n"));
        let Self { method, body, is_replayable } = self;
        let authority = origin.authority();
        let head = format!("{method} /v1/x HTTP/1.1\r\nhost: {authority}\r\n{framing}\r\n").into_bytes();
        let body_framing = BodyFraming { is_chunked: length.is_none(), is_bodiless: method == "HEAD" };
        OutgoingRequest { head, body, body_framing, is_replayable }
    }
}

/// A response that was read to its end.
#[derive(Debug)]
pub struct TestResponse {
    pub status: u16,
    pub body: Vec<u8>,
    /// Error that ended the body.
    pub error: Option<Error>,
}

impl TestResponse {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// Sends a request and reads the response to its end.
pub async fn send(client: &Upstream, url: &str, request: TestRequest) -> Result<TestResponse> {
    let base = BaseUrl::parse(url).unwrap_or_else(|message| panic!("{url}: {message}"));
    let incoming = with_timeout(client.send(&base.origin, request.render_for(&base.origin))).await?;
    Ok(with_timeout(read_response(incoming)).await)
}

async fn read_response(incoming: IncomingResponse) -> TestResponse {
    let IncomingResponse { head, body: mut source } = incoming;
    let (mut body, mut error) = (Vec::new(), None);
    while let Some(chunk) = source.next_chunk().await {
        match chunk {
            Ok(bytes) => body.extend_from_slice(&bytes),
            Err(failed) => {
                error = Some(failed);
                break;
            }
        }
    }
    TestResponse { status: head.status, body, error }
}
