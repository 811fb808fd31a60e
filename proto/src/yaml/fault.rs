//! What libyaml says is wrong with a text, and on which line: the parser that reads values takes more texts, and notices
//! other things first in those that it refuses. Asked only when a text was refused.
//!
//! Followed: `parserc.go`, and `(*parser).fail` of `decode.go` for the line.

use super::tokens::{Fault, Kind, Mark, TOO_DEEP, Token, Tokens};

/// Nesting that is looked into; what is deeper has another fault.
const DEEPEST: usize = 200;

/// The complaint about the first document of a text and its line, from one, where that is shown; None where nothing is
/// found to be wrong, or directives come before it, which are not looked into.
pub fn find(text: &str) -> Option<(&'static str, Option<usize>)> {
    let mut grammar = Grammar { tokens: Tokens::new(text), depth: 0 };
    let fault = match grammar.document() {
        Ok(()) => return None,
        Err(Stop::Fault(fault)) => fault,
        Err(Stop::TooDeep) => grammar.tokens.far_too_deep()?,
    };
    // The first line has no number, and what tokens are made of is counted from one.
    let line = match fault.at.line {
        0 => fault.within.line,
        line => line + usize::from(fault.of_tokens),
    };
    Some((fault.problem, (line > 0).then_some(line)))
}

impl Tokens<'_> {
    /// The complaint about nesting deeper than libyaml goes.
    fn far_too_deep(&mut self) -> Option<Fault> {
        loop {
            match self.peek() {
                Ok(Token { kind: Kind::StreamEnd, .. }) => return None,
                Ok(_) => self.take(),
                Err(fault) => return Some(fault).filter(|fault| fault.problem == TOO_DEEP),
            }
        }
    }
}

enum Stop {
    Fault(Fault),
    TooDeep,
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Stop::Fault(fault)
    }
}

type Parsed<T = ()> = Result<T, Stop>;

struct Grammar<'a> {
    tokens: Tokens<'a>,
    depth: usize,
}

impl Grammar<'_> {
    fn kind(&mut self) -> Parsed<Kind> {
        Ok(self.tokens.peek()?.kind)
    }

    /// Takes a token that is there.
    fn passes(&mut self, kind: Kind) -> Parsed<bool> {
        let is = self.kind()? == kind;
        if is {
            self.tokens.take();
        }
        Ok(is)
    }

    fn wrong(&mut self, problem: &'static str, within: Mark) -> Parsed {
        let at = self.tokens.peek()?.start;
        Err(Fault { problem, at, within, of_tokens: false }.into())
    }

    fn document(&mut self) -> Parsed {
        while self.passes(Kind::DocumentEnd)? {}
        let explicit = matches!(self.kind()?, Kind::Directive | Kind::DocumentStart);
        if self.kind()? == Kind::Directive {
            return Ok(());
        }
        if explicit && !self.passes(Kind::DocumentStart)? {
            return self.wrong("did not find expected <document start>", Mark::default());
        }
        match self.kind()? {
            Kind::DocumentStart | Kind::DocumentEnd | Kind::StreamEnd if explicit => {}
            Kind::StreamEnd => return Ok(()),
            _ => self.node(true, false)?,
        }
        self.tokens.peek()?;
        Ok(())
    }

    /// A node where one has to be, unless one of some tokens says that there is none.
    fn node_before(&mut self, ends: &[Kind], block: bool, indentless: bool) -> Parsed {
        if ends.contains(&self.kind()?) { Ok(()) } else { self.node(block, indentless) }
    }

    fn node(&mut self, block: bool, indentless: bool) -> Parsed {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(Stop::TooDeep);
        }
        let Token { kind, start } = self.tokens.peek()?;
        let mut named = false;
        if kind == Kind::Alias {
            self.tokens.take();
            self.depth -= 1;
            return Ok(());
        }
        for other in [Kind::Anchor, Kind::Tag, Kind::Anchor] {
            // In either order, each once.
            named |= (other == Kind::Tag || !named || kind == Kind::Tag) && self.passes(other)?;
        }
        let mark = self.tokens.peek()?.start;
        match self.kind()? {
            Kind::BlockEntry if indentless => self.indentless()?,
            Kind::Scalar => self.tokens.take(),
            Kind::FlowSequenceStart => self.flow_sequence(mark)?,
            Kind::FlowMappingStart => self.flow_mapping(mark)?,
            Kind::BlockSequenceStart if block => self.block_sequence(mark)?,
            Kind::BlockMappingStart if block => self.block_mapping(mark)?,
            _ if named => {}
            _ => return self.wrong("did not find expected node content", start),
        }
        self.depth -= 1;
        Ok(())
    }

    fn indentless(&mut self) -> Parsed {
        while self.passes(Kind::BlockEntry)? {
            self.node_before(&[Kind::BlockEntry, Kind::Key, Kind::Value, Kind::BlockEnd], true, false)?;
        }
        Ok(())
    }

    fn block_sequence(&mut self, start: Mark) -> Parsed {
        self.tokens.take();
        while self.passes(Kind::BlockEntry)? {
            self.node_before(&[Kind::BlockEntry, Kind::BlockEnd], true, false)?;
        }
        match self.passes(Kind::BlockEnd)? {
            true => Ok(()),
            false => self.wrong("did not find expected '-' indicator", start),
        }
    }

    fn block_mapping(&mut self, start: Mark) -> Parsed {
        const ENDS: [Kind; 3] = [Kind::Key, Kind::Value, Kind::BlockEnd];
        self.tokens.take();
        while self.passes(Kind::Key)? {
            self.node_before(&ENDS, true, true)?;
            if self.passes(Kind::Value)? {
                self.node_before(&ENDS, true, true)?;
            }
        }
        match self.passes(Kind::BlockEnd)? {
            true => Ok(()),
            false => self.wrong("did not find expected key", start),
        }
    }

    fn flow_sequence(&mut self, start: Mark) -> Parsed {
        self.tokens.take();
        let mut first = true;
        while self.kind()? != Kind::FlowSequenceEnd {
            if !first && !self.passes(Kind::FlowEntry)? {
                return self.wrong("did not find expected ',' or ']'", start);
            }
            first = false;
            if self.passes(Kind::Key)? {
                match self.kind()? {
                    // A pair without a key: libyaml passes by what is there instead.
                    Kind::Value | Kind::FlowEntry | Kind::FlowSequenceEnd => self.tokens.take(),
                    _ => self.node(false, false)?,
                }
                if self.passes(Kind::Value)? {
                    self.node_before(&[Kind::FlowEntry, Kind::FlowSequenceEnd], false, false)?;
                }
            } else {
                self.node_before(&[Kind::FlowSequenceEnd], false, false)?;
            }
        }
        self.tokens.take();
        Ok(())
    }

    fn flow_mapping(&mut self, start: Mark) -> Parsed {
        self.tokens.take();
        let mut first = true;
        while self.kind()? != Kind::FlowMappingEnd {
            if !first && !self.passes(Kind::FlowEntry)? {
                return self.wrong("did not find expected ',' or '}'", start);
            }
            first = false;
            if self.passes(Kind::Key)? {
                self.node_before(&[Kind::Value, Kind::FlowEntry, Kind::FlowMappingEnd], false, false)?;
                if self.passes(Kind::Value)? {
                    self.node_before(&[Kind::FlowEntry, Kind::FlowMappingEnd], false, false)?;
                }
            } else {
                self.node_before(&[Kind::FlowMappingEnd], false, false)?;
            }
        }
        self.tokens.take();
        Ok(())
    }
}
