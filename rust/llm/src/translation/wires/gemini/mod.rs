//! Google's Gemini, as AI Studio and Vertex AI take it.

mod answer;
mod request;
mod schema;

use super::{Broken, Found, Listener, Wire, chat};
use crate::translation::{
    asked::{Asked, Refusal},
    piece::Taker,
};

pub struct Gemini;

impl Wire for Gemini {
    fn write(&self, asked: &mut Asked) -> Result<Vec<u8>, Refusal> {
        Ok(serde_json::Value::Object(request::write(asked)?).to_string().into_bytes())
    }

    fn read(&self, answer: &[u8], taker: &mut dyn Taker) -> Result<(), Broken> {
        answer::read(answer, taker)
    }

    fn listener(&self) -> Box<dyn Listener> {
        Box::new(answer::Hearing::default())
    }

    /// `{error: {code, message, status}}`: the fields have the names that others use.
    fn error(&self, answer: &[u8]) -> Found {
        chat::error(answer)
    }
}
