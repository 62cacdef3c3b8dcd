//! The body of an answer, over whichever version of HTTP it comes.

use std::{
    collections::VecDeque,
    future::Future,
    pin::{Pin, pin},
    sync::LazyLock,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::{connection::LARGEST_READ, http1, http2};
use crate::{
    error::{Error, Result},
    process::deadline::{self, Deadline},
};

/// Between here and a caller's socket about ten pieces may wait: together they must stay below 256 KB.
const SMALL_PIECE: usize = 8 * 1024;

#[derive(Debug)]
enum Source {
    Http1(http1::Reading),
    Http2(Box<http2::Reading>),
    /// So many bytes, which are here.
    AtHand(usize),
    Parts(Box<Parts>),
}

/// Asks for a body, once it is wanted: there may be many, and a question on its way takes far more room than one that is not.
pub type Later = Box<dyn FnOnce() -> Asked + Send>;
pub type Asked = Pin<Box<dyn Future<Output = Result<AnswerBody>> + Send>>;

/// Bodies one after the other.
struct Parts {
    now: AnswerBody,
    /// The one after it, where that is on its way: who waits for it may stop waiting, and come again.
    asked: Option<Asked>,
    later: VecDeque<Later>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Parts({:?}, {} later)", self.now, self.later.len())
    }
}

impl Parts {
    /// What comes next of the one that is read, or of the one after it.
    async fn next(&mut self, most: usize) -> Option<Result<Bytes>> {
        loop {
            self.now.most = most;
            if let Some(read) = Box::pin(self.now.next()).await {
                return Some(read);
            }
            if self.asked.is_none() {
                self.asked = Some(self.later.pop_front()?());
            }
            let body = self.asked.as_mut()?.await;
            self.asked = None;
            match body {
                Ok(body) => self.now = body,
                Err(error) => {
                    self.later.clear();
                    return Some(Err(error));
                }
            }
        }
    }
}

/// The body of an answer, as it comes.
#[derive(Debug)]
pub struct AnswerBody {
    source: Source,
    /// Largest piece to read.
    most: usize,
    returned: Option<Bytes>,
    through: Option<Through>,
}

/// What makes other bytes of those that come: `None` for the end, after which there may be a last word.
struct Through(Box<dyn FnMut(Option<Bytes>) -> Result<Bytes> + Send>);

impl std::fmt::Debug for Through {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Through")
    }
}

impl From<http1::Reading> for AnswerBody {
    fn from(reading: http1::Reading) -> Self {
        Self { source: Source::Http1(reading), most: LARGEST_READ, returned: None, through: None }
    }
}

impl From<http2::Reading> for AnswerBody {
    fn from(reading: http2::Reading) -> Self {
        Self { source: Source::Http2(Box::new(reading)), most: LARGEST_READ, returned: None, through: None }
    }
}

impl AnswerBody {
    /// A body that is at hand: nothing is read for it.
    pub fn whole(bytes: Bytes) -> Self {
        Self { source: Source::AtHand(bytes.len()), most: LARGEST_READ, returned: Some(bytes), through: None }
    }

    /// A body behind which others follow, each asked for when the one before has ended.
    pub fn parts(now: Self, later: VecDeque<Later>) -> Self {
        Self {
            source: Source::Parts(Box::new(Parts { now, asked: None, later })),
            most: LARGEST_READ,
            returned: None,
            through: None,
        }
    }

    /// From here on what is made of its bytes instead of them.
    #[must_use]
    pub fn through(mut self, mut make: impl FnMut(Option<Bytes>) -> Bytes + Send + 'static) -> Self {
        self.returned = self.returned.map(|bytes| make(Some(bytes))).filter(|made| !made.is_empty());
        self.make(move |piece| Ok(make(piece)))
    }

    /// The same of bytes that are still to come, and of which something may be broken: there the body breaks off.
    #[must_use]
    pub fn decoded(self, make: impl FnMut(Option<Bytes>) -> Result<Bytes> + Send + 'static) -> Self {
        debug_assert!(self.returned.is_none(), "some of it is here");
        self.make(make)
    }

    fn make(mut self, mut make: impl FnMut(Option<Bytes>) -> Result<Bytes> + Send + 'static) -> Self {
        self.through = Some(Through(match self.through.take() {
            None => Box::new(make),
            Some(mut first) => Box::new(move |piece| match piece {
                Some(piece) => make(Some((first.0)(Some(piece))?)),
                None => Ok([make(Some((first.0)(None)?))?, make(None)?].concat().into()),
            }),
        }));
        self
    }

    /// All bytes are read, but for what was put back.
    pub fn is_done(&self) -> bool {
        let is_read = match &self.source {
            Source::Http1(reading) => reading.is_done(),
            Source::Http2(reading) => reading.is_done(),
            Source::AtHand(_) => true,
            Source::Parts(parts) => parts.later.is_empty() && parts.asked.is_none() && parts.now.is_done(),
        };
        is_read && self.returned.is_none() && self.through.is_none()
    }

    /// The length that the provider declared.
    pub fn expected(&self) -> Option<usize> {
        if self.through.is_some() {
            return None;
        }
        match &self.source {
            Source::Http1(reading) => reading.expected(),
            Source::Http2(reading) => reading.expected(),
            Source::AtHand(length) => Some(*length),
            Source::Parts(_) => None,
        }
    }

    /// All of it, where it is at hand and untouched.
    pub fn at_hand(&self) -> Option<&Bytes> {
        let is_at_hand = matches!(self.source, Source::AtHand(_)) && self.through.is_none();
        self.returned.as_ref().filter(|_| is_at_hand)
    }

    /// From here on in pieces that a caller who reads slowly may be behind by several of.
    pub fn in_small_pieces(&mut self) {
        self.most = SMALL_PIECE;
    }

    /// From here on an empty piece tells of each silence of this length.
    pub fn in_steps(&mut self, step: Duration) {
        match &mut self.source {
            Source::Http1(reading) => reading.patience().in_steps(step),
            Source::Http2(reading) => reading.patience().in_steps(step),
            Source::AtHand(_) => (),
            Source::Parts(parts) => parts.now.in_steps(step),
        }
    }

    /// The rest of it has the time of a whole answer, and no more.
    pub fn ends_with(&mut self, deadline: &Deadline) {
        match &mut self.source {
            Source::Http1(reading) => reading.patience().ends_with(deadline),
            Source::Http2(reading) => reading.patience().ends_with(deadline),
            Source::AtHand(_) => (),
            Source::Parts(parts) => parts.now.ends_with(deadline),
        }
    }

    /// Waits until there is something to read, or the end.
    pub async fn begun(&mut self) -> Result<()> {
        if self.returned.is_none()
            && let Some(first) = self.next().await.transpose()?
        {
            self.put_back(first);
        }
        Ok(())
    }

    /// Puts bytes back, to be read first again.
    pub fn put_back(&mut self, bytes: Bytes) {
        // What was made at once of a piece may be longer than what was read of it: the rest waits here already.
        self.returned = Some(match self.returned.take() {
            None => bytes,
            Some(rest) => [bytes, rest].concat().into(),
        });
    }

    /// All that is ready, in one piece (an empty one after a silence, where that was asked for); `None` at the end; an error where it was cut, stalled or is not HTTP.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        if let Some(bytes) = self.returned.take() {
            return Some(Ok(self.cut(bytes)));
        }
        loop {
            let read = match &mut self.source {
                Source::Http1(reading) => reading.next(self.most).await,
                Source::Http2(reading) => reading.next(self.most).await,
                Source::AtHand(_) => None,
                Source::Parts(parts) => parts.next(self.most).await,
            };
            let Some(through) = &mut self.through else { return read };
            let made = match read {
                Some(Ok(bytes)) if bytes.is_empty() => return Some(Ok(bytes)),
                Some(Ok(bytes)) => (through.0)(Some(bytes)),
                Some(Err(error)) => return Some(Err(error)),
                None => {
                    let last = (through.0)(None);
                    self.through = None;
                    return last.map(|last| (!last.is_empty()).then(|| self.cut(last))).transpose();
                }
            };
            match made {
                Ok(made) if made.is_empty() => (),
                Ok(made) => return Some(Ok(self.cut(made))),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// As much as may be passed on at once; the rest is read next.
    fn cut(&mut self, mut bytes: Bytes) -> Bytes {
        if bytes.len() > self.most {
            self.returned = Some(bytes.split_off(self.most));
        }
        bytes
    }
}

const SECONDS: Duration = Duration::from_secs(1);
const TOGETHER: Duration = Duration::from_millis(20);
/// So many pieces that are there at once come without a look at the clock.
const MOST_UNWATCHED: u8 = 8;

/// How long a provider may say nothing within its answer, how long that may take in all, and in which steps its reader
/// wants to know of a silence.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    idle: Duration,
    /// In milliseconds.
    total: u64,
    step: Duration,
    silent: Duration,
    /// Of all of it; known when it was waited for first, or much of it had come.
    end: Option<Instant>,
    /// Pieces since somebody looked at the clock.
    unwatched: u8,
}

impl Patience {
    pub fn new(idle: Duration, total: Duration) -> Self {
        Self { idle, total: total.as_millis() as u64, step: idle, silent: Duration::ZERO, end: None, unwatched: 0 }
    }

    pub fn in_steps(&mut self, step: Duration) {
        self.step = step.min(self.idle);
    }

    fn ends_with(&mut self, deadline: &Deadline) {
        (self.total, self.end) = (deadline.limit().as_millis() as u64, Some(deadline.end()));
    }

    /// Waits for what comes next; `None` where only a step has passed, an error where nothing came for too long.
    pub async fn bound<F: Future>(&mut self, work: F) -> Result<Option<F::Output>> {
        let mut work = pin!(work);
        // The clock is looked at only when there is something to wait for, and now and then where there never is.
        let first = std::future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
        if let Poll::Ready(output) = first {
            self.silent = Duration::ZERO;
            self.unwatched += 1;
            return if self.unwatched < MOST_UNWATCHED { Ok(Some(output)) } else { self.look().map(|()| Some(output)) };
        }
        let (now, step) = (Instant::now(), self.step.min(self.idle.saturating_sub(self.silent)));
        let end = self.end_of_all(now);
        tokio::select! {
            biased;
            output = work => {
                self.silent = Duration::ZERO;
                return Ok(Some(output));
            }
            () = sleep_until(shared(now + step, step).min(end)) => (),
        }
        self.look()?;
        self.silent += step;
        if self.silent < self.idle {
            return Ok(None);
        }
        Err(Error::Silence { milliseconds: self.idle.as_millis() as u64 })
    }

    /// Fails where the time of all of it is over.
    fn look(&mut self) -> Result<()> {
        self.unwatched = 0;
        let now = Instant::now();
        if self.end_of_all(now) > now { Ok(()) } else { Err(Error::Timeout { milliseconds: self.total }) }
    }

    fn end_of_all(&mut self, now: Instant) -> Instant {
        *self.end.get_or_insert_with(|| deadline::after(now, Duration::from_millis(self.total)))
    }
}

/// Silences of seconds are over together with others, up to `TOGETHER` later: each by itself would wake two threads.
fn shared(end: Instant, limit: Duration) -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    if limit < SECONDS {
        return end;
    }
    let over = end.duration_since(*START).as_millis() % TOGETHER.as_millis();
    end + TOGETHER - Duration::from_millis(over as u64)
}

#[cfg(test)]
mod tests {
    use super::{super::collect, *};

    #[tokio::test(start_paused = true)]
    async fn what_never_has_to_be_waited_for_has_an_end_in_time_too() {
        let total = Duration::from_secs(9);
        let mut patience = Patience::new(Duration::from_secs(1), total);
        for _ in 0..u16::from(MOST_UNWATCHED) * 2 {
            assert!(patience.bound(std::future::ready(())).await.is_ok());
        }
        tokio::time::advance(total).await;
        let mut ends = Vec::new();
        for _ in 0..MOST_UNWATCHED {
            ends.push(patience.bound(std::future::ready(())).await.is_err());
        }
        assert_eq!(ends.iter().filter(|is_over| **is_over).count(), 1);
    }

    #[tokio::test]
    async fn what_is_made_of_bytes_is_handed_on_in_pieces_too() {
        let mut body = AnswerBody::whole(Bytes::from_static(b"a"));
        body = body.through(|piece| if piece.is_some() { Bytes::new() } else { Bytes::from(vec![7; 20_000]) });
        body.in_small_pieces();
        let mut lengths = Vec::new();
        while let Some(piece) = body.next().await {
            lengths.push(piece.unwrap().len());
        }
        assert_eq!(lengths, [SMALL_PIECE, SMALL_PIECE, 20_000 - 2 * SMALL_PIECE]);
        assert!(body.is_done());
    }

    fn later(body: Result<AnswerBody>) -> Later {
        Box::new(move || {
            Box::pin(async move {
                tokio::time::sleep(SECONDS).await;
                body
            })
        })
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_come_one_after_the_other_however_often_who_waits_stops_waiting() {
        let whole = |text: &'static str| AnswerBody::whole(Bytes::from_static(text.as_bytes()));
        let broken = Err(Error::UpstreamBroke { cause: "gone".into() });
        let later_ones = [Ok(whole("b")), Ok(whole("")), Ok(whole("cd")), broken, Ok(whole("e"))];
        let mut body = AnswerBody::parts(whole("a"), later_ones.into_iter().map(later).collect());
        let (mut read, mut waits, mut errors) = (Vec::new(), 0, 0);
        while !body.is_done() {
            match tokio::time::timeout(Duration::from_millis(300), body.next()).await {
                Ok(Some(Ok(piece))) => read.extend_from_slice(&piece),
                Ok(Some(Err(_))) => errors += 1,
                Ok(None) => break,
                Err(_) => waits += 1,
            }
        }
        assert_eq!((read.as_slice(), errors, waits), (&b"abcd"[..], 1, 12));
        assert!(body.next().await.is_none() && body.is_done());
    }

    /// One that makes 200 KB of a byte, at once.
    fn grown() -> (AnswerBody, Vec<u8>) {
        let made: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
        let told = Bytes::from(made.clone());
        let body = AnswerBody::whole(Bytes::from_static(b"a"));
        (body.through(move |piece| if piece.is_some() { Bytes::new() } else { told.clone() }), made)
    }

    #[tokio::test]
    async fn of_what_is_made_at_once_nothing_is_lost_where_its_beginning_is_waited_for_or_put_back() {
        let (mut body, made) = grown();
        body.begun().await.unwrap();
        let first = body.next().await.unwrap().unwrap();
        body.put_back(first);
        let mut read = Vec::new();
        while let Some(piece) = body.next().await {
            read.extend_from_slice(&piece.unwrap());
        }
        assert!(read == made, "{} bytes of {}", read.len(), made.len());
    }

    #[tokio::test]
    async fn what_is_collected_is_within_the_limit_whichever_way_it_comes_or_all_is_there_again() {
        for (mut body, made) in [grown(), (AnswerBody::whole(Bytes::from_static(b"abc")), b"abc".to_vec())] {
            for limit in [0, 1, made.len() - 1] {
                assert_eq!(collect(&mut body, limit).await.unwrap(), None);
            }
            assert!(collect(&mut body, made.len()).await.unwrap().unwrap() == made);
        }
    }
}
