//! The one reader of all models that a request may name: in its body, query, path, headers and form fields. Providers
//! differ in where they read the model, so at a provider with restricted models every one of them must be allowed.

use std::{borrow::Cow, sync::Arc};

use penstock_llm::{
    api_format::{self, NamedModel},
    http_form::form_models::FormModelReader,
    operation::Operation,
};
use penstock_net::{body::Body, headers};
use percent_encoding::percent_decode_str;

use crate::{
    accounting::saved_models::SavedModels,
    error::{Error, Result},
    ingress::control_headers::split_control_name,
    resolve::{models::RequestedModel, target::Target, target_resolver::ClientRequest},
};

/// Parts of a raw path that may precede the name of a model or deployment.
const PATH_MARKERS: [&str; 9] = [
    "/models/",
    "/tunedmodels/",
    "/model/",
    "/engines/",
    "/deployments/",
    "/endpoints/",
    "/serving-endpoints/",
    "/llms/",
    "/run/",
];
/// Methods that Google's APIs append to a model's name.
const PATH_VERBS: [&str; 14] = [
    "generatecontent",
    "streamgeneratecontent",
    "counttokens",
    "computetokens",
    "embedcontent",
    "batchembedcontents",
    "batchgeneratecontent",
    "asyncbatchembedcontent",
    "generateanswer",
    "predict",
    "predictlongrunning",
    "fetchpredictoperation",
    "rawpredict",
    "streamrawpredict",
];

impl Target<'_> {
    /// Returns the models of the saved provider, unless all may be used.
    pub fn restricted_models(&self) -> Option<&Arc<SavedModels>> {
        self.saved_provider?.models.as_ref().filter(|models| models.is_restricted())
    }

    /// Checks every model that the body, the query and the path name. The main model was checked already.
    pub(super) fn check_named_models(
        &self,
        client_request: &ClientRequest<'_>,
        models: &SavedModels,
        requested: RequestedModel<'_>,
        body: &[u8],
    ) -> Result<()> {
        let RequestedModel { model, in_query } = requested;
        if client_request.route.operation == Operation::CreateBatchJob {
            // The provider's own names of the job's model were checked already.
            let names = self.provider.job_models(body);
            let main: Vec<_> = [model].into_iter().chain(names.iter().map(String::as_str)).collect();
            models.check_named_models(body, &main)?;
        } else {
            models.check_named_models(body, &[model])?;
        }
        for (name, value) in url::form_urlencoded::parse(client_request.head.query.as_bytes()) {
            if api_format::is_model_key(&name) && value != in_query {
                models.check(NamedModel { field: format!("query parameter {name}"), name: value.into_owned() })?;
            }
        }
        self.check_selection_options(client_request, models, model)?;
        if client_request.route.operation == Operation::Proxy {
            self.check_path_models(client_request, models)
        } else {
            Ok(())
        }
    }

    /// Checks the options and headers that select one of several models behind an endpoint. Stored values are allowed.
    fn check_selection_options(
        &self,
        client_request: &ClientRequest<'_>,
        models: &SavedModels,
        model: &str,
    ) -> Result<()> {
        let row = self.provider.row();
        let is_stored = |value: &str| {
            self.saved_provider.is_some_and(|saved| saved.options.has_value(value))
                || models
                    .by_slug
                    .get(model)
                    .is_some_and(|saved| saved.options.iter().any(|(_, stored)| stored == value))
        };
        for key in row.model_selection_options {
            if let Some(value) = self.options.get(key).filter(|value| !is_stored(value)) {
                models.check(NamedModel { field: format!("option {key}"), name: value.to_owned() })?;
            }
            let sent_as = row.options.iter().find(|option| option.key == *key).and_then(|option| option.forwarded_as);
            if let Some(header) = sent_as
                && let Some(value) = client_request.head.headers.get_str(header)
            {
                models.check(NamedModel { field: format!("header {header}"), name: value.trim().to_owned() })?;
            }
        }
        Ok(())
    }

    /// Checks the models in a raw path, which only the provider can interpret.
    fn check_path_models(&self, client_request: &ClientRequest<'_>, models: &SavedModels) -> Result<()> {
        let refused = |name: &str| Error::ModelNotAllowed { model: name.to_owned(), field: "path".into() };
        let path = percent_decode_str(client_request.route.path).decode_utf8_lossy();
        if models.may_name_disabled(&path) {
            return Err(refused(path.rsplit('/').find(|part| models.may_name_disabled(part)).unwrap_or(&path)));
        }
        let lower = path.to_ascii_lowercase();
        let marker_ends =
            PATH_MARKERS.iter().flat_map(|marker| lower.match_indices(marker).map(|(at, matched)| at + matched.len()));
        let mut rests: Vec<_> = marker_ends.map(|at| path[at..].to_owned()).collect();
        if let (true, Some(own)) =
            (client_request.head.has_body_method(), self.provider.row().model_in_path(client_request.route.path))
        {
            rests.push(percent_decode_str(own).decode_utf8_lossy().into_owned());
        }
        let is_allowed = |rest: &String| path_model_names(rest).any(|name| models.is_allowed(name));
        let forbidden = rests.iter().find(|rest| !rest.is_empty() && !is_allowed(rest));
        forbidden.map_or(Ok(()), |rest| Err(refused(path_model_names(rest).next().unwrap_or_default())))
    }

    /// Checks the head of a request at a provider with restricted models: headers that the provider may read as a
    /// model, and those that decide how it reads the body. Returns the content type of a body that is not JSON.
    fn check_head_models<'h>(
        client_request: &ClientRequest<'h>,
        models: &SavedModels,
        aliases: &[String],
    ) -> Result<Option<Cow<'h, str>>> {
        for (name, value) in client_request.head.headers.iter() {
            let name = String::from_utf8_lossy(name);
            let is_read = api_format::is_model_key(&name) && !name.starts_with("sec-");
            if is_read && split_control_name(name.as_bytes(), aliases).is_none() {
                let value = String::from_utf8_lossy(value).trim().to_owned();
                models.check(NamedModel { field: format!("header {name}"), name: value })?;
            }
        }
        if !client_request.head.has_body_method() {
            return Ok(None);
        }
        let headers = &client_request.head.headers;
        let mut kinds = headers.iter().filter(|(name, _)| *name == b"content-type");
        let (kind, second) = (kinds.next(), kinds.next());
        if second.is_some() {
            return Err(unreadable_content_type("must be sent once, because only some models are allowed here"));
        }
        let Some(kind) = kind.map(|(_, value)| String::from_utf8_lossy(value)) else { return Ok(None) };
        if headers.get_str("content-encoding").is_some_and(|coding| !coding.eq_ignore_ascii_case("identity")) {
            let message = "must be `identity`, because only some models are allowed here".into();
            return Err(Error::HeaderInvalid { name: "content-encoding", message });
        }
        let charset = kind.to_ascii_lowercase().split_once("charset=").map(|(_, value)| value.replace('"', ""));
        if charset.is_some_and(|charset| !charset.trim().starts_with("utf-8")) {
            let message = "must have the charset utf-8, because only some models are allowed here";
            return Err(unreadable_content_type(message));
        }
        Ok((!client_request.route.operation.has_json_body()).then_some(kind))
    }

    /// Checks the head of a batch upload. Its lines are checked separately.
    pub(crate) fn guard_batch_head(&self, client_request: &ClientRequest<'_>, aliases: &[String]) -> Result<()> {
        self.restricted_models()
            .map_or(Ok(()), |models| Self::check_head_models(client_request, models, aliases).map(drop))
    }

    /// Adds the check of models that `apply_model` does not see: those in headers that the provider may read, and in
    /// the fields of a form, which may still be arriving. The form may also name the model that an option or the path
    /// sets in place of its own.
    pub(crate) fn guard_models(
        &self,
        client_request: &ClientRequest<'_>,
        aliases: &[String],
        body: Body,
    ) -> Result<Body> {
        let Some(models) = self.restricted_models() else { return Ok(body) };
        let Some(kind) = Self::check_head_models(client_request, models, aliases)? else { return Ok(body) };
        if !headers::is_media_type(kind.as_bytes(), "multipart/form-data") {
            return Ok(body);
        }
        let reader = FormModelReader::from_content_type(&kind);
        let mut form = reader.ok_or_else(|| {
            unreadable_content_type("must have a boundary, because only some models are allowed here")
        })?;
        let pinned = self.provider.body_model_override(
            client_request.route.operation,
            &self.options,
            client_request.route.path_params,
        );
        let (models, pinned) = (Arc::clone(models), pinned.map(Cow::into_owned));
        let mut unread_bytes = body.length();
        let guarded = body.with_guard(Box::new(move |chunk| {
            let ambiguous = |message: &str| Error::FormUnreadable { message: message.into() };
            if let Some(chunk) = chunk {
                form.feed(chunk).map_err(ambiguous)?;
                let mut other_models =
                    form.take_models().into_iter().filter(|models| pinned.as_ref() != Some(&models.name));
                other_models.try_for_each(|model| models.check(model))?;
                unread_bytes = unread_bytes.map(|remaining| remaining.saturating_sub(chunk.len() as u64));
            }
            // Checks before the last byte is sent, because after it the provider has the complete form.
            if (chunk.is_none() || unread_bytes == Some(0)) && !form.is_finished() {
                return Err(ambiguous("its closing boundary is missing").into());
            }
            Ok(())
        }));
        Ok(guarded?)
    }
}

fn unreadable_content_type(message: &str) -> Error {
    Error::HeaderInvalid { name: "content-type", message: message.into() }
}

/// Returns the names by which the rest of a path may name a model: a segment without its verb, two segments, or all.
fn path_model_names(rest: &str) -> impl Iterator<Item = &str> {
    let rest = rest.trim_end_matches('/');
    let segment = rest.split('/').next().unwrap_or(rest);
    let is_verb = |verb: &str| PATH_VERBS.contains(&verb.to_ascii_lowercase().as_str());
    let bare = segment.rsplit_once(':').filter(|(_, verb)| is_verb(verb)).map_or(segment, |(bare, _)| bare);
    let pair = rest.match_indices('/').nth(1).map_or(rest, |(at, _)| &rest[..at]);
    [bare, pair, rest].into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_model_names_from_paths() {
        let names = |rest: &str| path_model_names(rest).collect::<Vec<_>>().join(" ");
        assert_eq!(names("m:generateContent"), "m m:generateContent m:generateContent");
        assert_eq!(names("m:free"), "m:free m:free m:free");
        assert_eq!(names("owner/name/predictions"), "owner owner/name owner/name/predictions");
    }
}
