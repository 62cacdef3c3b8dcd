//! Vertex AI: Gemini and Claude, the project and the region in the path, an access token of Google's as bearer.

use super::{
    Asked, GEMINI, Group, Known, Options, Provider,
    google::{verb, write_own},
    options::known,
    segment,
};
use crate::{
    operation::Operation,
    translation::{
        self,
        wires::{Wire, gemini::Gemini, messages},
    },
};

pub(super) struct VertexAi;

const OPTIONS: &[Known] = &[
    known("vertex_project_id", "vertex-project-id"),
    known("vertex_region", "vertex-region"),
    known("vertex_service_account_json", "vertex-service-account-json"),
];

impl Provider for VertexAi {
    fn slug(&self) -> &'static str {
        "vertex-ai"
    }

    fn base_url(&self) -> &'static str {
        ""
    }

    fn offers(&self) -> &'static [Group] {
        &[GEMINI]
    }

    fn options(&self) -> &'static [Known] {
        OPTIONS
    }

    fn base(&self, options: &Options) -> Result<Option<String>, String> {
        if options.get("vertex_service_account_json").is_some() {
            return Err("service accounts are not available in this version: send an access token".into());
        }
        Ok(Some(match region(options)? {
            "global" => "https://aiplatform.googleapis.com".into(),
            region => format!("https://{region}-aiplatform.googleapis.com"),
        }))
    }

    fn wire(&self, operation: Operation, model: &str) -> Option<&'static dyn Wire> {
        let publisher = publisher(model).0;
        if publisher == "google" && GEMINI.contains(&operation) {
            return None;
        }
        let wire: &'static dyn Wire = if publisher == "anthropic" { &messages::VERTEX } else { &Gemini };
        translation::is_talk(operation).then_some(wire)
    }

    fn write_target(&self, asked: &Asked<'_>, options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        let is_its_own = publisher(asked.model).0 == "google" && GEMINI.contains(&asked.operation);
        if self.wire(asked.operation, asked.model).is_none() && !is_its_own {
            super::write_path(self, asked, out);
            return Ok(());
        }
        let region = region(options)?;
        let project = options.get("vertex_project_id").ok_or("no project: send x-gateway-vertex-project-id")?;
        let (publisher, model) = publisher(asked.model);
        let verb = match (publisher, asked.streams) {
            ("anthropic", true) => "streamRawPredict",
            ("anthropic", false) => "rawPredict",
            ("google", streams) => verb(streams),
            (other, _) => return Err(format!("models of `{other}` are not available in this version")),
        };
        let (project, model) = (segment::escaped(project), segment::model(model)?);
        let version = if asked.prefix.ends_with("/v1") { "" } else { "/v1" };
        let path = format!("{version}/projects/{project}/locations/{region}/publishers/{publisher}/models/{model}:");
        out.extend_from_slice(path.as_bytes());
        if is_its_own {
            write_own(asked, out);
        } else {
            out.extend_from_slice(verb.as_bytes());
        }
        Ok(())
    }
}

fn region(options: &Options) -> Result<&str, String> {
    let region = options.get("vertex_region").ok_or("no region: send x-gateway-vertex-region")?;
    if segment::is_label(region) { Ok(region) } else { Err("vertex_region must be letters, digits and dashes".into()) }
}

/// Whose model it is, and its name. Google's go without saying.
fn publisher(model: &str) -> (&'static str, &str) {
    const OTHERS: [&str; 5] = ["google", "anthropic", "meta", "mistralai", "endpoints"];
    let split =
        model.split_once('.').and_then(|(first, rest)| Some((*OTHERS.iter().find(|one| **one == first)?, rest)));
    split.unwrap_or((if model.starts_with("claude") { "anthropic" } else { "google" }, model))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::Stated;

    fn target(model: &str, streams: bool) -> Result<String, String> {
        let mut options = Options::default();
        options.put(OPTIONS[0], "my-project".into());
        options.put(OPTIONS[1], "europe-west4".into());
        let (operation, stated) = (Operation::ChatComplete, Stated::default());
        let asked = Asked { operation, path: "/chat/completions", query: "", prefix: "", model, streams, stated };
        let mut out = Vec::new();
        VertexAi.write_target(&asked, &options, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn who_publishes_a_model_decides_where_it_is_asked() {
        let gemini =
            "/v1/projects/my-project/locations/europe-west4/publishers/google/models/gemini-2.5-pro:generateContent";
        assert_eq!(target("gemini-2.5-pro", false).unwrap(), gemini);
        assert_eq!(target("google.gemini-2.5-pro", false).unwrap(), gemini);
        let claude = target("anthropic.claude-sonnet-4-5@20250929", true).unwrap();
        assert!(
            claude.ends_with("/publishers/anthropic/models/claude-sonnet-4-5%4020250929:streamRawPredict"),
            "{claude}"
        );
        assert!(target("meta.llama", false).unwrap_err().contains("`meta`"));
    }

    #[test]
    fn a_region_is_part_of_a_host_and_nothing_else() {
        let base = |region: &str| {
            let mut options = Options::default();
            options.put(OPTIONS[1], region.into());
            VertexAi.base(&options)
        };
        assert_eq!(base("us-east5").unwrap().unwrap(), "https://us-east5-aiplatform.googleapis.com");
        assert_eq!(base("global").unwrap().unwrap(), "https://aiplatform.googleapis.com");
        assert!(base("evil.example/").is_err() && VertexAi.base(&Options::default()).is_err());
    }
}
