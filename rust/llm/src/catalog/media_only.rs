//! Providers that make images or vectors and nothing else, in ways of their own: a row each.

use super::{Asked, Credential, Group, Known, Options, Provider, options::sent, write_path};
use crate::catalog::path_segment;
use crate::{chat::providers::Wire, embeddings::embedding_formats, images::image_formats, operation::Operation};

pub(crate) struct Drawing {
    slug: &'static str,
    base_url: &'static str,
    credential: Credential,
    operation: Operation,
    options: &'static [Known],
    wire: fn(&str) -> &'static dyn Wire,
    target: fn(&str) -> Result<String, String>,
}

pub(crate) static ROWS: &[Drawing] = &[
    Drawing {
        slug: "nomic",
        base_url: "https://api-atlas.nomic.ai/v1",
        credential: Credential::Bearer,
        operation: Operation::Embed,
        options: &[],
        wire: |_| &embedding_formats::NOMIC,
        target: |_| Ok("/embedding/text".into()),
    },
    Drawing {
        slug: "segmind",
        base_url: "https://api.segmind.com/v1",
        credential: Credential::Header("x-api-key"),
        operation: Operation::ImageGenerate,
        options: &[],
        wire: |_| &image_formats::SEGMIND,
        target: |model| Ok(format!("/{}", path_segment::model(model)?)),
    },
    Drawing {
        slug: "stability-ai",
        base_url: "https://api.stability.ai",
        credential: Credential::Bearer,
        operation: Operation::ImageGenerate,
        options: &[
            sent("stability_client_id", "stability-client-id"),
            sent("stability_client_user_id", "stability-client-user-id"),
            sent("stability_client_version", "stability-client-version"),
        ],
        wire: |model| if is_engine(model) { &image_formats::ENGINE } else { &image_formats::FORM },
        target: stability,
    },
];

/// The engines of the older API.
fn is_engine(model: &str) -> bool {
    model.starts_with("stable-diffusion-")
}

fn stability(model: &str) -> Result<String, String> {
    if is_engine(model) {
        return Ok(format!("/v1/generation/{}/text-to-image", path_segment::model(model)?));
    }
    let name = if model.starts_with("sd3") { "sd3" } else { model };
    Ok(format!("/v2beta/stable-image/generate/{}", path_segment::model(name)?))
}

impl Drawing {
    fn does(&self, operation: Operation) -> bool {
        operation == self.operation || (operation.embeds() && self.operation.embeds())
    }
}

impl Provider for Drawing {
    fn slug(&self) -> &'static str {
        self.slug
    }

    fn base_url(&self) -> &'static str {
        self.base_url
    }

    fn offers(&self) -> &'static [Group] {
        &[]
    }

    fn options(&self) -> &'static [Known] {
        self.options
    }

    fn wire(&self, operation: Operation, model: &str) -> Option<&'static dyn Wire> {
        self.does(operation).then(|| (self.wire)(model))
    }

    fn write_target(&self, asked: &Asked<'_>, _options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        if self.does(asked.operation) {
            out.extend_from_slice((self.target)(asked.model)?.as_bytes());
        } else {
            write_path(self, asked, out);
        }
        Ok(())
    }

    fn named_in<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self.slug {
            "segmind" => Some(path_segment::first(path.strip_prefix("/v1").unwrap_or(path))),
            _ => path_segment::after(path, &["/generation/", "/generate/"]),
        }
    }

    fn credential(&self, _key: &str, _prefix: &str) -> Credential {
        self.credential
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_engine_has_the_older_path() {
        let old = "stable-diffusion-xl-1024-v1-0";
        assert_eq!(stability(old).unwrap(), format!("/v1/generation/{old}/text-to-image"));
        assert_eq!(stability("core").unwrap(), "/v2beta/stable-image/generate/core");
        assert_eq!(stability("sd3.5-large").unwrap(), "/v2beta/stable-image/generate/sd3");
        assert!(stability("").is_err());
    }
}
