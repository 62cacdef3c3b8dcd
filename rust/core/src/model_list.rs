//! A provider's list of models where it is told in another way than the caller reads it: all of its pages as one.

use bytes::Bytes;
use penstock_llm::translation::Translation;

use crate::{
    body::Body,
    call::{Call, Target},
    delivery::{self, Served},
    error::Result,
    gateway::Gateway,
    record::Facts,
    translation::{self, MOST},
    upstream::{self, AnswerBody, Incoming},
};

/// A list that is longer has no end.
const MOST_PAGES: usize = 50;

/// The list as the caller reads it; an error on the way is the answer.
pub async fn ask(
    gateway: &Gateway,
    call: &Call<'_>,
    target: &Target<'_>,
    mut translation: Translation,
    facts: &mut Facts,
) -> Result<Served> {
    let (mut pages, mut room): (Vec<Bytes>, _) = (Vec::new(), MOST);
    loop {
        let asked = (Body::empty(), Some(&translation));
        let (incoming, mut deadline) = gateway.exchange(call, target, asked, facts).await?;
        if translation.is_carried || incoming.head.status != 200 || !delivery::is_plain(&incoming.head.headers) {
            let incoming = translation::tell(call, translation, incoming, &mut deadline).await?;
            return Ok(Served::new(incoming, call.dialect(), deadline));
        }
        let Incoming { mut head, mut body } = incoming;
        let page = deadline.bound(upstream::collect(&mut body, room)).await?;
        let page = page.ok_or_else(|| translation::unread("it is too large"))?;
        room -= page.len();
        let goes_on = translation.turns(&page);
        pages.push(page);
        if goes_on && pages.len() == MOST_PAGES {
            return Err(translation::unread("its list does not end"));
        }
        if !goes_on {
            let told = translation.whole_list(&pages).map_err(|broken| translation::unread(&broken.0))?;
            head.headers = translation::retyped(head.headers, b"application/json");
            let incoming = Incoming { head, body: AnswerBody::whole(told.into()) };
            return Ok(Served::new(incoming, call.dialect(), deadline));
        }
    }
}
