//! Files of providers who keep them as objects of a bucket: asked for in `OpenAI`'s words, answered in `OpenAI`'s words.

mod rows;
mod talk;
mod upload;

use penstock_llm::{
    files::{self, Bucket, Place},
    operation::Operation,
};

use self::talk::{Answered, Question, Refused, Talk};
use crate::{
    body::Body,
    call::{Call, Reach, Target},
    delivery::Served,
    error::{Error, Result},
    gateway::Gateway,
    record::Facts,
};

/// As many files as a list has where nobody says, and at most: as many as a bucket tells at once.
const FEW: usize = 100;
const MOST: usize = 1000;
/// What a bucket says of so many is far less.
const LARGEST_LIST: usize = 4 * 1024 * 1024;

/// Once per target that keeps files so.
pub async fn answer(
    gateway: &Gateway,
    call: &Call<'_>,
    (target, bucket): (&Target<'_>, &'static Bucket),
    body: Body,
    facts: &mut Facts,
) -> Result<Served> {
    let operation = call.route.operation;
    if target.passthrough {
        return Err(Error::Unsupported { operation: operation.id(), provider: target.provider.slug() });
    }
    let talk = Talk { gateway, target, operation, bucket };
    let answered = match operation {
        Operation::UploadFile => upload::upload(&talk, call, body, facts).await,
        Operation::ListFiles => list(&talk, call).await,
        Operation::DeleteFile => delete(&talk, call).await,
        Operation::RetrieveFileContent => content(&talk, call).await,
        _ => retrieve(&talk, call).await,
    };
    match answered {
        Ok(served) => Ok(served),
        Err(Refused::Here(error)) => Err(error),
        Err(Refused::There(served)) => Ok(*served),
    }
}

/// The object that a request names. Those behind a stored credential are of the bucket that goes with it, in the folder
/// of what the gateway keeps there: what else its owner has there is out of reach.
fn named(talk: &Talk<'_>, call: &Call<'_>) -> Result<Place> {
    let place = talk.bucket.place(call.route.path).map_err(|message| talk.lacks(message))?;
    within_reach(talk, &place)?;
    Ok(place)
}

fn within_reach(talk: &Talk<'_>, place: &Place) -> Result<()> {
    if talk.target.reach == Reach::Own {
        return Ok(());
    }
    let bucket = talk.bucket.named(&talk.target.options).map_err(|message| talk.lacks(message))?;
    if place.bucket == bucket && place.is_ours() {
        return Ok(());
    }
    let message = format!("with a stored credential files are below `{}` of the bucket `{bucket}`", files::FOLDER);
    Err(talk.lacks(message))
}

async fn retrieve(talk: &Talk<'_>, call: &Call<'_>) -> Answered {
    let place = named(talk, call)?;
    let (incoming, _) = talk.ask(Question::new("HEAD", &place)).await?;
    let file = talk.bucket.file(&place, |name| incoming.head.headers.text(name));
    Ok(talk.told(incoming, file.told()))
}

/// The bytes of an object, or the range of them that is asked for.
async fn content(talk: &Talk<'_>, call: &Call<'_>) -> Answered {
    let place = named(talk, call)?;
    let range = call.head.headers.text("range").map(|range| ("range".to_owned(), range.to_owned()));
    let fields: Vec<_> = range.into_iter().collect();
    let (incoming, deadline) = talk.ask(Question { fields: &fields, ..Question::new("GET", &place) }).await?;
    Ok(talk::passed_on(incoming, deadline))
}

/// What is not there is as good as deleted to a bucket, but not to a caller.
async fn delete(talk: &Talk<'_>, call: &Call<'_>) -> Answered {
    let place = named(talk, call)?;
    talk.ask(Question::new("HEAD", &place)).await?;
    let (incoming, _) = talk.ask(Question::new("DELETE", &place)).await?;
    Ok(talk.told(incoming, files::deleted(&talk.bucket.id(&place))))
}

/// Files of the folder in which those are whose names the gateway chose, or of the one for a purpose within it.
async fn list(talk: &Talk<'_>, call: &Call<'_>) -> Answered {
    let asked = |wanted: &str| {
        let mut pairs = call.head.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, value)| *name == wanted && !value.is_empty()).map(|(_, value)| value)
    };
    let most = match asked("limit").map(str::parse::<usize>) {
        None => FEW,
        Some(Ok(limit)) if limit > 0 => limit.min(MOST),
        Some(_) => return Err(talk.unsaid("limit", "must be a whole number above 0").into()),
    };
    let after = asked("after").map(|id| talk.bucket.place(&format!("/files/{id}"))).transpose();
    let after = after.map_err(|message| talk.unsaid("after", message))?;
    let bucket = talk.bucket.named(&talk.target.options).map_err(|message| talk.lacks(message))?;
    let purpose =
        asked("purpose").map(files::purpose).transpose().map_err(|message| talk.unsaid("purpose", message))?;
    let query = talk.bucket.list_query(most, after.as_ref(), purpose);
    let (mut incoming, mut deadline) = talk.ask(Question { query: &query, ..Question::of_bucket("GET") }).await?;
    let answer = talk.read(&mut incoming, &mut deadline, LARGEST_LIST).await?;
    let (found, has_more) = talk.bucket.files(bucket, &answer);
    Ok(talk.told(incoming, files::listed(&found, has_more)))
}
