//! What the parser does where the text is no expression, and what it says then, as the parsers that ANTLR makes do it:
//! one token too many is left out, one that is missing is thought to be there, and else everything up to what may follow
//! is passed over. Until the next token that fits, nothing more is complained about.
//!
//! Follows `antlr/error_strategy.go`; rules of the grammar are calls of [`Reader::rule`].

use super::issue::{self, Issue};
use super::kinds::Kinds;
use super::lex::{Lexed, Token, lex};

/// So often the parser finds its way back, as cel-go allows it.
const ATTEMPTS: usize = 30;

/// Why a rule of the grammar ends early.
#[derive(Debug)]
pub enum Stop {
    /// What is there does not fit; it was complained about.
    Lost,
    /// Nothing is read any more.
    Over(Issue),
}

/// What may come after the rule that is being read: in the rule that it is part of, and whether that may end there, too.
#[derive(Clone, Copy)]
struct Follow {
    kinds: Kinds,
    may_end: bool,
}

/// The tokens of a text, and where reading is.
pub struct Reader<'a> {
    source: &'a str,
    tokens: Vec<Lexed>,
    next: usize,
    follow: Vec<Follow>,
    lost: bool,
    attempts: usize,
    pub issues: Vec<Issue>,
}

impl<'a> Reader<'a> {
    pub fn new(source: &'a str) -> Self {
        let mut issues = Vec::new();
        let tokens = lex(source, &mut issues);
        Reader { source, tokens, next: 0, follow: Vec::new(), lost: false, attempts: 0, issues }
    }

    fn lexed(&self, ahead: usize) -> &Lexed {
        &self.tokens[(self.next + ahead).min(self.tokens.len() - 1)]
    }

    pub fn peek(&self) -> &Token {
        &self.lexed(0).token
    }

    /// The kind of a token to come; 0 is the next one.
    pub fn kind(&self, ahead: usize) -> Kinds {
        self.lexed(ahead).token.kind()
    }

    pub fn at(&self) -> usize {
        self.lexed(0).at
    }

    /// Takes the next token, which fits.
    pub fn advance(&mut self) -> (usize, Token) {
        let Lexed { at, token, .. } = self.lexed(0).clone();
        self.skip();
        self.lost = false;
        (at, token)
    }

    fn skip(&mut self) {
        self.next = (self.next + 1).min(self.tokens.len() - 1);
    }

    pub fn is(&self, sign: &str) -> bool {
        matches!(self.peek(), Token::Sign(s) if *s == sign)
    }

    /// Takes a sign if it is next; where it stands.
    pub fn take(&mut self, sign: &str) -> Option<usize> {
        self.is(sign).then(|| self.advance().0)
    }

    fn complain(&mut self, text: String) {
        if !self.lost {
            let issue = Issue { at: self.at(), text: format!("Syntax error: {text}") };
            issue::keep(&mut self.issues, issue);
        }
        self.lost = true;
    }

    /// The next token as complaints show it.
    fn found(&self) -> String {
        let Lexed { at, end, token } = self.lexed(0);
        let text = if *token == Token::End { "<EOF>" } else { &self.source[*at..*end] };
        format!("'{}'", on_one_line(text))
    }

    fn too_many(&mut self, expected: Kinds) {
        let text = format!("extraneous input {} expecting {}", self.found(), expected.shown());
        self.complain(text);
    }

    fn mismatch<T>(&mut self, expected: Kinds) -> Result<T, Stop> {
        let text = format!("mismatched input {} expecting {}", self.found(), expected.shown());
        self.complain(text);
        Err(Stop::Lost)
    }

    /// Complains that no way of going on fits, `ahead` tokens from here.
    pub fn no_way<T>(&mut self, ahead: usize) -> Result<T, Stop> {
        let (start, last) = (self.at(), self.lexed(ahead));
        let end = if last.token == Token::End { self.source.len() } else { last.end };
        let text = format!("Syntax error: no viable alternative at input '{}'", on_one_line(&self.source[start..end]));
        let issue = Issue { at: last.at, text };
        if !self.lost {
            issue::keep(&mut self.issues, issue);
        }
        self.lost = true;
        Err(Stop::Lost)
    }

    /// Leaves the next token out, if the one after it is expected.
    fn leave_out(&mut self, expected: Kinds) -> bool {
        let fits = expected.has(self.kind(1));
        if fits {
            self.too_many(expected);
            self.skip();
            self.lost = false;
        }
        fits
    }

    /// Where the grammar branches: what comes has to begin one of the branches.
    pub fn branch(&mut self, expected: Kinds) -> Result<(), Stop> {
        if expected.has(self.kind(0)) || !self.lost && self.leave_out(expected) {
            return Ok(());
        }
        self.mismatch(expected)
    }

    /// Between the rounds of a loop: passes over what neither goes on with it nor follows it.
    pub fn round(&mut self, expected: Kinds) {
        if !self.lost && !expected.has(self.kind(0)) {
            self.too_many(expected);
            self.pass_over(expected);
        }
    }

    /// Takes a token of a kind; `after`: what may follow it in this rule, and whether the rule may end with it.
    pub fn expect(&mut self, kind: Kinds, after: Kinds, may_end: bool) -> Result<usize, Stop> {
        if kind.has(self.kind(0)) {
            return Ok(self.advance().0);
        }
        self.attempt()?;
        if self.leave_out(kind) {
            return Ok(self.advance().0);
        }
        if after.or(if may_end { self.follows() } else { Kinds::NONE }).has(self.kind(0)) {
            let text = format!("missing {} at {}", kind.shown(), self.found());
            self.complain(text);
            return Ok(self.at());
        }
        self.mismatch(kind)
    }

    /// What may come after the rule that is being read.
    fn follows(&self) -> Kinds {
        let mut all = Kinds::NONE;
        for follow in self.follow.iter().rev() {
            all = all.or(follow.kinds);
            if !follow.may_end {
                break;
            }
        }
        all
    }

    fn attempt(&mut self) -> Result<(), Stop> {
        self.attempts += 1;
        if self.attempts <= ATTEMPTS {
            return Ok(());
        }
        let text = format!("error recovery attempt limit exceeded: {ATTEMPTS}");
        Err(Stop::Over(Issue { at: self.at(), text }))
    }

    fn pass_over(&mut self, expected: Kinds) {
        let until = self.follow.iter().fold(expected.or(Kinds::END), |all, follow| all.or(follow.kinds));
        while !until.has(self.kind(0)) {
            self.skip();
        }
    }

    /// Keeps what the parser needs to know of the rule that it is in while it reads a part of it; `kinds` and `may_end`
    /// as [`Reader::expect`] has them.
    pub fn enter(&mut self, kinds: Kinds, may_end: bool) {
        self.follow.push(Follow { kinds, may_end });
    }

    /// After a rule: finds the place where reading goes on, if it got lost; None where it did.
    ///
    /// # Errors
    /// Where nothing is read any more.
    pub fn leave<T>(&mut self, read: Result<T, Stop>) -> Result<Option<T>, Stop> {
        let read = match read {
            Err(Stop::Lost) => {
                self.attempt()?;
                self.pass_over(Kinds::NONE);
                None
            }
            read => Some(read?),
        };
        self.follow.pop();
        Ok(read)
    }
}

fn on_one_line(text: &str) -> String {
    text.replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t")
}
