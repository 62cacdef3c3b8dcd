//! `OpenAI`'s chat completions, as everybody takes them who is compatible.

mod answer;
pub(super) mod request;

pub use answer::error;

use super::{Broken, Found, Listener, Wire};
use crate::translation::{
    asked::{Asked, Refusal},
    piece::Taker,
};

pub struct Chat {
    /// What limits an answer's length is called so.
    limit: &'static str,
}

/// As `OpenAI` has it today.
pub static OPENAI: Chat = Chat { limit: "max_completion_tokens" };
/// As it was when others became compatible with it.
pub static COMPATIBLE: Chat = Chat { limit: "max_tokens" };

impl Wire for Chat {
    fn write(&self, asked: &mut Asked) -> Result<Vec<u8>, Refusal> {
        Ok(serde_json::Value::Object(request::write(asked, self.limit)?).to_string().into_bytes())
    }

    fn read(&self, answer: &[u8], taker: &mut dyn Taker) -> Result<(), Broken> {
        answer::read(answer, taker)
    }

    fn listener(&self) -> Box<dyn Listener> {
        Box::new(answer::Hearing::default())
    }

    fn error(&self, answer: &[u8]) -> Found {
        answer::error(answer)
    }
}
