//! One request shape in, every provider out: requests between dialects, and answers back piece by piece.
//!
//! A caller's request becomes [`asked::Asked`], a provider's answer becomes [`piece::Piece`]s: `callers` and `wires` know one
//! side each. What is not translated does not come here.

pub(crate) mod dropped;
pub(crate) mod errors;
pub(crate) mod normalise;

pub use crate::chat::request::Refusal;
pub use crate::chat::response_context::Answering;
pub use crate::chat::signatures::{Kept, Signatures};
pub use crate::chat::transcoder::Transcoder;
pub use crate::translation::dropped::{Lost, Unsaid};
pub use crate::translation::normalise::Mending;

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::{
    api_format::ApiFormat,
    catalog::{Options, Provider},
    operation::Operation,
};
use crate::{
    chat::{
        providers::{Broken, Frames, Wire},
        request::Fields,
        response_writer::{Noting, Teller},
        sequential_tool_calls::InTurn,
    },
    citations::ByBlock,
    embeddings::request::{Shape, Texts},
    images::request::{Drawn, Picture},
    jobs::{
        batch::Run,
        fine_tuning::{Page, Tune},
    },
    model_list::Listed,
    rerank::request::{DOCUMENTS, Ranking},
    translation::errors::Whose,
};

/// A request to be said to a provider in the provider's own way.
pub struct Question<'a> {
    pub operation: Operation,
    pub provider: &'a dyn Provider,
    pub body: &'a [u8],
    /// As the body names it, or what stands for that.
    pub model: &'a str,
    pub beside: Beside<'a>,
    /// Nothing in the answer but what the caller's dialect has.
    pub strict: bool,
    /// In milliseconds since 1970.
    pub now: u64,
    /// Tells it from others of the same moment.
    pub mark: u32,
}

/// What is said of a request outside its body.
#[derive(Debug, Default, Clone, Copy)]
pub struct Beside<'a> {
    /// What of Anthropic's betas is asked for, and which version of its API.
    pub betas: Option<&'a str>,
    pub version: Option<&'a str>,
    /// The caller is a client of Anthropic's, which reads lists as Anthropic tells them.
    pub is_anthropics: bool,
    /// Without its question mark.
    pub query: &'a str,
    /// What the provider is told besides a credential.
    pub options: Option<&'a Options>,
    /// The model whose maker decides how it is asked, where that is not the one that the body names.
    pub meant: Option<&'a str>,
    /// Of calls that were signed for the same caller before.
    pub signatures: Option<&'a Kept>,
}

/// How the caller writes and reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Chat,
    Complete,
    Messages,
    Responses,
    Gemini,
    Converse,
    /// In the words that Claude's models have on Bedrock.
    Invoke,
    Embed(Shape),
    Draw,
    Rank,
    Count(Counted),
    List,
    /// Jobs of fine-tuning.
    Tune,
    /// Batches.
    Batch,
}

/// What is said of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    Messages,
    Contents,
    Converse,
}

/// A translated request: what is sent, and how what comes back is told.
pub struct Translation {
    caller: Caller,
    wire: &'static dyn Wire,
    operation: Operation,
    /// Request and answer are the caller's own, but for what their host has otherwise.
    pub is_carried: bool,
    /// The caller is a client of Anthropic's.
    is_anthropics: bool,
    /// The stream's usage was asked for by nobody but the gateway: to be taken out where it was read.
    pub hides_usage: bool,
    page: Page,
    /// What of Anthropic's betas is asked for in a header, besides what the caller's own header says.
    pub betas: Option<String>,
    /// Which version of Anthropic's API the body asks for, where nothing else does.
    pub version: Option<String>,
    /// Where the page of a list of models begins that is asked for, if it is not the first.
    pub next: Option<String>,
    pub answering: Answering,
    pub lost: Lost,
}

impl Translation {
    /// The body to send. An error says what of the caller's cannot be said to this provider.
    pub fn of(question: &Question<'_>, wire: &'static dyn Wire) -> Result<(Self, Vec<u8>), Refusal> {
        let operation = question.operation;
        let unknown = || Refusal::new("$", format!("{} cannot be said in another way", operation.id()));
        let caller = caller(operation).ok_or_else(unknown)?;
        if let Some(body) = wire.carry(question) {
            return Ok((Self { is_carried: true, ..Self::new(question, (caller, wire), Lost::default()) }, body?));
        }
        let (mut asked, echo) = match caller {
            Caller::Chat => (crate::chat::clients::openai_chat::read(question.body)?, Fields::default()),
            Caller::Messages => (crate::chat::clients::anthropic_messages::read(question.body)?, Fields::default()),
            Caller::Responses => crate::chat::clients::openai_responses::read(question.body)?,
            Caller::Gemini => (
                crate::chat::clients::gemini::read(question.body, question.model, operation.streams())?,
                Fields::default(),
            ),
            Caller::Converse => (
                crate::chat::clients::bedrock_converse::read(question.body, question.model, operation.streams())?,
                Fields::default(),
            ),
            Caller::Invoke => (
                crate::chat::clients::bedrock_converse::invoke::read(
                    question.body,
                    question.model,
                    operation.streams(),
                )?,
                Fields::default(),
            ),
            Caller::Embed(shape) => return Self::of_texts(question, wire, shape),
            Caller::Complete => (crate::chat::clients::openai_completions::read(question.body)?, Fields::default()),
            Caller::Draw => return Self::of_picture(question, wire),
            Caller::Rank => return Self::of_ranking(question, wire),
            Caller::Count(counted) => return Self::of_count(question, wire, counted),
            Caller::Tune | Caller::Batch => return Self::of_job(question, (caller, wire)),
            Caller::List => return Ok((Self::new(question, (caller, wire), Lost::default()), Vec::new())),
        };
        let images = !question.strict || asked.asks_for_images();
        let shows_thoughts = match caller {
            Caller::Gemini => crate::chat::clients::gemini::shows_thoughts(&asked),
            _ => asked.fields.get("thinking").is_some_and(|thinking| !thinking.is_null()),
        };
        let blocks = images || shows_thoughts;
        let plain = Self::new(question, (caller, wire), Lost::default());
        let (model, documents) = (asked.model.clone(), asked.documents());
        let answering = Answering { model, blocks, images, echo, documents, ..plain.answering };
        if let Some(meant) = question.beside.meant {
            meant.clone_into(&mut asked.model);
        }
        asked.signatures.clone_from(&answering.signatures);
        if let Some(betas) = question.beside.betas
            && wire.says_betas(&asked.model)
            && !asked.fields.contains_key("anthropic_beta")
        {
            asked.fields.insert("anthropic_beta".into(), betas.into());
        }
        let hides_usage =
            matches!(caller, Caller::Chat | Caller::Complete) && asked.stream && !includes_usage(question.body);
        let is_told = question.beside.version.is_some() || question.beside.is_anthropics;
        let told = is_told.then(|| asked.take("anthropic_version")).flatten();
        let mut body = wire.write(&mut asked)?;
        asked.lose_some("anthropic_version", told.as_ref());
        let (betas, version) = (asked.betas.take(), asked.version.take());
        let mut lost = asked.into_lost();
        if let Some((reworded, unsaid)) = question.provider.wording(Operation::ChatComplete).say(&body) {
            lost.join(&unsaid);
            body = reworded;
        }
        Ok((Self { hides_usage, betas, version, answering, lost, ..plain }, body))
    }

    fn of_texts(question: &Question<'_>, wire: &'static dyn Wire, shape: Shape) -> Result<(Self, Vec<u8>), Refusal> {
        let mut texts = match shape {
            Shape::Content => crate::chat::clients::gemini::texts::one(question.body, question.model)?,
            Shape::Contents => crate::chat::clients::gemini::texts::several(question.body, question.model)?,
            Shape::Numbers | Shape::Packed => Texts::read(question.body)?,
        };
        if !texts.items.is_empty() && !wire.sees(&texts.model) {
            return Err(Refusal::new(
                texts.path,
                "this model embeds texts: it must be a string, or an array of strings",
            ));
        }
        let film = texts.items.iter().position(|item| item.video.is_some());
        if let Some(at) = film.filter(|_| !wire.watches(&texts.model)) {
            return Err(Refusal::new(
                format!("{}[{at}].video", texts.path),
                "cannot be embedded here: `text` and `image` can",
            ));
        }
        let mut body = wire.embed(&mut texts)?;
        let caller = Caller::Embed(texts.shape);
        let mut lost = texts.into_lost();
        if let Some((reworded, unsaid)) = question.provider.wording(Operation::Embed).say(&body) {
            lost.join(&unsaid);
            body = reworded;
        }
        Ok((Self::new(question, (caller, wire), lost), body))
    }

    fn of_picture(question: &Question<'_>, wire: &'static dyn Wire) -> Result<(Self, Vec<u8>), Refusal> {
        let mut picture = Picture::read(question.body)?;
        let body = wire.draw(&mut picture)?;
        Ok((Self::new(question, (Caller::Draw, wire), picture.into_lost()), body))
    }

    fn of_ranking(question: &Question<'_>, wire: &'static dyn Wire) -> Result<(Self, Vec<u8>), Refusal> {
        let mut ranking = Ranking::read(question.body)?;
        let mut echo = Fields::default();
        if ranking.returns {
            echo.insert(DOCUMENTS.into(), ranking.documents.clone().into());
        }
        let body = wire.rank(&mut ranking)?;
        let plain = Self::new(question, (Caller::Rank, wire), ranking.into_lost());
        Ok((Self { answering: Answering { echo, ..plain.answering }, ..plain }, body))
    }

    fn of_count(
        question: &Question<'_>,
        wire: &'static dyn Wire,
        counted: Counted,
    ) -> Result<(Self, Vec<u8>), Refusal> {
        let mut asked = match counted {
            Counted::Messages => crate::chat::clients::anthropic_messages::read(question.body)?,
            Counted::Contents => crate::chat::clients::gemini::read_counted(question.body, question.model)?,
            Counted::Converse => {
                crate::chat::clients::bedrock_converse::count_tokens::read(question.body, question.model)?
            }
        };
        let body = wire.count(&mut asked)?;
        let betas = asked.betas.take();
        Ok((Self { betas, ..Self::new(question, (Caller::Count(counted), wire), asked.lost) }, body))
    }

    /// What is asked of a job that is there says nothing in its body.
    fn of_job(
        question: &Question<'_>,
        (caller, wire): (Caller, &'static dyn Wire),
    ) -> Result<(Self, Vec<u8>), Refusal> {
        let page = Page::read(question.operation, question.beside.query)?;
        let plain = Self { page, ..Self::new(question, (caller, wire), Lost::default()) };
        if question.operation == Operation::CreateBatch {
            let mut run = Run::read(question)?;
            let echo = run.echo();
            let body = wire.run(&mut run)?;
            let answering = Answering { echo, ..plain.answering };
            return Ok((Self { answering, lost: run.into_lost(), ..plain }, body));
        }
        if question.operation != Operation::CreateFinetune {
            return Ok((plain, Vec::new()));
        }
        let mut tune = Tune::read(question)?;
        let mut echo = tune.echo();
        let body = wire.tune(&mut tune)?;
        if let Some(name) = &tune.name {
            echo.insert("id".into(), name.as_str().into());
        }
        let answering = Answering { echo, ..plain.answering };
        Ok((Self { answering, lost: tune.into_lost(), ..plain }, body))
    }

    /// As it is for what does not talk.
    fn new(question: &Question<'_>, (caller, wire): (Caller, &'static dyn Wire), lost: Lost) -> Self {
        let meant = question.beside.meant.unwrap_or(question.model);
        let answering = Answering {
            provider: question.provider.slug(),
            model: question.model.to_owned(),
            created: question.now / 1000,
            mark: format!("{}-{:x}", question.now, question.mark),
            strict: question.strict,
            blocks: false,
            images: false,
            echo: Fields::default(),
            documents: Arc::default(),
            unsaid: Unsaid::default(),
            signatures: question.beside.signatures.filter(|_| wire.signs(meant)).cloned(),
        };
        let operation = question.operation;
        let page = Page::default();
        let (is_carried, hides_usage, betas, version, next) = (false, false, None, None, None);
        let is_anthropics = question.beside.is_anthropics;
        Self {
            caller,
            wire,
            operation,
            is_carried,
            is_anthropics,
            hides_usage,
            page,
            betas,
            version,
            next,
            answering,
            lost,
        }
    }

    /// A whole answer in the caller's dialect.
    pub fn whole(&self, answer: &[u8]) -> Result<Vec<u8>, Broken> {
        if self.is_carried {
            return self.wire.carried(self.operation, answer);
        }
        let lacks = |what: &str| Broken(format!("it has no {what}"));
        let read = || serde_json::from_slice::<serde_json::Value>(answer);
        let teller: Box<dyn Teller> = match self.caller {
            Caller::Embed(shape) => {
                let vectors = self.wire.embedded(&read()?).ok_or_else(|| lacks("vectors"))?;
                return vectors.told(&self.answering, shape);
            }
            Caller::Draw => {
                let drawn = self.wire.drawn(&read()?).ok_or_else(|| lacks("images"))?;
                if let Some(usage) = drawn.usage {
                    self.answering.unsaid.cost(usage);
                }
                return Ok(drawn.told(&self.answering));
            }
            Caller::Rank => {
                let ranked = self.wire.ranked(&read()?).ok_or_else(|| lacks("ranks"))?;
                return Ok(ranked.told(&self.answering));
            }
            Caller::Count(_) => {
                let count = self.wire.counted(&read()?).ok_or_else(|| lacks("count"))?;
                return Ok(counted(self.operation, count));
            }
            Caller::List => {
                let listed = self.wire.listed(&read()?).ok_or_else(|| lacks("models"))?;
                return Ok(self.listed(listed));
            }
            Caller::Tune => {
                let answer = if answer.trim_ascii().is_empty() { serde_json::json!({}) } else { read()? };
                return crate::jobs::fine_tuning::told(
                    self.wire,
                    &answer,
                    &self.answering,
                    (self.operation, &self.page),
                );
            }
            Caller::Batch => {
                return crate::jobs::batch::told(self.wire, &read()?, &self.answering, (self.operation, &self.page));
            }
            Caller::Chat => {
                Box::new(ByBlock::new(crate::chat::clients::openai_chat::Whole::new(self.answering.clone())))
            }
            Caller::Complete => Box::new(crate::chat::clients::openai_completions::Whole::new(self.answering.clone())),
            Caller::Messages | Caller::Invoke => {
                Box::new(crate::chat::clients::anthropic_messages::Whole::new(self.answering.clone()))
            }
            Caller::Gemini => Box::new(crate::chat::clients::gemini::Whole::new(self.answering.clone())),
            Caller::Converse => Box::new(crate::chat::clients::bedrock_converse::Whole::new(self.answering.clone())),
            Caller::Responses => {
                Box::new(ByBlock::new(crate::chat::clients::openai_responses::Whole::new(self.answering.clone())))
            }
        };
        let mut teller = Noting::new(teller, &self.answering);
        self.wire.read(answer, &mut teller)?;
        Ok(teller.told())
    }

    /// Whether what it ends is deleted.
    pub fn deletes(&self) -> bool {
        self.operation == Operation::CancelBatch && self.wire.deletes()
    }

    /// Whether images are what was asked for.
    pub fn draws(&self) -> bool {
        self.caller == Caller::Draw
    }

    /// An answer that is an image, and nothing around it.
    pub fn image(&self, bytes: &[u8]) -> Vec<u8> {
        let images = vec![serde_json::json!({"b64_json": STANDARD.encode(bytes)})];
        Drawn { images, usage: None }.told(&self.answering)
    }

    /// A list of models that comes in pages, as one.
    pub fn whole_list(&self, pages: &[impl AsRef<[u8]>]) -> Result<Vec<u8>, Broken> {
        let mut models = Vec::new();
        for page in pages {
            let listed = self.wire.listed(&serde_json::from_slice(page.as_ref())?);
            models.extend(listed.ok_or_else(|| Broken("it has no models".into()))?);
        }
        Ok(self.listed(models))
    }

    fn listed(&self, models: Vec<Listed>) -> Vec<u8> {
        if self.is_anthropics {
            crate::model_list::told_to_anthropics(&models)
        } else {
            crate::model_list::told(models, self.answering.provider)
        }
    }

    /// Whether there is another page of a list of models behind this one: then it is what is asked for next.
    pub fn turns(&mut self, page: &[u8]) -> bool {
        self.next = crate::model_list::next(page);
        self.next.is_some()
    }

    /// What turns the provider's stream into the caller's.
    pub fn stream(&self) -> Transcoder {
        if self.is_carried {
            return Transcoder::carrying(self.wire.frames());
        }
        let teller: Box<dyn Teller> = match self.caller {
            Caller::Complete => Box::new(crate::chat::clients::openai_completions::Stream::new(self.answering.clone())),
            Caller::Chat
            | Caller::Embed(_)
            | Caller::Draw
            | Caller::Rank
            | Caller::Count(_)
            | Caller::List
            | Caller::Tune
            | Caller::Batch => {
                Box::new(ByBlock::new(crate::chat::clients::openai_chat::Stream::new(self.answering.clone())))
            }
            Caller::Messages => {
                Box::new(InTurn::new(crate::chat::clients::anthropic_messages::Stream::new(self.answering.clone())))
            }
            Caller::Gemini => Box::new(crate::chat::clients::gemini::Stream::new(self.answering.clone())),
            Caller::Converse => {
                Box::new(InTurn::new(crate::chat::clients::bedrock_converse::Stream::new(self.answering.clone())))
            }
            Caller::Invoke => Box::new(InTurn::new(crate::chat::clients::bedrock_converse::invoke::Stream::new(
                self.answering.clone(),
            ))),
            Caller::Responses => {
                Box::new(ByBlock::new(crate::chat::clients::openai_responses::Stream::new(self.answering.clone())))
            }
        };
        let teller = Noting::new(teller, &self.answering);
        Transcoder::new(self.wire.frames(), self.wire.listener(), teller)
    }

    /// A provider's error in the caller's dialect; the status stays the provider's, whose name for the request may be known.
    pub fn error(&self, status: u16, answer: &[u8], request_id: Option<&str>) -> Vec<u8> {
        if self.is_carried && is_anthropics(answer) {
            return answer.to_vec();
        }
        let whose = Whose { provider: self.answering.provider, status, request_id };
        let dialect = self.operation.dialect().unwrap_or(ApiFormat::OpenAi);
        errors::told(dialect, whose, self.wire.error(answer), answer)
    }

    /// Of the streams that the caller reads.
    pub fn stream_type(&self) -> &'static str {
        match self.caller {
            Caller::Converse | Caller::Invoke => Frames::AwsEventStream.content_type(),
            _ => Frames::Events.content_type(),
        }
    }

    /// Of the streams that the provider sends.
    pub fn sent_stream_type(&self) -> &'static str {
        self.wire.frames().content_type()
    }

    /// The type of the body that is sent.
    pub fn content_type(&self) -> Option<String> {
        self.draws().then(|| self.wire.content_type())
    }
}

/// Whether an operation talks, and can be said in another way than it came.
pub fn is_talk(operation: Operation) -> bool {
    !matches!(
        caller(operation),
        None | Some(
            Caller::Embed(_)
                | Caller::Draw
                | Caller::Rank
                | Caller::Count(_)
                | Caller::List
                | Caller::Tune
                | Caller::Batch
        )
    )
}

fn caller(operation: Operation) -> Option<Caller> {
    match operation {
        Operation::ChatComplete => Some(Caller::Chat),
        Operation::Complete => Some(Caller::Complete),
        Operation::Messages => Some(Caller::Messages),
        Operation::CreateModelResponse => Some(Caller::Responses),
        Operation::GenerateContent | Operation::StreamGenerateContent => Some(Caller::Gemini),
        Operation::Converse | Operation::ConverseStream => Some(Caller::Converse),
        Operation::InvokeModel | Operation::InvokeModelStream => Some(Caller::Invoke),
        Operation::Embed => Some(Caller::Embed(Shape::Numbers)),
        Operation::EmbedContent => Some(Caller::Embed(Shape::Content)),
        Operation::BatchEmbedContents => Some(Caller::Embed(Shape::Contents)),
        Operation::ImageGenerate => Some(Caller::Draw),
        Operation::Rerank => Some(Caller::Rank),
        Operation::MessagesCountTokens => Some(Caller::Count(Counted::Messages)),
        Operation::CountTokens => Some(Caller::Count(Counted::Contents)),
        Operation::CountConverse => Some(Caller::Count(Counted::Converse)),
        Operation::Models => Some(Caller::List),
        _ if operation.tunes() => Some(Caller::Tune),
        _ if operation.batches() => Some(Caller::Batch),
        _ => None,
    }
}

/// How many tokens a request has, as its caller reads it.
pub fn counted(operation: Operation, tokens: u64) -> Vec<u8> {
    let key = match operation {
        Operation::CountTokens => "totalTokens",
        Operation::CountConverse => "inputTokens",
        _ => "input_tokens",
    };
    format!("{{\"{key}\":{tokens}}}").into_bytes()
}

/// What is to be counted of what Amazon's clients send for that, where it is a request that could be sent.
pub(crate) fn to_count(body: &[u8]) -> Result<Vec<u8>, Refusal> {
    crate::chat::clients::bedrock_converse::count_tokens::read(body, "")?;
    Ok(crate::chat::clients::bedrock_converse::count_tokens::wrapped(body)?.0)
}

/// Whether an error is one of Anthropic's already.
fn is_anthropics(answer: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(answer).is_ok_and(|answer| answer["type"] == "error")
}

fn includes_usage(body: &[u8]) -> bool {
    crate::api_format::peek(body).is_ok_and(|peek| peek.include_usage == Some(true))
}
