//! A provider's list of models where it is told in another way than the caller reads it: all of its pages as one.

use bytes::Bytes;
use penstock_llm::translation::Translation;

use crate::{
    accounting::record::Facts,
    error::Result,
    gateway::Gateway,
    ingress::body::Body,
    process::deadline::Deadline,
    request::translate::{self, worked},
    resolve::{target::Target, target_resolver::Call},
    response::delivery::{self, Served},
    upstream::{self, AnswerBody, Incoming},
};

/// A list that is longer has no end.
const MOST_PAGES: usize = 50;
/// All pages together: what is read of a list takes many times its bytes.
pub const MOST: usize = 4 * 1024 * 1024;

/// The list as the caller reads it; an error on the way is the answer.
pub async fn ask(
    gateway: &Gateway,
    call: &Call<'_>,
    target: &Target<'_>,
    mut translation: Translation,
    facts: &mut Facts,
) -> Result<Served> {
    let (mut pages, mut room): (Vec<Bytes>, _) = (Vec::new(), MOST);
    let mut first: Option<Deadline> = None;
    loop {
        let asked = (Body::empty(), Some(&translation));
        let asking = gateway.exchange(call, target, asked, facts);
        // The time for one answer is there for all pages: they are one to the caller.
        let (incoming, mut deadline) = match first {
            Some(mut deadline) => (deadline.bound(asking).await?.0, deadline),
            None => asking.await?,
        };
        if translation.is_carried || incoming.head.status != 200 || !delivery::is_plain(&incoming.head.headers) {
            let incoming = translate::tell(call, translation, incoming, &mut deadline).await?;
            return Ok(Served::new(incoming, call.dialect(), deadline));
        }
        let Incoming { mut head, mut body } = incoming;
        let read = deadline.bound(upstream::collect(&mut body, room)).await?;
        let read = read.ok_or_else(|| translate::unread("it is too large"))?;
        room = room.saturating_sub(read.len());
        let (page, goes_on);
        (translation, page, goes_on) = worked(read.len(), move || {
            let goes_on = translation.turns(&read);
            (translation, read, goes_on)
        })
        .await?;
        pages.push(page);
        if goes_on && pages.len() == MOST_PAGES {
            return Err(translate::unread("its list does not end"));
        }
        if !goes_on {
            let told = worked(MOST - room, move || translation.whole_list(&pages)).await?;
            let told = told.map_err(|broken| translate::unread(&broken.0))?;
            head.headers = translate::retyped(head.headers, b"application/json");
            let incoming = Incoming { head, body: AnswerBody::whole(told.into()) };
            return Ok(Served::new(incoming, call.dialect(), deadline));
        }
        first = Some(deadline);
    }
}
