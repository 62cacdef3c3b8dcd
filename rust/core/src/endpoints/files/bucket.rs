//! Files that are objects of a bucket: looked at, read, listed and deleted.

use penstock_llm::{
    api_format::Dialect,
    files::{self, Bucket, Place},
    operation::Operation,
};

use super::{LARGEST_LIST, asked, limit, upload};
use crate::endpoints::files::{
    batch_results::{self, Results},
    multipart_upload::Parts,
    store_client::{self, Answered, Talk},
};
use crate::{
    accounting::record::Facts,
    error::Result,
    ingress::body::Body,
    request::internal_request::Question,
    resolve::{target::Reach, target_resolver::Call},
    response::delivery::Served,
};

/// As many files as a bucket tells at once.
const MOST: usize = 1000;

/// What is asked, and of which bucket.
type Asked<'a> = (&'a Call<'a>, &'static Bucket);

pub async fn answer(talk: &Talk<'_>, asked: Asked<'_>, body: Body, facts: &mut Facts) -> Answered {
    match talk.operation {
        Operation::UploadFile => upload::upload(talk, asked.0, body, facts, Parts::new(talk, asked.1)).await,
        Operation::ListFiles => list(talk, asked).await,
        Operation::DeleteFile => delete(talk, asked).await,
        Operation::RetrieveFileContent => content(talk, asked).await,
        _ => retrieve(talk, asked).await,
    }
}

/// The object that a request names. Those behind a stored credential are of the bucket that goes with it, in the folder
/// of what the gateway keeps there: what else its owner has there is out of reach.
fn named(talk: &Talk<'_>, (call, bucket): Asked<'_>) -> Result<Place> {
    let place = bucket.place(call.route.path).map_err(|message| talk.lacks(message))?;
    within_reach(talk, bucket, &place)?;
    Ok(place)
}

pub fn within_reach(talk: &Talk<'_>, bucket: &Bucket, place: &Place) -> Result<()> {
    if talk.target.reach == Reach::Own {
        return Ok(());
    }
    let name = bucket.named(&talk.target.options).map_err(|message| talk.lacks(message))?;
    if place.bucket == name && place.is_ours() {
        return Ok(());
    }
    let message = format!("with a stored credential files are below `{}` of the bucket `{name}`", files::FOLDER);
    Err(talk.lacks(message))
}

async fn retrieve(talk: &Talk<'_>, asked: Asked<'_>) -> Answered {
    let (place, (_, bucket)) = (named(talk, asked)?, asked);
    let path = bucket.path(&place);
    let (incoming, _) = talk.ask(Question::new("HEAD", &path)).await?;
    let file = bucket.file(&place, |name| incoming.head.headers.text(name));
    Ok(talk.told(incoming, file.told()))
}

/// The bytes of an object, or the range of them that is asked for.
async fn content(talk: &Talk<'_>, asked: Asked<'_>) -> Answered {
    let (place, (call, bucket)) = (named(talk, asked)?, asked);
    let path = bucket.path(&place);
    let results = Results::of(call, talk.target.provider.slug(), bucket.words);
    // A part of a line could not be told.
    let range = call
        .head
        .headers
        .text("range")
        .filter(|_| results.is_none())
        .map(|range| ("range".to_owned(), range.to_owned()));
    let fields: Vec<_> = range.into_iter().collect();
    let (incoming, deadline) = talk.ask(Question { fields: &fields, ..Question::new("GET", &path) }).await?;
    Ok(match results {
        Some(results) => Served::new(batch_results::telling(results, incoming), Dialect::OpenAi, deadline),
        None => store_client::passed_on(incoming, deadline),
    })
}

/// What is not there is as good as deleted to a bucket, but not to a caller.
async fn delete(talk: &Talk<'_>, asked: Asked<'_>) -> Answered {
    let (place, (_, bucket)) = (named(talk, asked)?, asked);
    let path = bucket.path(&place);
    talk.ask(Question::new("HEAD", &path)).await?;
    let (incoming, _) = talk.ask(Question::new("DELETE", &path)).await?;
    Ok(talk.told(incoming, files::deleted(&bucket.id(&place))))
}

/// Files of the folder in which those are whose names the gateway chose, or of the one for a purpose within it.
async fn list(talk: &Talk<'_>, (call, bucket): Asked<'_>) -> Answered {
    let most = limit(talk, call, MOST)?;
    let after = asked(call, "after").map(|id| bucket.place(&format!("/files/{id}"))).transpose();
    let after = after.map_err(|message| talk.unsaid("after", message))?;
    let purpose = asked(call, "purpose").map(files::purpose).transpose();
    let purpose = purpose.map_err(|message| talk.unsaid("purpose", message))?;
    let name = bucket.named(&talk.target.options).map_err(|message| talk.lacks(message))?;
    let query = bucket.list_query(most, after.as_ref(), purpose);
    let (mut incoming, mut deadline) = talk.ask(Question { query: &query, ..Question::new("GET", "/files") }).await?;
    let answer = talk.read(&mut incoming, &mut deadline, LARGEST_LIST).await?;
    let (found, has_more) = bucket.files(name, &answer);
    Ok(talk.told(incoming, files::listed(&found, has_more)))
}
