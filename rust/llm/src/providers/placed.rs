//! Providers that speak `OpenAI`'s API at an address with a place in it for what is the customer's: a row each.

use super::{
    CHAT, EMBED, Grant, Group, Known, Options, Provider, RESPOND, Signature, by_openai, options::known, oracle, segment,
};
use crate::{
    operation::Operation,
    translation::wires::{Wire, chat, painting},
};

pub(super) struct Placed {
    slug: &'static str,
    /// What is the customer's stands where the braces are.
    base_url: &'static str,
    offers: &'static [Group],
    options: &'static [Known],
    /// Where nobody says.
    usual: Option<&'static str>,
}

pub(super) static ROWS: &[Placed] = &[
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
        options: &[known("databricks_workspace", "databricks-workspace")],
        usual: None,
    },
    Placed {
        slug: "oracle",
        base_url: "https://inference.generativeai.{}.oci.oraclecloud.com/20231130/actions/v1",
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
        if !own.split('.').all(segment::is_label) {
            return Err(format!("{} must be letters, digits, dots and dashes", option.key));
        }
        Ok(Some(self.base_url.replace("{}", own)))
    }

    fn write_target(&self, asked: &super::Asked<'_>, _options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        if self.lists(asked.operation) {
            out.extend_from_slice(b"/models/search?per_page=1000");
            return Ok(());
        }
        if !self.draws(asked.operation) {
            super::write_path(self, asked, out);
            return Ok(());
        }
        // Its names have slashes, which stand in the path as they are.
        let model: Vec<_> = asked.model.split('/').map(segment::model).collect::<Result<_, _>>()?;
        out.extend_from_slice(format!("/run/{}", model.join("/")).as_bytes());
        Ok(())
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

    fn wire(&self, operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        if self.draws(operation) {
            return Some(&painting::WORKERS);
        }
        let wire = if self.slug == "databricks" { &chat::UNASKED } else { &chat::COMPATIBLE };
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
    fn a_model_of_workers_ai_stands_in_the_path_of_its_images() {
        let row = ROWS.iter().find(|row| row.slug == "workers-ai").unwrap();
        let stated = super::super::Stated::default();
        let asked = |operation, model| super::super::Asked {
            operation,
            path: "/chat/completions",
            query: "",
            prefix: "/client/v4/accounts/a/ai",
            model,
            user: "",
            streams: false,
            begun: false,
            stated,
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
