//! Model lists: the providers without a list endpoint, and the query for the next page.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::PathInfo;

/// Providers without an endpoint that lists models. Their models are documented elsewhere or deployed by the customer.
pub(crate) const WITHOUT_MODEL_LIST: [&str; 18] = [
    "cortex",
    "databricks",
    "fal-ai",
    "meshy",
    "milvus",
    "nomic",
    "oracle",
    "perplexity-ai",
    "predibase",
    "qdrant",
    "recraft-ai",
    "sagemaker",
    "scenario-ai",
    "segmind",
    "stability-ai",
    "tripo3d",
    "triton",
    "voyage",
];

/// Appends the page token from the previous page to the query of a model list.
pub(crate) fn write_page_token(path_info: &PathInfo<'_>, name: &str, out: &mut Vec<u8>) {
    if !path_info.query.is_empty() {
        out.extend_from_slice(format!("&{name}={}", utf8_percent_encode(path_info.query, NON_ALPHANUMERIC)).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::{super::find_provider, *};

    #[test]
    fn providers_without_a_model_list_exist() {
        for slug in WITHOUT_MODEL_LIST {
            assert!(!find_provider(slug).unwrap().has_model_list(), "{slug}");
        }
        assert!(find_provider("openai").unwrap().has_model_list());
    }
}
