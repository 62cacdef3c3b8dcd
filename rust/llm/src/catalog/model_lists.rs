//! Lists of models: who has none, and how the next page of one is asked for.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::PathInfo;

/// Who has no list of models: they are what their documents say, or what their customers put there.
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

/// Where the list of models is asked on, by a token that the page before gave.
pub(crate) fn write_page_token(asked: &PathInfo<'_>, name: &str, out: &mut Vec<u8>) {
    if !asked.query.is_empty() {
        out.extend_from_slice(format!("&{name}={}", utf8_percent_encode(asked.query, NON_ALPHANUMERIC)).as_bytes());
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
