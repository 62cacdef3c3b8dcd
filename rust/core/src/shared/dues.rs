//! Responses that go on in the background: each is paid for once, by who is told first what it used. Through Redis other workers
//! know of them too.

use std::sync::{Arc, Mutex, PoisonError};

use super::{generations::Generations, redis::Redis};

/// Bytes of all that one worker remembers, and of one of them with its place.
const MOST: usize = 4 * 1024 * 1024;
const ROOM: usize = 96;
/// An id that is longer is none.
const LONGEST: usize = 512;

#[derive(Debug)]
pub struct Dues {
    /// By provider and id: the model as it was asked for, and its own name where it has another.
    owed: Mutex<Generations<Box<str>, Box<str>>>,
    redis: Option<Arc<Redis>>,
}

impl Dues {
    pub fn new(redis: Option<Arc<Redis>>) -> Self {
        Self { owed: Mutex::new(Generations::new(MOST)), redis }
    }

    /// What it will have used nobody knows yet.
    pub fn owe(&self, provider: &str, id: &str, (model, own): (&str, Option<&str>)) {
        if id.len() > LONGEST {
            return;
        }
        let (key, said) = (format!("{provider}/{id}"), format!("{model}\n{}", own.unwrap_or_default()));
        if let Some(redis) = &self.redis {
            redis.note(name(&key), said.as_str());
        }
        self.put(key.into(), said.into());
    }

    /// Whether it is to be paid for.
    pub async fn look(self: &Arc<Self>, provider: &str, id: &str) -> Option<Debt> {
        if id.len() > LONGEST {
            return None;
        }
        let key: Box<str> = format!("{provider}/{id}").into();
        if self.owed.lock().unwrap_or_else(PoisonError::into_inner).get(&key).is_none() {
            let said = self.redis.as_ref()?.noted(&[name(&key)]).await.pop().flatten()?;
            self.put(key.clone(), said.into());
        }
        Some(Debt { dues: Arc::clone(self), key })
    }

    fn put(&self, key: Box<str>, said: Box<str>) {
        let bytes = key.len() + said.len() + ROOM;
        self.owed.lock().unwrap_or_else(PoisonError::into_inner).put(key, said, bytes);
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
    /// The model, and its own name where it has another; `None` where somebody else was faster.
    pub fn pay(self) -> Option<(String, Option<String>)> {
        let Self { dues, key } = self;
        let said = {
            let mut owed = dues.owed.lock().unwrap_or_else(PoisonError::into_inner);
            let said = owed.get(&key)?;
            owed.remove(&key);
            said
        };
        if let Some(redis) = &dues.redis {
            redis.drop_note(name(&key));
        }
        let (model, own) = said.split_once('\n')?;
        Some((model.to_owned(), (!own.is_empty()).then(|| own.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_owed_is_paid_once_at_its_own_provider() {
        let dues = Arc::new(Dues::new(None));
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
