//! Expressions as trees.

use std::sync::Arc;

/// A node and where it stands: for an operator its sign, for a call its parenthesis, as cel-go counts.
#[derive(Debug, Clone)]
pub struct Expr {
    pub at: usize,
    pub kind: Kind,
    /// One more than the highest of its parts: whoever walks it goes so deep.
    pub height: usize,
}

#[derive(Debug, Clone)]
pub enum Kind {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Arc<[u8]>),
    Name(String),
    /// `operand.field`; `test` for `has(operand.field)`, `optional` for `operand.?field`.
    Select {
        operand: Box<Expr>,
        field: String,
        test: bool,
        optional: bool,
    },
    /// `operand[index]`, or `operand[?index]`.
    Index {
        operand: Box<Expr>,
        index: Box<Expr>,
        optional: bool,
    },
    /// A function or operator, with the value it is called on.
    Call {
        name: String,
        target: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    /// Items, and whether each is left out when it has no value.
    List(Vec<(Expr, bool)>),
    Map(Vec<(Expr, Expr, bool)>),
    /// `name{field: value}`; of each field where its colon stands, and whether it is left out when it has no value.
    Message {
        name: String,
        fields: Vec<(usize, String, Expr, bool)>,
    },
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Choice(Box<Expr>, Box<Expr>, Box<Expr>),
    /// `range.all(name, ...)` and its like.
    Fold(Box<Fold>),
    /// `optional.optMap(name, body)`; flat when the body is an optional itself.
    OptionalMap {
        operand: Box<Expr>,
        name: String,
        body: Box<Expr>,
        flat: bool,
    },
}

/// A macro over the members of a list or map.
#[derive(Debug, Clone)]
pub struct Fold {
    pub macro_kind: Macro,
    pub range: Expr,
    /// The variable that stands for an item, or for an index or key when there are two.
    pub first: String,
    pub second: Option<String>,
    /// A filter before the body, of `map` with three arguments and of transformations.
    pub filter: Option<Expr>,
    pub body: Expr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Macro {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
    TransformMap,
    /// Bodies are maps whose entries are taken together.
    TransformMapEntry,
    /// Items in the order of their bodies.
    SortBy,
}

impl Expr {
    pub fn new(at: usize, kind: Kind) -> Self {
        let height = 1 + kind.parts().iter().map(|part| part.height).max().unwrap_or_default();
        Expr { at, kind, height }
    }

    pub fn call(at: usize, name: &str, args: Vec<Expr>) -> Self {
        Expr::new(at, Kind::Call { name: name.into(), target: None, args })
    }
}

impl Kind {
    fn parts(&self) -> Vec<&Expr> {
        match self {
            Kind::Null
            | Kind::Bool(_)
            | Kind::Int(_)
            | Kind::Uint(_)
            | Kind::Double(_)
            | Kind::Text(_)
            | Kind::Bytes(_)
            | Kind::Name(_) => Vec::new(),
            Kind::Select { operand, .. } => vec![operand],
            Kind::Index { operand, index, .. } => vec![operand, index],
            Kind::Call { target, args, .. } => target.as_deref().into_iter().chain(args).collect(),
            Kind::List(items) => items.iter().map(|(item, _)| item).collect(),
            Kind::Map(entries) => entries.iter().flat_map(|(key, value, _)| [key, value]).collect(),
            Kind::Message { fields, .. } => fields.iter().map(|(_, _, value, _)| value).collect(),
            Kind::And(left, right) | Kind::Or(left, right) => vec![left, right],
            Kind::Choice(condition, yes, no) => vec![condition, yes, no],
            Kind::Fold(fold) => [&fold.range, &fold.body].into_iter().chain(&fold.filter).collect(),
            Kind::OptionalMap { operand, body, .. } => vec![operand, body],
        }
    }
}
