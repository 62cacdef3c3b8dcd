//! A question of the gateway's own to a target, with its credential and its signature: nothing of a caller's goes along.

use penstock_llm::{
    catalog::{Asked, Stated},
    operation::Operation,
};

use crate::request::request_head::{Length, own};
use crate::{
    credentials::{self, Payload},
    error::Result,
    gateway::Gateway,
    ingress::body::Body,
    resolve::target::Target,
    upstream::{Outgoing, Shape},
};

/// What is asked.
pub struct Question<'q> {
    pub method: &'static str,
    /// As a caller's would be, without a version.
    pub path: &'q str,
    pub query: &'q str,
    pub fields: &'q [(String, String)],
    pub body: Body,
}

impl<'q> Question<'q> {
    pub fn new(method: &'static str, path: &'q str) -> Self {
        Self { method, path, query: "", fields: &[], body: Body::empty() }
    }

    fn length(&self) -> Length {
        match &self.body {
            Body::Whole(_) if !matches!(self.method, "PUT" | "POST") => Length::None,
            Body::Whole(bytes) => Length::Known(bytes.len() as u64),
            Body::Fed(..) => Length::Chunked,
        }
    }

    /// As it leaves.
    pub async fn outgoing(self, gateway: &Gateway, target: &Target<'_>, operation: Operation) -> Result<Outgoing> {
        let issued = match &target.grant {
            None => None,
            Some(grant) => Some(Box::pin(credentials::fetch(gateway, target, grant)).await?),
        };
        let issued = issued.as_deref();
        let length = self.length();
        let Self { method, path, query, fields, body } = self;
        let asked = Asked {
            operation,
            path,
            query,
            prefix: &target.base.prefix,
            model: "",
            user: "",
            streams: false,
            begun: false,
            stated: Stated::default(),
        };
        let mut head = own(target, &asked, (method, fields), (length, issued))?;
        credentials::sign(target, operation, issued, (&mut head, &Payload::of(body.whole())))?;
        let shape = Shape { chunked: length == Length::Chunked, bodiless: method == "HEAD" };
        Ok(Outgoing { head, body, shape, replayable: method != "POST" })
    }
}
