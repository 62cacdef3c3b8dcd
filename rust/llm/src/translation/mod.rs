//! One request shape in, every provider out: requests between dialects, and answers back piece by piece.
//!
//! A caller's request becomes [`asked::Asked`], a provider's answer becomes [`piece::Piece`]s: `callers` and `wires` know one
//! side each. What is not translated does not come here.

mod answering;
mod asked;
mod callers;
mod finish;
mod lost;
mod piece;
mod teller;
mod transcoder;
pub mod wires;

pub use answering::Answering;
pub use asked::Refusal;
pub use lost::Lost;
pub use transcoder::Transcoder;

use self::{
    teller::Teller,
    wires::{Broken, Wire},
};
use crate::{
    dialect::{Dialect, Failure, error_body},
    operation::Operation,
    providers::Provider,
};

/// A request to be said to a provider in the provider's own way.
pub struct Question<'a> {
    pub operation: Operation,
    pub provider: &'a dyn Provider,
    pub body: &'a [u8],
    /// Nothing in the answer but what the caller's dialect has.
    pub strict: bool,
    /// In seconds since 1970.
    pub now: u64,
}

/// How the caller writes and reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Chat,
    Messages,
}

/// A translated request: what is sent, and how what comes back is told.
pub struct Translation {
    caller: Caller,
    wire: &'static dyn Wire,
    pub answering: Answering,
    pub lost: Lost,
}

impl Translation {
    /// The body to send. An error says what of the caller's cannot be said to this provider.
    pub fn of(question: &Question<'_>, wire: &'static dyn Wire) -> Result<(Self, Vec<u8>), Refusal> {
        let caller = caller(question.operation)?;
        let mut asked = match caller {
            Caller::Chat => callers::chat::read(question.body)?,
            Caller::Messages => callers::messages::read(question.body)?,
        };
        let blocks = !question.strict || asked.fields.get("thinking").is_some_and(|thinking| !thinking.is_null());
        let answering = Answering {
            provider: question.provider.slug(),
            model: asked.model.clone(),
            created: question.now,
            strict: question.strict,
            blocks,
            include_usage: caller == Caller::Chat && includes_usage(question.body),
        };
        let body = wire.write(&mut asked)?;
        Ok((Self { caller, wire, answering, lost: asked.into_lost() }, body))
    }

    /// A whole answer in the caller's dialect.
    pub fn whole(&self, answer: &[u8]) -> Result<Vec<u8>, Broken> {
        let mut teller: Box<dyn Teller> = match self.caller {
            Caller::Chat => Box::new(callers::chat::Whole::new(self.answering.clone())),
            Caller::Messages => Box::new(callers::messages::Whole::new(&self.answering)),
        };
        self.wire.read(answer, &mut *teller)?;
        Ok(teller.told())
    }

    /// What turns the provider's stream into the caller's.
    pub fn stream(&self) -> Transcoder {
        let teller: Box<dyn Teller> = match self.caller {
            Caller::Chat => Box::new(callers::chat::Stream::new(self.answering.clone())),
            Caller::Messages => Box::new(callers::messages::Stream::new(self.answering.clone())),
        };
        Transcoder::new(self.wire.frames(), self.wire.listener(), teller)
    }

    /// A provider's error in the caller's dialect; the status stays the provider's.
    pub fn error(&self, status: u16, answer: &[u8]) -> Vec<u8> {
        let found = self.wire.error(answer);
        let text = found.message.unwrap_or_else(|| String::from_utf8_lossy(answer).trim().to_owned());
        let provider = self.answering.provider;
        let text = if text.is_empty() { format!("status {status}") } else { text };
        let message = format!("{provider} error: {text}");
        let failure = Failure {
            status,
            kind: found.kind.as_deref(),
            message: &message,
            code: found.code.as_deref(),
            request_id: None,
        };
        match self.caller {
            // The kinds of one dialect are not those of the other: the status says it.
            Caller::Messages => error_body(Dialect::Anthropic, &Failure { kind: None, code: None, ..failure }),
            Caller::Chat => with_provider(error_body(Dialect::OpenAi, &failure), provider),
        }
    }

    /// Whether an answer of this content type is a stream.
    pub fn is_stream(&self, content_type: &str) -> bool {
        content_type.starts_with(self.wire.frames().content_type())
    }
}

/// Whether requests for an operation can be said in another way than they came.
pub fn is_translatable(operation: Operation) -> bool {
    caller(operation).is_ok()
}

fn caller(operation: Operation) -> Result<Caller, Refusal> {
    match operation {
        Operation::ChatComplete => Ok(Caller::Chat),
        Operation::Messages => Ok(Caller::Messages),
        other => Err(Refusal::new("$", format!("{} cannot be translated", other.id()))),
    }
}

fn includes_usage(body: &[u8]) -> bool {
    crate::dialect::peek(body).is_ok_and(|peek| peek.include_usage == Some(true))
}

fn with_provider(mut body: Vec<u8>, provider: &str) -> Vec<u8> {
    if body.pop() == Some(b'}') {
        body.extend_from_slice(format!(",\"provider\":\"{provider}\"}}").as_bytes());
    }
    body
}
