//! Regular expressions in expressions: those that are written there are compiled once, others whenever they are met.

use std::collections::HashMap;
use std::sync::OnceLock;

use regex::Regex;

use super::eval::{Budget, Failure};
use super::value::Value;

/// States of an automaton that are compiled in about the time of a step of an expression.
const STATES_PER_STEP: u64 = 2;

type Compiled = Result<Regex, String>;

/// The patterns that a program names, compiled when they are first used.
#[derive(Debug, Default)]
pub struct Patterns(HashMap<Box<str>, OnceLock<Compiled>>);

impl Patterns {
    pub fn new(texts: Vec<String>) -> Self {
        Patterns(texts.into_iter().map(|text| (text.into(), OnceLock::new())).collect())
    }

    fn with<T>(
        &self,
        text: &str,
        budget: &mut Budget,
        then: impl FnOnce(&Regex, &mut Budget) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let failed = |why: &String| Failure::new(format!("error parsing regexp: {why}"));
        if let Some(known) = self.0.get(text) {
            let regex = known.get_or_init(|| crate::crd::compile_pattern(text)).as_ref().map_err(failed)?;
            return then(regex, budget);
        }
        // A loop over values could have the server compile without end.
        let states = crate::crd::pattern_states(text).map_err(|why| failed(&why))?;
        budget.spend(usize::try_from(states / STATES_PER_STEP).unwrap_or(usize::MAX))?;
        then(crate::crd::compile_pattern(text).as_ref().map_err(failed)?, budget)
    }
}

/// Whether a function takes a regular expression.
pub fn takes_pattern(name: &str) -> bool {
    matches!(name, "matches" | "find" | "findAll")
}

/// Calls a function of this module; None for others.
pub fn call<'a>(
    name: &str,
    args: &[Value<'a>],
    patterns: &Patterns,
    budget: &mut Budget,
) -> Option<Result<Value<'a>, Failure>> {
    let [Value::Text(text), Value::Text(pattern), rest @ ..] = args else { return None };
    let most = match rest {
        [] => usize::MAX,
        [Value::Int(most)] if name == "findAll" => usize::try_from(*most).unwrap_or(usize::MAX),
        _ => return None,
    };
    if !takes_pattern(name) {
        return None;
    }
    // A tenth of a step for a letter of the text, times a quarter of one for a letter of the pattern. One without letters
    // is found all the same.
    let through = (text.len() + 1).div_ceil(10);
    if let Err(failure) = budget.spend(through.saturating_mul(pattern.len().div_ceil(4).max(1))) {
        return Some(Err(failure));
    }
    let part = |found: regex::Match<'_>| text.part(found.range()).map_or(Value::text(""), Value::Text);
    Some(patterns.with(pattern, budget, |regex, budget| {
        Ok(match name {
            "matches" => Value::Bool(regex.is_match(text)),
            "find" => regex.find(text).map_or(Value::text(""), part),
            _ => {
                let mut all = Vec::new();
                for found in regex.find_iter(text).take(most) {
                    budget.spend(1)?;
                    all.push(part(found));
                }
                Value::list(all)
            }
        })
    }))
}
