//! Responses that go on in the background: each is paid for once, by who is told first what it used. Other workers know of them
//! through Redis; without one those of the same node do, through the control process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::redis::Redis;
use crate::state::shared::{bounded_cache::Generations, node_store::Neighbours};

/// Bytes of all that one worker remembers, and of one of them with its place.
const MOST: usize = 4 * 1024 * 1024;
const ROOM: usize = 96;
/// An id that is longer is none.
const LONGEST: usize = 512;
/// What is noted of one that is paid for.
const PAID: &str = "";

#[derive(Debug)]
pub struct Dues {
    /// By provider and id: the model as it was asked for, and its own name where it has another.
    owed: Mutex<Generations<Box<str>, Box<str>>>,
    others: Others,
}

/// Who else may be asked for a response, or be told what it used.
#[derive(Debug)]
pub enum Others {
    None,
    Redis(Arc<Redis>),
    Neighbours(Arc<Neighbours>),
}

impl Others {
    fn note(&self, name: String, said: &str) {
        match self {
            Self::None => (),
            Self::Redis(redis) => redis.note(name, said),
            Self::Neighbours(neighbours) => neighbours.note(name, said.to_owned()),
        }
    }

    /// Leaves a note, and says what was noted there before.
    async fn swap(&self, name: String, said: &str) -> Option<String> {
        match self {
            Self::None => None,
            Self::Redis(redis) => redis.swap(&name, said).await,
            Self::Neighbours(neighbours) => neighbours.swap(name, said.to_owned()).await,
        }
    }

    /// What one of them noted last.
    async fn noted(&self, name: String) -> Option<String> {
        match self {
            Self::None => None,
            Self::Redis(redis) => redis.noted(&[name]).await.pop().flatten(),
            Self::Neighbours(neighbours) => neighbours.noted(name).await,
        }
    }
}

impl Dues {
    pub fn new(others: Others) -> Self {
        Self { owed: Mutex::new(Generations::new(MOST)), others }
    }

    /// What it will have used nobody knows yet.
    pub fn owe(&self, provider: &str, id: &str, (model, own): (&str, Option<&str>)) {
        if id.len() > LONGEST {
            return;
        }
        let (key, said) = (format!("{provider}/{id}"), format!("{model}\n{}", own.unwrap_or_default()));
        self.others.note(name(&key), &said);
        self.put(key.into(), said.into());
    }

    /// Whether it is to be paid for.
    pub async fn look(self: &Arc<Self>, provider: &str, id: &str) -> Option<Debt> {
        if id.len() > LONGEST {
            return None;
        }
        let key: Box<str> = format!("{provider}/{id}").into();
        match self.others.noted(name(&key)).await {
            // Whoever it was that paid.
            Some(said) if said == PAID => self.owed().remove(&key),
            Some(said) => self.put(key.clone(), said.into()),
            None => (),
        }
        let is_owed = self.owed().get(&key).is_some();
        is_owed.then(|| Debt { dues: Arc::clone(self), key })
    }

    fn owed(&self) -> MutexGuard<'_, Generations<Box<str>, Box<str>>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: Box<str>, said: Box<str>) {
        let bytes = key.len() + said.len() + ROOM;
        self.owed().put(key, said, bytes);
    }
}

fn name(key: &str) -> String {
    format!("due:{key}")
}

/// One that is not paid for.
#[derive(Debug)]
pub struct Debt {
    dues: Arc<Dues>,
    key: Box<str>,
}

impl Debt {
    /// Whether somebody else may pay for it too.
    pub fn is_shared(&self) -> bool {
        !matches!(self.dues.others, Others::None)
    }

    /// Tells all others that it is paid for now; whether nobody did so before. Who hears nothing of others is the first.
    pub async fn is_first(&self) -> bool {
        self.dues.others.swap(name(&self.key), PAID).await.is_none_or(|before| before != PAID)
    }

    /// The model, and its own name where it has another; `None` where somebody else was faster.
    pub fn pay(self) -> Option<(String, Option<String>)> {
        let Self { dues, key } = self;
        let said = {
            let mut owed = dues.owed();
            let said = owed.get(&key)?;
            owed.remove(&key);
            said
        };
        dues.others.note(name(&key), PAID);
        let (model, own) = said.split_once('\n')?;
        Some((model.to_owned(), (!own.is_empty()).then(|| own.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_owed_is_paid_once_at_its_own_provider() {
        let dues = Arc::new(Dues::new(Others::None));
        dues.owe("openai", "resp_1", ("m", Some("own")));
        dues.owe("openai", &"x".repeat(LONGEST + 1), ("m", None));
        assert!(dues.look("azure-openai", "resp_1").await.is_none());
        assert!(dues.look("openai", &"x".repeat(LONGEST + 1)).await.is_none());
        // Two see it, and one of them pays.
        let (one, other) = (dues.look("openai", "resp_1").await.unwrap(), dues.look("openai", "resp_1").await.unwrap());
        assert_eq!((one.pay(), other.pay()), (Some(("m".to_owned(), Some("own".to_owned()))), None));
        assert!(dues.look("openai", "resp_1").await.is_none());
    }
}
