//! Calls of tools told one after the other, for who reads them so: of several at once the later wait.

use super::{
    piece::{Piece, Taker},
    teller::Teller,
};

/// So much of what is said of calls may wait.
const MOST: usize = 1024 * 1024;

pub struct InTurn<T> {
    teller: T,
    calls: usize,
    open: Option<Open>,
    waiting: Vec<Waiting>,
    held: usize,
    over: bool,
}

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
        Self { teller, calls: 0, open: None, waiting: Vec::new(), held: 0, over: false }
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
            | Piece::Failed { .. } => {
                self.teller.take(piece);
            }
            piece => {
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
        assert_eq!(told(&[call("a"), call("b"), of(1, "{}"), Piece::Text("t"), of(0, "{}")]), "ab 1:{} t");
    }

    #[test]
    fn what_waits_has_an_end() {
        let long = "x".repeat(MOST);
        assert_eq!(told(&[call("a"), call("b"), of(1, &long), of(0, "{}"), Piece::End]), "a!");
    }
}
