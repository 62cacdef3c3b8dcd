//! Fine-tuning: jobs begun, listed and told in the shape that `OpenAI` gave them.

use serde_json::{Value, json};

use crate::{
    catalog::{Options, path_segment},
    files::FileStore,
    operation::Operation,
};
use crate::{
    chat::{
        providers::{Broken, Wire},
        request::{Fields, Refusal, body, needed, object, string},
        response_context::Answering,
    },
    translation::{Question, dropped::Lost},
};

/// Settings of what a provider is told only where somebody said them.
const AUTO: &str = "auto";

/// A job to begin. Wires take what their provider knows; what is left was lost.
#[derive(Debug)]
pub struct Tune<'a> {
    pub model: String,
    pub training_file: String,
    pub validation_file: Option<String>,
    pub suffix: Option<String>,
    /// `supervised`, where nothing else is said.
    pub method: String,
    /// Those that the caller leaves to the provider are none.
    pub hyperparameters: Fields,
    /// Everything else.
    pub fields: Fields,
    /// By which the job is known, where the caller chooses that.
    pub name: Option<String>,
    pub options: Option<&'a Options>,
    pub now: u64,
}

/// What a job's body says, in both ways in which clients say what only some providers know.
pub fn said(question: &Question<'_>) -> Result<Fields, Refusal> {
    let mut fields = body(question.body)?;
    if let Some(options) = take(&mut fields, "provider_options") {
        fields.extend(object(options, "provider_options")?);
    }
    Ok(fields)
}

impl<'a> Tune<'a> {
    pub fn read(question: &Question<'a>) -> Result<Self, Refusal> {
        let mut fields = said(question)?;
        let (method, hyperparameters) = method(&mut fields)?;
        string(&mut fields, "model");
        Ok(Self {
            model: question.model.to_owned(),
            training_file: address(question, needed(&mut fields, "training_file", "$")?),
            validation_file: string(&mut fields, "validation_file").map(|file| address(question, file)),
            suffix: string(&mut fields, "suffix").filter(|suffix| !suffix.is_empty()),
            method,
            hyperparameters,
            fields,
            name: None,
            options: question.beside.options,
            now: question.now,
        })
    }

    /// A field of the body, else an option of the provider's.
    pub fn said(&mut self, key: &str, option: &str) -> Option<String> {
        let told = || self.options.and_then(|options| options.get(option)).map(ToOwned::to_owned);
        string(&mut self.fields, key).or_else(told)
    }

    /// Refuses a method that is not among those of the provider.
    pub fn refuse_method(&self, known: &[&str]) -> Result<(), Refusal> {
        if known.contains(&self.method.as_str()) {
            return Ok(());
        }
        let message = format!("`{}` is not known here: it must be {}", self.method, known.join(" or "));
        Err(Refusal::new("method.type", message))
    }

    /// Refuses files that are not where the provider looks for them.
    pub fn refuse_files_without(&self, prefix: &str) -> Result<(), Refusal> {
        let files = [("training_file", Some(&self.training_file)), ("validation_file", self.validation_file.as_ref())];
        for (path, file) in files {
            if file.is_some_and(|file| !file.starts_with(prefix)) {
                return Err(Refusal::new(
                    path,
                    format!("this provider reads files of its own: it must begin with {prefix}"),
                ));
            }
        }
        Ok(())
    }

    /// What the answer repeats.
    pub fn echo(&self) -> Fields {
        let method = &self.method;
        let mut echo = Fields::new();
        if !self.hyperparameters.is_empty() {
            echo.insert("hyperparameters".into(), self.hyperparameters.clone().into());
        }
        echo.insert("model".into(), self.model.as_str().into());
        echo.insert("training_file".into(), self.training_file.as_str().into());
        echo.insert("validation_file".into(), self.validation_file.clone().into());
        if let Some(suffix) = &self.suffix {
            echo.insert("user_provided_suffix".into(), suffix.as_str().into());
        }
        echo.insert("method".into(), json!({"type": method, method: {}}));
        echo
    }

    /// What nobody took.
    pub fn into_lost(self) -> Lost {
        let mut lost = Lost::default();
        let said = |(_, value): &(&String, &Value)| !value.is_null() && **value != json!([]) && **value != json!({});
        self.fields.iter().filter(said).for_each(|(key, _)| lost.add(key));
        self.hyperparameters.keys().for_each(|key| lost.add(&format!("hyperparameters.{key}")));
        lost
    }
}

/// A file as the provider's jobs call it, where it is said by the id that its upload gave it.
pub fn address(question: &Question<'_>, file: String) -> String {
    question
        .provider
        .keeper()
        .and_then(FileStore::object_store)
        .and_then(|bucket| bucket.object_uri(&file))
        .unwrap_or(file)
}

fn take(fields: &mut Fields, key: &str) -> Option<Value> {
    fields.shift_remove(key).filter(|value| !value.is_null())
}

/// How it is tuned, and with which settings: those of the method, or as they were said before there were several.
fn method(fields: &mut Fields) -> Result<(String, Fields), Refusal> {
    let mut settings = match take(fields, "hyperparameters") {
        Some(old) => object(old, "hyperparameters")?,
        None => Fields::new(),
    };
    let mut kind = "supervised".to_owned();
    if let Some(method) = take(fields, "method") {
        let mut method = object(method, "method")?;
        kind = needed(&mut method, "type", "method")?;
        if let Some(of_kind) = take(&mut method, &kind) {
            let mut of_kind = object(of_kind, &format!("method.{kind}"))?;
            if let Some(newer) = take(&mut of_kind, "hyperparameters") {
                settings.extend(object(newer, &format!("method.{kind}.hyperparameters"))?);
            }
        }
    }
    settings.retain(|_, value| !value.is_null() && *value != AUTO);
    Ok((kind, settings))
}

/// The jobs of a list.
pub struct Jobs<'a> {
    pub jobs: &'a [Value],
    pub has_more: bool,
}

impl<'a> Jobs<'a> {
    pub fn of(answer: &'a Value, key: &str, token: &str) -> Self {
        let jobs = answer[key].as_array().map(Vec::as_slice).unwrap_or_default();
        Self { jobs, has_more: answer[token].as_str().is_some_and(|token| !token.is_empty()) }
    }
}

/// Which part of a list the caller wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    after: Option<String>,
    limit: usize,
}

impl Page {
    pub fn read(operation: Operation, query: &str) -> Result<Self, Refusal> {
        let usual = if operation == Operation::ListFinetuneCheckpoints { 10 } else { 20 };
        let mut page = Self { after: None, limit: usual };
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match key {
                "after" if !value.is_empty() => page.after = Some(value.to_owned()),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=100).contains(limit));
                    page.limit = limit.ok_or_else(|| Refusal::new("limit", "must be a number from 1 to 100"))?;
                }
                _ => (),
            }
        }
        Ok(page)
    }

    /// The part of it, and whether more follow. What was the last of a page before may be gone.
    fn cut(&self, mut all: Vec<Value>, has_more: bool) -> Value {
        if let Some(after) = &self.after {
            let is_it =
                |one: &Value| one["id"].as_str().is_some_and(|id| id == after || path_segment::escaped(id) == *after);
            all = all.iter().position(is_it).map_or_else(Vec::new, |at| all.split_off(at + 1));
        }
        let has_more = all.len() > self.limit || (has_more && !all.is_empty());
        all.truncate(self.limit);
        let id = |one: Option<&Value>| one.map_or(Value::Null, |one| one["id"].clone());
        let (first, last) = (id(all.first()), id(all.last()));
        json!({"object": "list", "data": all, "first_id": first, "last_id": last, "has_more": has_more})
    }
}

/// What the caller is told of a job, of many, or of the checkpoints of one.
pub fn told(
    wire: &dyn Wire,
    answer: &Value,
    answering: &Answering,
    (operation, page): (Operation, &Page),
) -> Result<Vec<u8>, Broken> {
    let told = match operation {
        Operation::ListFinetunes => listed(wire, answer, page, |one| wire.tuned(one).map(|said| job(said, answering)))?,
        Operation::ListFinetuneCheckpoints => {
            let id = wire.tuned(answer).ok_or_else(unlike)?.shift_remove("id").unwrap_or_default();
            let told = |mut fields: Fields| {
                fields.insert("fine_tuning_job_id".into(), id.clone());
                fields.insert("object".into(), "fine_tuning.job.checkpoint".into());
                Value::Object(fields)
            };
            page.cut(wire.checkpoints(answer).into_iter().map(told).collect(), false)
        }
        _ => job(wire.tuned(answer).ok_or_else(unlike)?, answering),
    };
    Ok(told.to_string().into_bytes())
}

/// The part of a list that is asked for, each job told as it is alone.
pub fn listed(
    wire: &dyn Wire,
    answer: &Value,
    page: &Page,
    told: impl Fn(&Value) -> Option<Value>,
) -> Result<Value, Broken> {
    let Jobs { jobs, has_more } = wire.jobs(answer).ok_or_else(|| Broken("it has no jobs".into()))?;
    let jobs: Option<Vec<_>> = jobs.iter().map(told).collect();
    Ok(page.cut(jobs.ok_or_else(unlike)?, has_more))
}

fn unlike() -> Broken {
    Broken("it is no job".into())
}

/// A job as `OpenAI` tells it: what the provider says, what the request said, and else what is said of nothing.
fn job(said: Fields, answering: &Answering) -> Value {
    let mut told = json!({"id": "", "object": "fine_tuning.job", "created_at": answering.created, "error": null,
        "fine_tuned_model": null, "finished_at": null, "hyperparameters": {"n_epochs": AUTO}, "model": "",
        "organization_id": "", "result_files": [], "seed": 0, "status": "queued", "trained_tokens": null,
        "training_file": "", "validation_file": null, "integrations": [], "estimated_finish": null,
        "method": {"type": "supervised", "supervised": {}}});
    if let Some(told) = told.as_object_mut() {
        told.extend(answering.echo.clone());
        told.extend(said.into_iter().filter(|(_, value)| !value.is_null()));
        told.insert("provider".into(), answering.provider.into());
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(query: &str, has_more: bool) -> Value {
        let jobs = (1..=25).map(|id| json!({"id": format!("job {id}")})).collect();
        Page::read(Operation::ListFinetunes, query).unwrap().cut(jobs, has_more)
    }

    #[test]
    fn a_page_begins_after_a_job_and_says_whether_more_follow() {
        let first = page("", false);
        assert_eq!((first["data"].as_array().unwrap().len(), &first["has_more"]), (20, &true.into()));
        let rest = page("limit=100&after=job%2020", false);
        assert_eq!((&rest["first_id"], &rest["last_id"]), (&"job 21".into(), &"job 25".into()));
        assert_eq!(rest["has_more"], false);
        assert_eq!(page("after=job%2020", true)["has_more"], true);
        for end in ["after=job%2025", "after=gone"] {
            assert_eq!((&page(end, true)["data"], &page(end, true)["has_more"]), (&json!([]), &false.into()));
        }
        for wrong in ["limit=0", "limit=101", "limit=x"] {
            assert_eq!(Page::read(Operation::ListFinetunes, wrong).unwrap_err().path, "limit");
        }
    }
}
