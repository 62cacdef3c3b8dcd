//! Base path of the gateway. A reverse proxy that serves several programs on one host may keep the path of the gateway
//! in requests. The gateway removes it before it routes the request.

/// Removes the base path from a request path. Other paths stay as they are, because health checks and programs on the
/// same machine do not pass the proxy. An empty base path removes nothing.
pub fn strip_base_path(path: &mut String, base: &str) {
    let Some(rest) = path.strip_prefix(base) else { return };
    if base.is_empty() {
        return;
    }
    if rest.is_empty() {
        "/".clone_into(path);
    } else if rest.starts_with('/') {
        path.drain(..base.len());
    }
}

#[cfg(test)]
mod tests {
    use super::strip_base_path;

    #[test]
    fn removes_the_base_path_once_and_only_as_whole_segments() {
        for (path, expected) in [
            ("/tools/gw/v1/chat/completions", "/v1/chat/completions"),
            ("/tools/gw/", "/"),
            ("/tools/gw", "/"),
            ("/tools/gw/tools/gw/v1/models", "/tools/gw/v1/models"),
            ("/tools/gw//v1/models", "//v1/models"),
            ("/tools/gwx/v1/models", "/tools/gwx/v1/models"),
            ("/tools/g%77/v1/models", "/tools/g%77/v1/models"),
            ("/v1/models", "/v1/models"),
        ] {
            let mut stripped = path.to_owned();
            strip_base_path(&mut stripped, "/tools/gw");
            assert_eq!(stripped, expected, "{path}");
        }
    }

    #[test]
    fn removes_nothing_without_a_base_path() {
        let mut path = "/v1/models".to_owned();
        strip_base_path(&mut path, "");
        assert_eq!(path, "/v1/models");
    }
}
