//! Translates a provider's stream to the client's API format while it is delivered. If it ends without usage, counts its
//! tokens on another thread first, because the last event has the usage.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use penstock_llm::{api_format::gemini::JsonArrayStream, translation::Transcoder};
use penstock_net::{DeferredBody, ResponseBody};

use crate::{accounting::record::details::TranslationClock, request::usage_estimator::UsageEstimator};

/// State of the translation of one stream.
pub struct StreamTranslator {
    pub transcoder: Transcoder,
    /// Encoder for clients that expect one JSON array.
    pub items: Option<JsonArrayStream>,
    pub clock: TranslationClock,
}

impl StreamTranslator {
    /// Returns the translated body. The usage is estimated if the provider reports none and there is an estimator.
    pub fn translate_body(mut self, body: ResponseBody, estimator: Option<UsageEstimator>) -> ResponseBody {
        let Some(estimator) = estimator else {
            return body.map_chunks(move |chunk| match chunk {
                Some(chunk) => self.translate_chunk(chunk),
                None => self.finish(),
            });
        };
        self.transcoder = self.transcoder.holding_end();
        let shared = Arc::new(Mutex::new(self));
        let translator = Arc::clone(&shared);
        // After the event that ends the response, it does not matter how and when the provider closes the connection.
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&has_ended);
        let body = body.map_chunks_until(has_ended, move |chunk| {
            let Some(chunk) = chunk else { return Bytes::new() };
            let mut translator = lock(&translator);
            let translated = translator.translate_chunk(chunk);
            ended.store(translator.transcoder.is_end_held(), Ordering::Release);
            translated
        });
        let end: DeferredBody = Box::new(move || {
            Box::pin(async move { Ok(ResponseBody::from_bytes(finish_with_estimate(shared, estimator).await)) })
        });
        ResponseBody::from_sequence(body, VecDeque::from([end]))
    }

    fn translate_chunk(&mut self, chunk: Bytes) -> Bytes {
        let start = Instant::now();
        let events = self.transcoder.push_chunk(chunk);
        let translated = self.encode_events(events, false);
        self.clock.add_since(start);
        translated
    }

    /// Ends the provider's stream. Returns all of its remaining output.
    fn finish(&mut self) -> Bytes {
        let start = Instant::now();
        let events = self.transcoder.finish();
        let translated = self.encode_events(events, true);
        self.clock.add_since(start);
        translated
    }

    fn encode_events(&mut self, events: Bytes, is_end: bool) -> Bytes {
        match &mut self.items {
            Some(items) => items.encode_events(&events, is_end).into(),
            None => events,
        }
    }
}

fn lock(translator: &Mutex<StreamTranslator>) -> MutexGuard<'_, StreamTranslator> {
    translator.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a stream, with estimated usage if the provider reported none.
async fn finish_with_estimate(shared: Arc<Mutex<StreamTranslator>>, estimator: UsageEstimator) -> Bytes {
    let events = {
        let mut translator = lock(&shared);
        let events = translator.transcoder.finish();
        if !translator.transcoder.is_end_held() {
            return translator.encode_events(events, true);
        }
        events
    };
    let translator = Arc::clone(&shared);
    let rest = events.clone();
    let counting = estimator.run(move |estimate| {
        let mut translator = lock(&translator);
        let last = estimate.end_stream(&mut translator.transcoder);
        translator.encode_events([rest, last].concat().into(), true)
    });
    match counting.await {
        Ok(end) => end,
        // The process shuts down.
        Err(_) => lock(&shared).encode_events(events, true),
    }
}
