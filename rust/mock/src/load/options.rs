//! Command line options of the load client.

use std::fmt::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

pub const USAGE: &str = "\
usage: penstock-load MODE --url http://HOST:PORT/PATH [option…]
  whole   --connections N --seconds S              closed loop, one request after the other on each connection
  rate    --rate R --connections N --seconds S     open loop: latency from the moment a request was due
  stream  --streams N --seconds S [--rounds K]     streams, each repeated until the time is up or K times
  hold    --streams N --seconds S                  N streams opened at once; all must finish
  stuck   --clients N --seconds S                  sends a request and never reads
options: --body FILE · --model NAME (of the built-in chat body) · --method M (GET sends no body) · -H 'Name: value'
         --expect-chunks K (server-sent events in each stream, the opening and closing ones included)
         --within-ms M (streams begin one after the other, spread over this time, and not all at once)";

/// Approximate size of the built-in body, like the requests of the project's benchmarks.
const DEFAULT_BODY_BYTES: usize = 961;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Whole,
    Rate,
    Stream,
    Hold,
    Stuck,
}

#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub mode: Mode,
    pub address: SocketAddr,
    pub connections: usize,
    pub seconds: f64,
    pub rate: f64,
    pub rounds: Option<u64>,
    pub expect_chunks: Option<u64>,
    /// Time over which the starts of the streams are spread.
    pub ramp_up: Duration,
    /// Encoded HTTP request.
    pub request_bytes: Vec<u8>,
}

#[derive(Default)]
struct RawOptions {
    url: Option<String>,
    connections: Option<usize>,
    seconds: Option<f64>,
    rate: Option<f64>,
    rounds: Option<u64>,
    expect_chunks: Option<u64>,
    within_ms: Option<u64>,
    body: Option<String>,
    model: Option<String>,
    method: Option<String>,
    headers: Vec<String>,
}

impl LoadOptions {
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut args = args.into_iter();
        let mode = match args.next().as_deref() {
            Some("whole") => Mode::Whole,
            Some("rate") => Mode::Rate,
            Some("stream") => Mode::Stream,
            Some("hold") => Mode::Hold,
            Some("stuck") => Mode::Stuck,
            _ => return Err(USAGE.to_owned()),
        };
        let mut raw_options = RawOptions::default();
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} takes a value\n{USAGE}"))?;
            raw_options.set_option(&name, value)?;
        }
        raw_options.into_options(mode)
    }
}

impl RawOptions {
    fn set_option(&mut self, name: &str, value: String) -> Result<(), String> {
        match name {
            "--url" => self.url = Some(value),
            "--connections" | "--streams" | "--clients" => {
                self.connections = Some(parse_number(name, &value)?);
            }
            "--seconds" => self.seconds = Some(parse_number(name, &value)?),
            "--rate" => self.rate = Some(parse_number(name, &value)?),
            "--rounds" => self.rounds = Some(parse_number(name, &value)?),
            "--expect-chunks" => self.expect_chunks = Some(parse_number(name, &value)?),
            "--within-ms" => self.within_ms = Some(parse_number(name, &value)?),
            "--body" => self.body = Some(value),
            "--model" => self.model = Some(value),
            "--method" | "-X" => self.method = Some(value),
            "-H" | "--header" => self.headers.push(value),
            _ => return Err(format!("unknown option \"{name}\"\n{USAGE}")),
        }
        Ok(())
    }

    fn into_options(self, mode: Mode) -> Result<LoadOptions, String> {
        let url = self.url.as_deref().ok_or("--url is missing")?;
        let rest = url.strip_prefix("http://").ok_or_else(|| format!("only http:// URLs, not \"{url}\""))?;
        let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        let with_port = if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
        let address = with_port
            .to_socket_addrs()
            .map_err(|error| format!("cannot look up \"{authority}\": {error}"))?
            .next()
            .ok_or_else(|| format!("no address for \"{authority}\""))?;
        let seconds = self.seconds.unwrap_or(5.0);
        let rate = self.rate.unwrap_or(100.0);
        if !(seconds > 0.0 && seconds <= 3600.0 && rate > 0.0) {
            return Err("--seconds is from 0 to 3600 and --rate above 0".to_owned());
        }
        Ok(LoadOptions {
            mode,
            address,
            connections: self.connections.unwrap_or(1).max(1),
            seconds,
            rate,
            rounds: self.rounds.or((mode == Mode::Hold).then_some(1)),
            expect_chunks: self.expect_chunks,
            ramp_up: Duration::from_millis(self.within_ms.unwrap_or(0)),
            request_bytes: self.build_request(mode, authority, path)?,
        })
    }

    fn build_request(&self, mode: Mode, authority: &str, path: &str) -> Result<Vec<u8>, String> {
        let method = self.method.as_deref().unwrap_or("POST");
        let bodyless = matches!(method, "GET" | "HEAD" | "DELETE") && self.body.is_none();
        let body = match &self.body {
            _ if bodyless => Vec::new(),
            Some(file) => std::fs::read(file).map_err(|error| format!("cannot read {file}: {error}"))?,
            None => chat_body(self.model.as_deref().unwrap_or("mock"), mode),
        };
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {authority}\r\n");
        if !bodyless {
            let _ = write!(head, "content-length: {}\r\n", body.len());
            if !self.has_header("content-type") {
                head += "content-type: application/json\r\n";
            }
        }
        for line in &self.headers {
            let (name, value) = line.split_once(':').ok_or_else(|| format!("not a header: \"{line}\""))?;
            let _ = write!(head, "{}: {}\r\n", name.trim(), value.trim());
        }
        head += "\r\n";
        Ok([head.into_bytes(), body].concat())
    }

    fn has_header(&self, header: &str) -> bool {
        self.headers
            .iter()
            .filter_map(|line| line.split_once(':'))
            .any(|(name, _)| name.trim().eq_ignore_ascii_case(header))
    }
}

fn parse_number<T: FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name} takes a number, not \"{value}\""))
}

fn chat_body(model: &str, mode: Mode) -> Vec<u8> {
    let body = |text: &str| {
        let mut body =
            serde_json::json!({"model": model, "max_tokens": 256, "messages": [{"role": "user", "content": text}]});
        if mode == Mode::Stream || mode == Mode::Hold || mode == Mode::Stuck {
            body["stream"] = true.into();
        }
        body.to_string().into_bytes()
    };
    let missing = DEFAULT_BODY_BYTES.saturating_sub(body("").len());
    let text: String = "Tell me about water and gates. ".chars().cycle().take(missing).collect();
    body(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<LoadOptions, String> {
        LoadOptions::parse(line.split(' ').map(str::to_owned))
    }

    #[test]
    fn builds_request_from_command_line() {
        let options =
            parse_line("stream --url http://127.0.0.1:81/v1/x --streams 4 --model mock?chunks=3 -H X-A:b").unwrap();
        let text = String::from_utf8(options.request_bytes).unwrap();
        assert!(text.starts_with("POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:81\r\ncontent-length: 961\r\n"), "{text}");
        assert!(
            text.contains("\r\nX-A: b\r\n\r\n{\"model\":\"mock?chunks=3\"") && text.contains("\"stream\":true"),
            "{text}"
        );
        assert_eq!((options.mode, options.connections, options.rounds), (Mode::Stream, 4, None));
    }

    #[test]
    fn rejects_invalid_command_lines() {
        for line in
            ["walk", "whole", "whole --url https://x/", "rate --url http://127.0.0.1/ --rate x", "whole --speed 9"]
        {
            assert!(parse_line(line).is_err(), "{line}");
        }
    }
}
