//! Paths as lenient servers read them: percent-encoded, in other case, with empty segments or path parameters. A client
//! must not avoid a check of the gateway by another spelling of the same path.

use penstock_llm::operation::Operation;
use percent_encoding::percent_decode;

/// Maximum number of times that a path is decoded. Servers behind proxies decode a path more than once.
const MAX_DECODINGS: usize = 3;
/// Segments that clients put before the path of an operation, because of their base URL.
const BASE_SEGMENTS: [&str; 3] = ["v1", "proxy", "openai"];
/// Version segments that Google's API has before `openai`.
const GOOGLE_VERSIONS: [&str; 3] = ["v1beta", "v1alpha", "v1beta1"];
/// Segments before the name of a deployment. The path of an operation follows the name.
const DEPLOYMENT_SEGMENTS: [&str; 2] = ["deployments", "engines"];

/// Returns the path decoded, in lower case, without empty segments and path parameters. The work is linear in the path.
pub fn read_leniently(path: &str) -> String {
    let mut decoded = path.as_bytes().to_vec();
    for _ in 0..MAX_DECODINGS {
        let next: Vec<u8> = percent_decode(&decoded).collect();
        let is_plain = next.len() == decoded.len();
        decoded = next;
        if is_plain {
            break;
        }
    }
    let text = String::from_utf8_lossy(&decoded).to_ascii_lowercase();
    let mut plain = String::with_capacity(text.len());
    for segment in text.split(['/', '\\']) {
        let end = segment.find([';', '?', '#', '\0']).unwrap_or(segment.len());
        let name = segment[..end].trim_matches(|character: char| character.is_whitespace() || character.is_control());
        let name = name.trim_end_matches('.');
        if !name.is_empty() {
            plain.push('/');
            plain.push_str(name);
        }
    }
    plain
}

/// Returns true if every server reads a path as it is written: it has no escapes, capitals, dot segments or double
/// slashes.
pub fn is_plain(path: &str) -> bool {
    let is_plain_byte = |byte: u8| byte.is_ascii_graphic() && !byte.is_ascii_uppercase() && !b"%;\\?#".contains(&byte);
    let bytes = path.as_bytes();
    let ends_oddly = |pair: &[u8]| pair[1] == b'/' && matches!(pair[0], b'/' | b'.');
    bytes.iter().all(|byte| is_plain_byte(*byte))
        && !bytes.windows(2).any(ends_oddly)
        && !path.ends_with(['/', '.'])
        && strip_repeated_version(path).len() == path.len()
}

/// Returns the path with a single `/v1` at its beginning. Clients whose base URL ends in `/v1` repeat it.
pub fn strip_repeated_version(path: &str) -> &str {
    let mut path = path;
    while let Some(rest) = path.strip_prefix("/v1").filter(|rest| rest.starts_with("/v1/") || *rest == "/v1") {
        path = rest;
    }
    path
}

/// Returns the operation of a request whose path has another spelling or base than the gateway's routes. `path` is the
/// part after `/v1` or `/v1/proxy`.
pub fn find_operation(method: &str, path: &str) -> Operation {
    let plain = read_leniently(path);
    let rest = strip_base(&plain);
    match Operation::from_spelled_path(method, rest) {
        Operation::Proxy if method.eq_ignore_ascii_case("POST") => find_google_operation(rest),
        operation => operation,
    }
}

/// Strips the segments of base URLs before the path of an operation, such as `/openai/deployments/my-gpt`.
fn strip_base(path: &str) -> &str {
    let mut path = path;
    loop {
        let Some((first, rest)) = split_segment(path) else { return path };
        let stripped = if BASE_SEGMENTS.contains(&first) {
            Some(rest)
        } else if GOOGLE_VERSIONS.contains(&first) {
            Some(rest).filter(|rest| rest.starts_with("/openai/"))
        } else if DEPLOYMENT_SEGMENTS.contains(&first) {
            split_segment(rest).map(|(_, rest)| rest)
        } else {
            None
        };
        match stripped {
            Some(rest) => path = rest,
            None => return path,
        }
    }
}

/// Splits a path after its first segment; `None` if no other segment follows.
fn split_segment(path: &str) -> Option<(&str, &str)> {
    let path = path.strip_prefix('/')?;
    Some(path.split_at(path.find('/')?))
}

/// Returns the operation that Google's API names after a colon, wherever the model is in the path.
fn find_google_operation(path: &str) -> Operation {
    let last = path.rsplit('/').next().unwrap_or_default();
    match last.rsplit_once(':').map(|(_, verb)| verb) {
        Some("generatecontent") => Operation::GenerateContent,
        Some("streamgeneratecontent") => Operation::StreamGenerateContent,
        Some("embedcontent") => Operation::EmbedContent,
        Some("batchembedcontents") => Operation::BatchEmbedContents,
        Some("counttokens") => Operation::CountTokens,
        _ => Operation::Proxy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_other_spellings_of_a_path() {
        for path in [
            "/chat/complet%69ons",
            "//chat/completions",
            "/chat//completions/",
            "/chat;a=b/completions;c",
            "/Chat/COMPLETIONS",
            "/chat%2Fcompletions",
            "/chat\\completions",
            "/chat/complet%2569ons",
            "/chat/completions%20",
            "/chat/completions%00",
            "/chat/completions.",
            "/chat/completions%3Fx",
        ] {
            assert_eq!(read_leniently(path), "/chat/completions", "{path}");
            assert_eq!(find_operation("POST", path), Operation::ChatComplete, "{path}");
        }
    }

    #[test]
    fn finds_operations_behind_other_bases() {
        for (path, operation) in [
            ("/openai/deployments/my-gpt/chat/completions", Operation::ChatComplete),
            ("/openai/v1/responses", Operation::CreateModelResponse),
            ("/v1/v1/messages", Operation::Messages),
            ("/proxy/v1/embeddings", Operation::Embed),
            ("/engines/davinci/completions", Operation::Complete),
            ("/v1beta/openai/chat/completions", Operation::ChatComplete),
            ("/v1beta/models/g:generateContent", Operation::GenerateContent),
            (
                "/v1/projects/p/locations/l/publishers/google/models/g:streamGenerateContent",
                Operation::StreamGenerateContent,
            ),
            ("/Model/m/Converse", Operation::Converse),
            ("/threads/t/messages", Operation::Proxy),
            ("/v1beta/batches", Operation::Proxy),
            ("/models/gpt%2F4", Operation::Proxy),
        ] {
            assert_eq!(find_operation("POST", path), operation, "{path}");
        }
        assert_eq!(find_operation("post", "/chat/completions"), Operation::ChatComplete);
        assert_eq!(find_operation("GET", "/chat/completions"), Operation::Proxy);
    }

    #[test]
    fn a_repeated_version_is_stripped() {
        assert_eq!(strip_repeated_version("/v1/v1/v1/configs"), "/v1/configs");
        assert_eq!((strip_repeated_version("/v1/v1x"), strip_repeated_version("/v1")), ("/v1/v1x", "/v1"));
    }

    #[test]
    fn plain_paths_have_one_reading() {
        for path in ["/v1/chat/completions", "/v1/files/file-1", "/v1/models/gpt-4.1:x"] {
            assert!(is_plain(path), "{path}");
        }
        for path in ["/v1//files", "/v1/Files", "/v1/fil%65s", "/v1/files/", "/v1/files;a", "/v1/files.", "/v1/v1/x"] {
            assert!(!is_plain(path), "{path}");
        }
    }

    #[test]
    fn a_long_path_is_read_once() {
        let path = format!("/{}", "v1/%25252525".repeat(20_000));
        assert_eq!(find_operation("POST", &path), Operation::Proxy);
        assert!(read_leniently(&path).len() <= path.len());
    }
}
