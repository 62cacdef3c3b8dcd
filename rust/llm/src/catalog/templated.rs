//! Providers that speak `OpenAI`'s API at an address with a place in it for what is the customer's: a row each.

use super::{
    CHAT, EMBED, Grant, Group, Known, Options, Provider, RESPOND, Signature, by_openai, is_in, options::known, oracle,
};
use crate::catalog::{
    param_map::{SHORT, USUAL, Wording},
    path_segment,
};
use crate::{
    chat::providers::{Wire, openai_chat},
    images::image_formats,
    operation::Operation,
};

pub(crate) struct Placed {
    slug: &'static str,
    /// What is the customer's stands where the braces are.
    base_url: &'static str,
    offers: &'static [Group],
    options: &'static [Known],
    /// Where nobody says.
    usual: Option<&'static str>,
}

pub(crate) static ROWS: &[Placed] = &[
    Placed {
        slug: "byteplus",
        base_url: "https://ark.{}.bytepluses.com/api/v3",
        offers: &[CHAT, EMBED],
        options: &[known("byteplus_region", "byteplus-region")],
        usual: Some("ap-southeast"),
    },
    Placed {
        slug: "cortex",
        base_url: "https://{}.snowflakecomputing.com/api/v2/cortex/v1",
        offers: &[CHAT],
        options: &[known("snowflake_account", "snowflake-account")],
        usual: None,
    },
    Placed {
        slug: "databricks",
        base_url: "https://{}.cloud.databricks.com/serving-endpoints",
        offers: &[CHAT, EMBED],
        options: &[known("databricks_workspace", "databricks-workspace"), DATABRICKS_ENDPOINT],
        usual: None,
    },
    Placed {
        slug: "oracle",
        base_url: "https://inference.generativeai.{}.oci.oraclecloud.com",
        offers: &[CHAT, RESPOND],
        options: oracle::OPTIONS,
        usual: None,
    },
    Placed {
        slug: "workers-ai",
        base_url: "https://api.cloudflare.com/client/v4/accounts/{}/ai",
        offers: &[CHAT, EMBED],
        options: &[known("workers_ai_account_id", "workers-ai-account-id")],
        usual: None,
    },
];

/// Their hosts, with the place in them.
pub(crate) fn hosts() -> impl Iterator<Item = &'static str> {
    ROWS.iter().filter_map(|row| row.base_url.split('/').nth(2))
}

/// Which of a workspace's endpoints is asked, whatever the model is called.
const DATABRICKS_ENDPOINT: Known = known("databricks_serving_endpoint_name", "databricks-serving-endpoint-name");

impl Placed {
    /// Whether its images are made at a path of the model's own.
    fn draws(&self, operation: Operation) -> bool {
        self.is_cloudflares() && operation == Operation::ImageGenerate
    }

    /// Likewise its list.
    fn lists(&self, operation: Operation) -> bool {
        self.is_cloudflares() && operation == Operation::Models
    }

    fn is_cloudflares(&self) -> bool {
        self.slug == "workers-ai"
    }
}

impl Provider for Placed {
    fn slug(&self) -> &'static str {
        self.slug
    }

    fn base_url(&self) -> &'static str {
        ""
    }

    fn version(&self) -> &'static str {
        if self.is_cloudflares() { "/v1" } else { "" }
    }

    fn offers(&self) -> &'static [Group] {
        self.offers
    }

    fn options(&self) -> &'static [Known] {
        self.options
    }

    fn base(&self, _operation: Operation, options: &Options) -> Result<Option<String>, String> {
        let [option, ..] = self.options else { return Ok(None) };
        let missing = || format!("no {}: send x-gateway-{}", option.key, option.header);
        let own = options.get(option.key).or(self.usual).ok_or_else(missing)?;
        // Accounts may have a region behind a dot.
        if !own.split('.').all(path_segment::is_label) {
            return Err(format!("{} must be letters, digits, dots and dashes", option.key));
        }
        let version = if self.slug == "oracle" { oracle::below(options)? } else { String::new() };
        Ok(Some(self.base_url.replace("{}", own) + &version))
    }

    fn write_target(&self, asked: &super::Asked<'_>, options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        if self.lists(asked.operation) {
            out.extend_from_slice(b"/models/search?per_page=1000");
            return Ok(());
        }
        if self.slug == "oracle" {
            oracle::refuse_other_mode(options, asked.model)?;
        }
        if let Some(endpoint) = options.get(DATABRICKS_ENDPOINT.key)
            && (is_in(self.offers, asked.operation) || self.wire(asked.operation, asked.model).is_some())
        {
            out.extend_from_slice(format!("/{}/invocations", path_segment::model(endpoint)?).as_bytes());
            return Ok(());
        }
        if !self.draws(asked.operation) {
            super::write_path(self, asked, out);
            return Ok(());
        }
        // Its names have slashes, which stand in the path as they are.
        let model: Vec<_> = asked.model.split('/').map(path_segment::model).collect::<Result<_, _>>()?;
        out.extend_from_slice(format!("/run/{}", model.join("/")).as_bytes());
        Ok(())
    }

    fn named_in<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self.slug {
            // Its names have slashes.
            "workers-ai" => path.split_once("/run/").map(|(_, name)| name),
            // Below its base endpoints have their names.
            "databricks" => path_segment::after(path, &["/serving-endpoints/"])
                .or_else(|| path.ends_with("/invocations").then(|| path_segment::first(path))),
            _ => path_segment::after(path, path_segment::OF_MODELS),
        }
    }

    fn pinned<'o>(&self, options: &'o Options, _stated: super::Stated<'o>) -> Option<&'o str> {
        options.get(DATABRICKS_ENDPOINT.key)
    }

    fn takes_stream_options(&self, _version: Option<&str>, _options: &Options) -> bool {
        // What it serves of Amazon's refuses them; each of its events says what was used so far.
        self.slug != "databricks"
    }

    fn signature<'o>(&self, options: &'o Options) -> Result<Option<Signature<'o>>, String> {
        if self.slug == "oracle" { oracle::signature(options) } else { Ok(None) }
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        if self.slug == "oracle" { oracle::grant(options) } else { Ok(None) }
    }

    /// Its models are of many vendors, and so are their words.
    fn has_own_ends(&self) -> bool {
        true
    }

    fn wording(&self, _operation: Operation) -> &'static Wording {
        if self.is_cloudflares() { &SHORT } else { &USUAL }
    }

    fn wire(&self, operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        if self.draws(operation) {
            return Some(&image_formats::WORKERS);
        }
        let wire = if self.slug == "databricks" { &openai_chat::UNASKED } else { &openai_chat::COMPATIBLE };
        (self.lists(operation) || by_openai(self.offers, operation)).then_some(wire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_customers_is_part_of_the_address_and_nothing_else() {
        for row in ROWS {
            let base = |own: &str| {
                let mut options = Options::default();
                options.put(row.options[0], own.into());
                row.base(Operation::ChatComplete, &options)
            };
            let url = base("my-own").unwrap().unwrap();
            assert!(url.starts_with("https://") && url.contains("my-own"), "{url}");
            for wrong in ["evil.example/", "a@b", "", "a/../b", "a b"] {
                assert!(base(wrong).is_err(), "{} {wrong}", row.slug);
            }
            let alone = row.base(Operation::ChatComplete, &Options::default());
            assert_eq!(alone.is_ok(), row.usual.is_some(), "{}", row.slug);
        }
    }

    #[test]
    fn an_endpoint_of_databricks_is_asked_whatever_the_model_is_called() {
        let row = ROWS.iter().find(|row| row.slug == "databricks").unwrap();
        let target = |operation, named: &[(&str, &str)]| {
            let stated = super::super::Stated::default();
            let (path, query, prefix, model, user) = ("/chat/completions", "", "/serving-endpoints", "m", "");
            let asked = super::super::Asked {
                operation,
                path,
                query,
                prefix,
                model,
                user,
                streams: false,
                begun: false,
                stated,
            };
            let mut out = Vec::new();
            row.write_target(&asked, &Options::of(row.options, named), &mut out)?;
            Ok::<_, String>(String::from_utf8(out).unwrap())
        };
        let named = [("databricks_serving_endpoint_name", "my/own")];
        for operation in [Operation::ChatComplete, Operation::Messages, Operation::Embed] {
            assert_eq!(target(operation, &named).unwrap(), "/my%2Fown/invocations");
        }
        assert_eq!(target(Operation::ChatComplete, &[]).unwrap(), "/chat/completions");
        assert_eq!(target(Operation::Proxy, &named).unwrap(), "/chat/completions");
        assert!(target(Operation::Embed, &[("databricks_serving_endpoint_name", "..")]).is_err());
    }

    #[test]
    fn a_model_of_workers_ai_stands_in_the_path_of_its_images() {
        let row = ROWS.iter().find(|row| row.slug == "workers-ai").unwrap();
        let asked = |operation, model| super::super::Asked {
            prefix: "/client/v4/accounts/a/ai",
            ..super::super::Asked::of(operation, "/chat/completions", model)
        };
        let target = |asked| {
            let mut out = Vec::new();
            row.write_target(&asked, &Options::default(), &mut out).map(|()| String::from_utf8(out).unwrap())
        };
        let drawn = target(asked(Operation::ImageGenerate, "@cf/black-forest-labs/flux-1-schnell"));
        assert_eq!(drawn.unwrap(), "/run/%40cf/black-forest-labs/flux-1-schnell");
        assert!(target(asked(Operation::ImageGenerate, "@cf/../x")).is_err());
        assert_eq!(target(asked(Operation::ChatComplete, "@cf/m")).unwrap(), "/v1/chat/completions");
    }
}
