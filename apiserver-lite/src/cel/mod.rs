//! The Common Expression Language, as Kubernetes uses it for validation rules and admission policies.
//!
//! An expression is read ([`parse`]), checked against the types of its variables ([`check`]) and evaluated
//! ([`eval`]) under a budget, so that no rule can hold the server up. Values of objects are looked at where they lie;
//! only bytes are decoded to evaluate a rule. What the rules of a definition may cost at most is estimated beforehand
//! ([`mod@estimate`]), from the bounds of its schema; policies have no bounds, and are cut off when they are evaluated.
//!
//! Limits: messages and enumerations of protobuf are not there.

mod ast;
mod authz;
mod calls;
mod check;
mod equal;
mod estimate;
mod eval;
mod format;
mod issue;
mod kinds;
mod lex;
mod library;
mod ordered;
mod overloads;
mod parse;
mod recover;
mod regex;
mod semver;
mod strings;
mod text;
mod types;
mod value;
mod words;

pub use authz::{AUTHORIZER, Asked, Check, Decision, RESOURCE_CHECK};
pub use estimate::{Bounds, Inner};
pub use eval::{Alone, Budget, Failure, Host};
pub use semver::parse as parse_version;
pub use types::{Field, ObjectType, Order, Type, escape};
pub use value::Value;
pub use words::is_identifier;

use ast::Expr;

/// A checked expression.
#[derive(Debug)]
pub struct Program {
    root: Expr,
    /// What it evaluates to.
    pub output: Type,
    /// Variables that it names.
    pub names: Vec<String>,
    patterns: regex::Patterns,
}

/// What the stack of a thread has to hold that walks the deepest tree, in a build that is not optimised either.
#[cfg(test)]
pub const STACK: usize = 8 << 20;

/// Names and types of variables.
pub type Variables<'a> = &'a [(&'a str, Type)];

/// Reads and checks an expression.
///
/// # Errors
/// Every complaint with its place, in the form of cel-go.
pub fn compile(text: &str, variables: Variables<'_>) -> Result<Program, String> {
    let root = parse::parse(text).map_err(|issues| issue::shown(&issues, text))?;
    let checked = check::check(&root, variables);
    if !checked.issues.is_empty() {
        return Err(issue::shown(&checked.issues, text));
    }
    let patterns = regex::Patterns::new(checked.patterns);
    Ok(Program { root, output: checked.ty, names: checked.names, patterns })
}

/// The most that an expression may cost, where the schema says how large its variables may be; None for one that cannot
/// be evaluated.
pub fn estimate(text: &str, variables: Variables<'_>, places: &[(&str, &Bounds)]) -> Option<u64> {
    let root = parse::parse(text).ok()?;
    let checked = check::check(&root, variables);
    if !checked.issues.is_empty() {
        return None;
    }
    Some(estimate::estimate(&root, &checked.types, places).max)
}

impl Program {
    pub fn uses(&self, name: &str) -> bool {
        self.names.iter().any(|n| n == name)
    }

    /// How deep evaluation goes.
    pub fn height(&self) -> usize {
        self.root.height
    }

    /// # Errors
    /// What went wrong, or that the budget is used up.
    pub fn eval<'a>(&'a self, variables: &[(&str, Value<'a>)], budget: &mut Budget) -> Result<Value<'a>, Failure> {
        self.eval_with(variables, &Alone, budget)
    }

    /// The same for expressions that may reach for what a host has.
    ///
    /// # Errors
    /// As [`Program::eval`].
    pub fn eval_with<'a>(
        &'a self,
        variables: &[(&str, Value<'a>)],
        host: &dyn Host<'a>,
        budget: &mut Budget,
    ) -> Result<Value<'a>, Failure> {
        eval::eval(&self.root, &self.patterns, variables, host, budget)
    }
}

#[cfg(test)]
mod tests;
