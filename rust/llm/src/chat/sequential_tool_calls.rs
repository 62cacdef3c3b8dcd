//! Calls of tools told one after the other, for who reads them so: of several at once the later wait, and so do words that are
//! said between pieces of one.

use crate::chat::{
    event::{Piece, Taker},
    response_writer::Teller,
};

/// So much of what is said of calls may wait.
const MOST: usize = 1024 * 1024;

pub struct InTurn<T> {
    teller: T,
    calls: usize,
    open: Option<Open>,
    waiting: Vec<Waiting>,
    /// What was said between pieces of a call's arguments.
    between: Vec<(Words, String)>,
    held: usize,
    over: bool,
}

/// A piece that is made of words.
type Words = for<'a> fn(&'a str) -> Piece<'a>;

/// The call that is being told.
struct Open {
    call: usize,
    arguments: Nesting,
}

/// A call that began while another was not all there.
struct Waiting {
    call: usize,
    id: String,
    name: String,
    signature: Option<String>,
    json: String,
}

/// How far a JSON object is.
#[derive(Default)]
struct Nesting {
    depth: usize,
    in_text: bool,
    is_escaped: bool,
    is_closed: bool,
}

impl Nesting {
    fn read(&mut self, json: &str) {
        for byte in json.bytes() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.in_text => self.is_escaped = true,
                b'"' => self.in_text = !self.in_text,
                _ if self.in_text => (),
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.is_closed = self.depth == 0;
                }
                _ => (),
            }
        }
    }
}

impl<T: Teller> InTurn<T> {
    pub fn new(teller: T) -> Self {
        Self { teller, calls: 0, open: None, waiting: Vec::new(), between: Vec::new(), held: 0, over: false }
    }

    fn begin(&mut self, call: usize, piece: Piece<'_>) {
        self.open = Some(Open { call, arguments: Nesting::default() });
        self.teller.take(piece);
    }

    fn argue(&mut self, call: usize, json: &str) {
        if json.is_empty() {
            return;
        }
        if let Some(open) = self.open.as_mut().filter(|open| open.call == call) {
            open.arguments.read(json);
            self.teller.take(Piece::Arguments { call, json });
        } else if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.call == call) {
            waiting.json.push_str(json);
            self.hold(json.len());
        } else {
            // It was told as one of nothing, and was not: who reads by number still takes it.
            self.teller.take(Piece::Arguments { call, json });
        }
    }

    fn hold(&mut self, length: usize) {
        self.held += length;
        if self.held > MOST {
            self.over = true;
            let message = "the model says too much of several calls at once";
            self.teller.take(Piece::Failed { kind: None, message, code: None });
        }
    }

    /// Tells those that wait, as long as the one before is all there, or nothing more can come of it.
    fn go_on(&mut self, is_last: bool) {
        if is_last || !self.is_within() {
            self.tell_between();
        }
        let is_told = |open: &Open| is_last || open.arguments.is_closed;
        while self.open.as_ref().is_none_or(is_told) && !self.waiting.is_empty() {
            let Waiting { call, id, name, signature, json } = self.waiting.remove(0);
            self.held -= id.len() + name.len() + json.len();
            self.begin(call, Piece::Call { id: &id, name: &name, signature: signature.as_deref() });
            self.argue(call, &json);
        }
        if is_last {
            self.open = None;
        }
    }

    /// Whether a call is in the middle of its arguments.
    fn is_within(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.arguments.depth > 0)
    }

    /// Tells what was said between pieces of arguments that are all there now: that ends their call.
    fn tell_between(&mut self) {
        for (words, text) in std::mem::take(&mut self.between) {
            self.open = None;
            self.held -= text.len();
            self.teller.take(words(&text));
        }
    }
}

/// What is made of words alone, and can be told later.
fn words(piece: Piece<'_>) -> Option<(Words, &str)> {
    Some(match piece {
        Piece::Text(text) => (|text| Piece::Text(text), text),
        Piece::Refusal(text) => (|text| Piece::Refusal(text), text),
        Piece::Thinking(text) => (|text| Piece::Thinking(text), text),
        Piece::Signature(text) => (|text| Piece::Signature(text), text),
        Piece::Redacted(text) => (|text| Piece::Redacted(text), text),
        Piece::Seal(text) => (|text| Piece::Seal(text), text),
        _ => return None,
    })
}

impl<T: Teller> Taker for InTurn<T> {
    fn take(&mut self, piece: Piece<'_>) {
        if self.over {
            return;
        }
        match piece {
            Piece::Call { id, name, signature } => {
                let call = self.calls;
                self.calls += 1;
                if self.open.as_ref().is_none_or(|open| open.arguments.is_closed) {
                    return self.begin(call, piece);
                }
                let (id, name, signature) = (id.to_owned(), name.to_owned(), signature.map(ToOwned::to_owned));
                let length = id.len() + name.len();
                self.waiting.push(Waiting { call, id, name, signature, json: String::new() });
                self.hold(length);
            }
            Piece::Arguments { call, json } => {
                self.argue(call, json);
                self.go_on(false);
            }
            // What opens no block ends none.
            Piece::Text("") | Piece::Refusal("") | Piece::Thinking("") => (),
            Piece::Start { .. }
            | Piece::Usage(_)
            | Piece::Finish { .. }
            | Piece::Aside { .. }
            | Piece::Cites(_)
            | Piece::Failed { .. } => {
                self.teller.take(piece);
            }
            piece => {
                if let Some((words, text)) = words(piece).filter(|_| self.is_within()) {
                    self.between.push((words, text.to_owned()));
                    return self.hold(text.len());
                }
                self.go_on(true);
                self.teller.take(piece);
            }
        }
    }
}

impl<T: Teller> Teller for InTurn<T> {
    fn told(&mut self) -> Vec<u8> {
        self.teller.told()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes what it is told of calls.
    #[derive(Default)]
    struct Notes(String);

    impl Taker for Notes {
        fn take(&mut self, piece: Piece<'_>) {
            match piece {
                Piece::Call { name, .. } => self.0.push_str(name),
                Piece::Arguments { call, json } => self.0.extend([" ", &call.to_string(), ":", json, " "]),
                Piece::Text(text) => self.0.push_str(text),
                Piece::Failed { .. } => self.0.push('!'),
                Piece::End => self.0.push('.'),
                _ => (),
            }
        }
    }

    impl Teller for Notes {
        fn told(&mut self) -> Vec<u8> {
            std::mem::take(&mut self.0).into_bytes()
        }
    }

    fn told(pieces: &[Piece<'_>]) -> String {
        let mut in_turn = InTurn::new(Notes::default());
        for piece in pieces {
            in_turn.take(*piece);
        }
        String::from_utf8(in_turn.told()).unwrap()
    }

    fn call(name: &str) -> Piece<'_> {
        Piece::Call { id: "i", name, signature: None }
    }

    fn of(call: usize, json: &str) -> Piece<'_> {
        Piece::Arguments { call, json }
    }

    #[test]
    fn what_is_said_of_several_calls_at_once_is_told_one_by_one() {
        let mixed = [call("a"), call("b"), of(1, "{\"y\""), of(0, "{\"x\":\"}"), of(1, ":2}"), of(0, "\"}")];
        assert_eq!(told(&mixed), "a 0:{\"x\":\"}  0:\"} b 1:{\"y\":2} ");
        let three = [call("a"), call("b"), call("c"), of(2, "{}"), of(0, "{}"), of(1, "{}"), Piece::End];
        assert_eq!(told(&three), "a 0:{} b 1:{} c 2:{} .");
    }

    #[test]
    fn calls_that_come_one_by_one_wait_for_nothing() {
        assert_eq!(told(&[call("a"), of(0, "{}"), call("b"), of(1, "{")]), "a 0:{} b 1:{ ");
    }

    #[test]
    fn a_call_of_nothing_ends_with_the_rest() {
        assert_eq!(told(&[call("a"), call("b"), of(1, "{}")]), "a");
        assert_eq!(told(&[call("a"), call("b"), of(1, "{}"), Piece::End]), "ab 1:{} .");
        let late = [call("a"), call("b"), of(1, "{}"), Piece::Text("t"), of(0, "{}")];
        assert_eq!(told(&late), "ab 1:{} t 0:{} ");
    }

    #[test]
    fn words_between_pieces_of_arguments_are_told_when_those_are_all_there() {
        let between = [call("a"), of(0, "{\"x\":"), Piece::Text("t"), Piece::Text("u"), of(0, "1}"), Piece::End];
        assert_eq!(told(&between), "a 0:{\"x\":  0:1} tu.");
        let several = [call("a"), of(0, "{"), Piece::Text("t"), call("b"), of(0, "}"), of(1, "{}")];
        assert_eq!(told(&several), "a 0:{  0:} tb 1:{} ");
        // Some are cut off.
        assert_eq!(told(&[call("a"), of(0, "{"), call("b"), Piece::Text("t"), Piece::End]), "a 0:{ tb.");
    }

    #[test]
    fn what_waits_has_an_end() {
        let long = "x".repeat(MOST);
        assert_eq!(told(&[call("a"), call("b"), of(1, &long), of(0, "{}"), Piece::End]), "a!");
    }
}
