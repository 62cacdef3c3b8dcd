//! Lists of jobs: a provider's list, and the page of it that the client requests.

use serde_json::{Value, json};

use crate::{catalog::path_segment, errors::RequestError, operation::Operation};

/// Jobs of a provider's list response.
pub struct JobList<'a> {
    pub jobs: &'a [Value],
    pub has_more: bool,
}

impl<'a> JobList<'a> {
    pub fn from_response(response: &'a Value, key: &str, token: &str) -> Self {
        let jobs = response[key].as_array().map(Vec::as_slice).unwrap_or_default();
        Self { jobs, has_more: response[token].as_str().is_some_and(|token| !token.is_empty()) }
    }
}

/// Pagination parameters of a list request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageQuery {
    after: Option<String>,
    limit: usize,
}

impl PageQuery {
    pub fn parse(operation: Operation, query: &str) -> Result<Self, RequestError> {
        let usual = if operation == Operation::ListFinetuneCheckpoints { 10 } else { 20 };
        let mut page = Self { after: None, limit: usual };
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match key {
                "after" if !value.is_empty() => page.after = Some(value.to_owned()),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=100).contains(limit));
                    page.limit = limit.ok_or_else(|| RequestError::new("limit", "must be a number from 1 to 100"))?;
                }
                _ => (),
            }
        }
        Ok(page)
    }

    /// Returns the requested page as a list object with `has_more`. Returns an empty page if the `after` job no longer
    /// exists.
    pub fn paginate(&self, mut all: Vec<Value>, has_more: bool) -> Value {
        if let Some(after) = &self.after {
            let is_it = |item: &Value| {
                item["id"].as_str().is_some_and(|id| id == after || path_segment::encode_segment(id) == *after)
            };
            all = all.iter().position(is_it).map_or_else(Vec::new, |at| all.split_off(at + 1));
        }
        let has_more = all.len() > self.limit || (has_more && !all.is_empty());
        all.truncate(self.limit);
        let id = |entry: Option<&Value>| entry.map_or(Value::Null, |item| item["id"].clone());
        let (first, last) = (id(all.first()), id(all.last()));
        json!({"object": "list", "data": all, "first_id": first, "last_id": last, "has_more": has_more})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paginate_sample_jobs(query: &str, has_more: bool) -> Value {
        let jobs = (1..=25).map(|id| json!({"id": format!("job {id}")})).collect();
        PageQuery::parse(Operation::ListFinetunes, query).unwrap().paginate(jobs, has_more)
    }

    #[test]
    fn page_starts_after_the_given_job_and_reports_has_more() {
        let first = paginate_sample_jobs("", false);
        assert_eq!((first["data"].as_array().unwrap().len(), &first["has_more"]), (20, &true.into()));
        let rest = paginate_sample_jobs("limit=100&after=job%2020", false);
        assert_eq!((&rest["first_id"], &rest["last_id"]), (&"job 21".into(), &"job 25".into()));
        assert_eq!(rest["has_more"], false);
        assert_eq!(paginate_sample_jobs("after=job%2020", true)["has_more"], true);
        for end in ["after=job%2025", "after=gone"] {
            assert_eq!(
                (&paginate_sample_jobs(end, true)["data"], &paginate_sample_jobs(end, true)["has_more"]),
                (&json!([]), &false.into())
            );
        }
        for wrong in ["limit=0", "limit=101", "limit=x"] {
            assert_eq!(PageQuery::parse(Operation::ListFinetunes, wrong).unwrap_err().path, "limit");
        }
    }
}
