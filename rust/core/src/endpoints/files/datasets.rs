//! Files that are datasets: made first, then filled with what comes.

use std::{
    pin::{Pin, pin},
    sync::Arc,
};

use bytes::Bytes;
use penstock_llm::{
    api_format::Dialect,
    avro::Records,
    files::{self, Datasets, File, State, datasets},
    operation::Operation,
};
use tokio::sync::Notify;

use super::{
    LARGEST_LIST, asked, limit,
    upload::{self, Named, Sink},
};
use crate::endpoints::files::{
    batch_results::{Results, lines, telling},
    store_client::{Answered, Fetching, Refused, Talk, broken},
};
use crate::{
    accounting::record::Facts,
    error::Result,
    ingress::body::{self, Body, End, Feeder},
    process::deadline::Deadline,
    request::internal_request::Question,
    resolve::target_resolver::Call,
    response::delivery::Served,
    upstream::{AnswerBody, Incoming, Later},
};

/// As many as are told at once.
const MOST: usize = 200;
const JSON: &str = "application/json";

pub async fn answer(talk: &Talk<'_>, (call, kind): (&Call<'_>, Datasets), body: Body, facts: &mut Facts) -> Answered {
    match talk.operation {
        Operation::UploadFile => upload::upload(talk, call, body, facts, Dataset::new(talk, kind)).await,
        Operation::ListFiles => list(talk, (call, kind)).await,
        Operation::DeleteFile => {
            let (incoming, _) = talk.ask(Question::new("DELETE", call.route.path)).await?;
            let id = call.route.path.rsplit('/').next().unwrap_or_default();
            Ok(talk.told(incoming, files::deleted(id)))
        }
        Operation::RetrieveFileContent => content(talk, (call, kind)).await,
        _ => {
            let (incoming, dataset) = read(talk, Question::new("GET", call.route.path)).await?;
            let file = kind.file(&dataset).ok_or_else(|| broken("it names no dataset"))?;
            Ok(talk.told(incoming, file.told()))
        }
    }
}

/// An answer in JSON.
async fn read(talk: &Talk<'_>, question: Question<'_>) -> Answered<(Incoming, serde_json::Value)> {
    let (mut incoming, mut deadline) = talk.ask(question).await?;
    let answer = read_answer(talk, &mut incoming, &mut deadline).await?;
    Ok((incoming, answer))
}

async fn read_answer(talk: &Talk<'_>, incoming: &mut Incoming, deadline: &mut Deadline) -> Answered<serde_json::Value> {
    let answer = talk.read(incoming, deadline, LARGEST_LIST).await?;
    Ok(serde_json::from_str(&answer).map_err(|error| broken(&format!("it cannot be read: {error}")))?)
}

/// The part that is asked for of what is told at once.
async fn list(talk: &Talk<'_>, (call, kind): (&Call<'_>, Datasets)) -> Answered {
    let most = limit(talk, call, MOST)?;
    let query = kind.listed(MOST);
    let (incoming, answer) = read(talk, Question { query: &query, ..Question::new("GET", "/files") }).await?;
    let is_asked = |file: &File| asked(call, "purpose").is_none_or(|purpose| purpose == file.purpose);
    let all: Vec<_> = kind.files(&answer).into_iter().filter(is_asked).collect();
    let after = asked(call, "after").map(|id| all.iter().position(|file| file.id == id).map_or(all.len(), |at| at + 1));
    let rest = &all[after.unwrap_or_default()..];
    let part = &rest[..rest.len().min(most)];
    Ok(talk.told(incoming, files::listed(part, part.len() < rest.len())))
}

/// What is in the files of a dataset, one after the other, each asked for when the one before has ended.
async fn content(talk: &Talk<'_>, (call, kind): (&Call<'_>, Datasets)) -> Answered {
    let (_, answer) = read(talk, Question::new("GET", call.route.path)).await?;
    let urls = kind.located(&answer);
    let Some((first, others)) = urls.split_first() else { return Err(nowhere(talk, kind, &answer)) };
    let ask = |url: &&str| {
        let fetching = talk.fetching(url)?;
        let later: Later = Box::new(move || Box::pin(later(fetching, kind)));
        Ok(later)
    };
    let others = others.iter().map(ask).collect::<Result<_>>()?;
    let (Incoming { head, body }, mut deadline) = talk.fetch(first).await?;
    let mut body = AnswerBody::parts(decoded(body, kind), others);
    // What cannot be read is better told than begun.
    deadline.bound(pin!(body.begun())).await?;
    let incoming = Incoming { head, body };
    let results = Results::of(call, talk.target.provider.slug(), talk.keeper.words());
    let incoming = match results {
        Some(results) => telling(results, incoming),
        None => lines(incoming),
    };
    Ok(Served::new(incoming, Dialect::OpenAi, deadline))
}

/// A file after the first.
async fn later(fetching: Fetching, kind: Datasets) -> Result<AnswerBody> {
    let (Incoming { head, body }, _) = fetching.answered().await?;
    if head.status != 200 {
        return Err(broken(&format!("one of its files was answered with {}", head.status)));
    }
    let mut body = decoded(body, kind);
    if kind == Datasets::Fireworks {
        // The last line of the one before may have no end.
        body.put_back(Bytes::from_static(b"\n"));
    }
    Ok(body)
}

/// As lines.
fn decoded(body: AnswerBody, kind: Datasets) -> AnswerBody {
    let mut records = match kind {
        Datasets::Cohere => Records::default(),
        Datasets::Fireworks => return body,
    };
    body.decoded(move |piece| {
        let told = match piece {
            Some(piece) => records.told(&piece),
            None => records.end().map(|()| Vec::new()),
        };
        told.map(Bytes::from).map_err(|found| broken(&found.0))
    })
}

/// A dataset without files.
fn nowhere(talk: &Talk<'_>, kind: Datasets, answer: &serde_json::Value) -> Refused {
    match kind.file(answer).map(|file| file.state) {
        Some(State::Coming) => {
            talk.unsaid("file_id", "is looked at there: it can be read once it is `processed`").into()
        }
        Some(State::Wrong(why)) => talk.unsaid("file_id", format!("cannot be read: {why}")).into(),
        _ => broken("it says nowhere what is in it").into(),
    }
}

/// The question that fills a dataset, on its way.
type Asking<'d> = Pin<Box<dyn Future<Output = Answered<(Incoming, Deadline)>> + Send + 'd>>;

/// A dataset that is being filled.
struct Dataset<'d> {
    talk: &'d Talk<'d>,
    kind: Datasets,
    /// Where it is known before it is filled.
    id: Option<String>,
    name: String,
    purpose: String,
    filling: Option<Filling<'d>>,
    bytes: u64,
}

/// The form in which the file goes on, and who waits for it.
struct Filling<'d> {
    feeder: Feeder,
    room: Arc<Notify>,
    boundary: String,
    asking: Asking<'d>,
}

impl<'d> Dataset<'d> {
    fn new(talk: &'d Talk<'d>, kind: Datasets) -> Self {
        Self { talk, kind, id: None, name: String::new(), purpose: String::new(), filling: None, bytes: 0 }
    }

    /// Makes a dataset; where one is filled, as what, and what is said with it.
    async fn make(&mut self, file: &Named) -> Answered<(String, String, &'static str)> {
        let talk = self.talk;
        let wrong = |message| talk.unsaid(upload::PURPOSE, message);
        if self.kind == Datasets::Cohere {
            // It is made of what it is filled with.
            let query = datasets::described(file.purpose, &file.name).map_err(wrong)?;
            return Ok(("/files".into(), query, "data"));
        }
        let id = datasets::id(file.purpose, &file.unique).map_err(wrong)?;
        let fields = [("content-type".to_owned(), JSON.to_owned())];
        let body = Body::Whole(datasets::made(&id, &file.name).into());
        talk.ask(Question { fields: &fields, body, ..Question::new("POST", "/files") }).await?;
        let path = format!("/files/{id}/content");
        self.id = Some(id);
        Ok((path, String::new(), "file"))
    }

    fn fill(&self, (path, query): (String, String), unique: &str) -> Filling<'d> {
        let (room, talk) = (Arc::new(Notify::new()), self.talk);
        let resumed = Arc::clone(&room);
        let (feeder, feed) = body::feed(move || resumed.notify_one());
        let boundary = format!("penstock-{unique}");
        let fields = [("content-type".to_owned(), format!("multipart/form-data; boundary={boundary}"))];
        let asking = Box::pin(async move {
            let body = Body::Fed(feed, None);
            talk.ask(Question { query: &query, fields: &fields, body, ..Question::new("POST", &path) }).await
        });
        Filling { feeder, room, boundary, asking }
    }
}

impl Filling<'_> {
    /// Sends bytes on. Who asked is heard only where there is no room for them, and at the end.
    async fn push(&mut self, bytes: Vec<u8>) -> Answered<()> {
        if bytes.is_empty() || self.feeder.push(bytes.into()) {
            return Ok(());
        }
        tokio::select! {
            biased;
            () = self.room.notified() => Ok(()),
            answered = &mut self.asking => Err(match answered {
                Err(refused) => refused,
                Ok(_) => broken("it came before the file was there").into(),
            }),
        }
    }
}

impl Sink for Dataset<'_> {
    async fn begin(&mut self, file: &Named) -> Answered<()> {
        let (path, query, field) = self.make(file).await?;
        let mut filling = self.fill((path, query), &file.unique);
        let head = format!(
            "--{}\r\ncontent-disposition: form-data; name=\"{field}\"; filename=\"file.jsonl\"\r\n\
             content-type: application/jsonl\r\n\r\n",
            filling.boundary
        );
        filling.push(head.into_bytes()).await?;
        (self.name, self.purpose) = (file.name.clone(), file.purpose.to_owned());
        self.filling = Some(filling);
        Ok(())
    }

    async fn write(&mut self, bytes: Vec<u8>) -> Answered<()> {
        self.bytes += bytes.len() as u64;
        match &mut self.filling {
            Some(filling) => filling.push(bytes).await,
            None => Ok(()),
        }
    }

    async fn end(&mut self) -> Answered {
        let Some(filling) = self.filling.take() else { return Err(broken("no upload").into()) };
        let tail = format!("\r\n--{}--\r\n", filling.boundary);
        filling.feeder.push(tail.into_bytes().into());
        filling.feeder.end(End::Complete);
        let (mut incoming, mut deadline) = filling.asking.await?;
        let id = if let Some(id) = self.id.clone() {
            id
        } else {
            let made = read_answer(self.talk, &mut incoming, &mut deadline).await?;
            made["id"].as_str().ok_or_else(|| broken("it names no dataset"))?.to_owned()
        };
        let (name, purpose) = (self.name.clone(), self.purpose.clone());
        let created = upload::now().as_secs();
        let file = File { id, bytes: self.bytes, created, name, purpose, state: State::Coming };
        Ok(self.talk.told(incoming, file.told()))
    }

    /// A dataset that was not filled is none.
    async fn give_up(&mut self) {
        self.filling = None;
        if let Some(id) = self.id.take() {
            // Who refuses that says nothing that the caller would want to know.
            let _ = self.talk.ask(Question::new("DELETE", &format!("/files/{id}"))).await;
        }
    }
}
