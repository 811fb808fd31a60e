//! Evaluation of checked expressions, under a budget.

use super::ast::{Expr, Fold, Kind, Macro};
use super::authz::{Check, Decision};
use super::regex::{self, Patterns};
use super::value::Value;
use super::{calls, equal, overloads, strings};

/// What expressions reach for beyond their variables.
pub trait Host<'a> {
    /// A member of `variables`, evaluated when it is first asked for; None where there are none.
    fn variable(&self, name: &str, budget: &mut Budget) -> Option<Result<Value<'a>, Failure>>;

    fn authorize(&self, check: &Check, verb: &str) -> Decision;
}

/// Expressions that are left to their variables.
pub struct Alone;

impl<'a> Host<'a> for Alone {
    fn variable(&self, _name: &str, _budget: &mut Budget) -> Option<Result<Value<'a>, Failure>> {
        None
    }

    fn authorize(&self, _check: &Check, _verb: &str) -> Decision {
        Decision::default()
    }
}

/// Why there is no value.
#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    /// cel-go's words.
    Error(String),
    /// The budget of this evaluation, or of all, is used up.
    OverBudget,
}

impl Failure {
    pub fn new(text: impl Into<String>) -> Self {
        Failure::Error(text.into())
    }

    pub fn no_overload() -> Self {
        Failure::new("no such overload")
    }
}

/// Steps that evaluations may still take.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Left of one evaluation.
    call: u64,
    /// Left of all together.
    pub total: u64,
}

impl Budget {
    /// Steps of one evaluation, as upstream limits it.
    const PER_CALL: u64 = 1_000_000;
    /// Bytes that are decoded for the price of a step.
    const DECODED: usize = 100;

    pub fn new(total: u64) -> Self {
        Budget { call: Self::PER_CALL, total }
    }

    /// # Errors
    /// When that is more than is left.
    pub fn spend(&mut self, steps: usize) -> Result<(), Failure> {
        let steps = steps as u64;
        match (self.call.checked_sub(steps), self.total.checked_sub(steps)) {
            (Some(call), Some(total)) => {
                (self.call, self.total) = (call, total);
                Ok(())
            }
            _ => {
                (self.call, self.total) = (0, self.total.saturating_sub(steps));
                Err(Failure::OverBudget)
            }
        }
    }

    /// The one of two of which less is left.
    pub fn least(a: Self, b: Self) -> Self {
        if b.total < a.total { b } else { a }
    }

    /// Whether nothing at all is left, and not only of one evaluation.
    pub fn is_exhausted(&self) -> bool {
        self.total == 0
    }

    /// An evaluation within another one: it has a limit of its own, and both have the same total.
    pub fn within<T>(&mut self, evaluate: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.call;
        let out = evaluate(self);
        self.call = outer;
        out
    }

    /// Pays for going through a text: a step for ten bytes.
    ///
    /// # Errors
    /// As [`Budget::spend`].
    pub fn traverse(&mut self, bytes: usize) -> Result<(), Failure> {
        self.spend(bytes / 10 + 1)
    }

    /// Pays for parts of a value that were made of what lies in an object: bytes are decoded each time.
    ///
    /// # Errors
    /// As [`Budget::spend`].
    pub fn decode<'v, 'a: 'v>(
        &mut self,
        whole: &Value<'a>,
        parts: impl IntoIterator<Item = &'v Value<'a>>,
    ) -> Result<(), Failure> {
        if !whole.is_lent() {
            return Ok(());
        }
        self.spend(parts.into_iter().map(Value::decoded).fold(0, usize::saturating_add) / Self::DECODED)
    }
}

pub fn eval<'a>(
    expr: &'a Expr,
    patterns: &Patterns,
    variables: &[(&str, Value<'a>)],
    host: &dyn Host<'a>,
    budget: &mut Budget,
) -> Result<Value<'a>, Failure> {
    budget.call = Budget::PER_CALL;
    let mut scope: Vec<(&str, Value<'a>)> = variables.to_vec();
    Run { scope: &mut scope, patterns, host, budget }.value(expr)
}

struct Run<'a, 's, 'b> {
    scope: &'b mut Vec<(&'s str, Value<'a>)>,
    patterns: &'b Patterns,
    host: &'b dyn Host<'a>,
    budget: &'b mut Budget,
}

type Out<'a> = Result<Value<'a>, Failure>;

/// Steps that a question to the authorizer costs.
const AUTHORIZE: usize = 350_000;

impl<'a: 's, 's> Run<'a, 's, '_> {
    fn value(&mut self, expr: &'a Expr) -> Out<'a> {
        Ok(match &expr.kind {
            Kind::Null => Value::Null,
            Kind::Bool(truth) => Value::Bool(*truth),
            Kind::Int(number) => Value::Int(*number),
            Kind::Uint(number) => Value::Uint(*number),
            Kind::Double(number) => Value::Double(*number),
            Kind::Text(text) => Value::text(text.as_str()),
            Kind::Bytes(bytes) => Value::Bytes(bytes.clone()),
            Kind::Name(name) => {
                self.budget.spend(1)?;
                return self.name(name);
            }
            Kind::Select { operand, field, test, optional } => {
                if let Kind::Name(space) = &operand.kind
                    && let Some(found) = self.special(space, field, *test)
                {
                    return found;
                }
                let operand = self.value(operand)?;
                self.budget.spend(1 + operand.effort() / equal::PARTS)?;
                let found = select(&operand, field, *test, *optional)?;
                self.budget.decode(&operand, [&found])?;
                return Ok(found);
            }
            Kind::Index { operand, index, optional } => {
                let (operand, index) = (self.value(operand)?, self.value(index)?);
                self.budget.spend(1 + operand.effort() / equal::PARTS)?;
                let found = at(&operand, &index, *optional)?;
                self.budget.decode(&operand, [&found])?;
                return Ok(found);
            }
            Kind::Call { name, target, args } => return self.call(name, target.as_deref(), args),
            Kind::List(items) => {
                self.budget.spend(10)?;
                let mut out = Vec::with_capacity(items.len());
                for (item, optional) in items {
                    match self.value(item)? {
                        Value::Optional(inner) if *optional => out.extend(inner.map(|v| (*v).clone())),
                        value => out.push(value),
                    }
                }
                Value::list(out)
            }
            Kind::Map(entries) => {
                self.budget.spend(30)?;
                let mut out = Vec::with_capacity(entries.len());
                for (key, value, optional) in entries {
                    let key = self.value(key)?;
                    if !key.is_key() {
                        return Err(Failure::new(format!("unsupported key type: {}", key.kind())));
                    }
                    match self.value(value)? {
                        Value::Optional(inner) if *optional => out.extend(inner.map(|v| (key, (*v).clone()))),
                        value => out.push((key, value)),
                    }
                }
                Value::Map(out.into())
            }
            Kind::Message { name, fields } => {
                self.budget.spend(40)?;
                let mut out = Vec::with_capacity(fields.len());
                for (_, field, value, optional) in fields {
                    match self.value(value)? {
                        Value::Optional(inner) if *optional => {
                            out.extend(inner.map(|v| (field.clone(), (*v).clone())));
                        }
                        value => out.push((field.clone(), value)),
                    }
                }
                Value::Made(name.as_str().into(), out.into())
            }
            // One side that decides is enough, even when the other one fails.
            Kind::And(a, b) => return self.either(a, b, false),
            Kind::Or(a, b) => return self.either(a, b, true),
            Kind::Choice(condition, yes, no) => match self.value(condition)? {
                Value::Bool(true) => return self.value(yes),
                Value::Bool(false) => return self.value(no),
                _ => return Err(Failure::no_overload()),
            },
            Kind::Fold(fold) => return self.fold(fold),
            Kind::OptionalMap { operand, name, body, flat } => match self.value(operand)? {
                Value::Optional(None) => Value::Optional(None),
                Value::Optional(Some(inner)) => {
                    self.scope.push((name, (*inner).clone()));
                    let out = self.value(body);
                    self.scope.pop();
                    if *flat { out? } else { Value::some(out?) }
                }
                _ => return Err(Failure::no_overload()),
            },
        })
    }

    /// A variable with a dot in its name, or a member of `variables`.
    fn special(&mut self, space: &str, field: &str, test: bool) -> Option<Out<'a>> {
        if self.scope.iter().rev().any(|(known, _)| *known == space && space == "variables") {
            return None;
        }
        if space == "variables" {
            return match test {
                true => Some(Ok(Value::Bool(true))),
                false => self.host.variable(field, self.budget),
            };
        }
        let dotted = |known: &str| {
            known.strip_prefix(space).and_then(|rest| rest.strip_prefix('.')).is_some_and(|rest| rest == field)
        };
        self.scope.iter().find(|(known, _)| dotted(known)).map(|(_, value)| Ok(value.clone()))
    }

    fn name(&mut self, name: &'a str) -> Out<'a> {
        match self.scope.iter().rev().find(|(known, _)| *known == name) {
            Some((_, value)) => Ok(value.clone()),
            None => Ok(Value::Kind(name.to_owned().into())),
        }
    }

    fn either(&mut self, a: &'a Expr, b: &'a Expr, decides: bool) -> Out<'a> {
        let truth = |out: Out<'a>| match out {
            Ok(Value::Bool(truth)) => Ok(truth),
            Ok(_) => Err(Failure::no_overload()),
            Err(error) => Err(error),
        };
        let left = truth(self.value(a));
        if left == Ok(decides) || left == Err(Failure::OverBudget) {
            return left.map(Value::Bool);
        }
        let right = truth(self.value(b));
        match (left, right) {
            (_, Ok(truth)) if truth == decides => Ok(Value::Bool(decides)),
            (Err(error), _) | (_, Err(error)) => Err(error),
            _ => Ok(Value::Bool(!decides)),
        }
    }

    fn call(&mut self, name: &'a str, target: Option<&'a Expr>, args: &'a [Expr]) -> Out<'a> {
        if let Some(Expr { kind: Kind::Name(space), .. }) = target
            && self.scope.iter().all(|(known, _)| known != space)
        {
            let whole = format!("{space}.{name}");
            if !overloads::of(&whole).is_empty() {
                let args: Vec<Value<'a>> = args.iter().map(|a| self.value(a)).collect::<Result<_, _>>()?;
                self.budget.spend(1)?;
                return calls::call(&whole, &args, self.budget);
            }
        }
        let mut values = Vec::with_capacity(args.len() + 1);
        if let Some(target) = target {
            values.push(self.value(target)?);
        }
        for arg in args {
            values.push(self.value(arg)?);
        }
        self.budget.spend(1)?;
        if let ("check", [Value::Check(check), Value::Text(verb)]) = (name, values.as_slice()) {
            self.budget.spend(AUTHORIZE)?;
            return Ok(Value::Decision(self.host.authorize(check, verb).into()));
        }
        if let Some(found) = regex::call(name, &values, self.patterns, self.budget) {
            return found;
        }
        calls::call(name, &values, self.budget)
    }

    fn fold(&mut self, fold: &'a Fold) -> Out<'a> {
        let range = self.value(&fold.range)?;
        let Some(members) = range.walk() else { return Err(Failure::no_overload()) };
        let is_map = range.is_map();
        let mut out: Vec<Value<'a>> = Vec::new();
        let mut entries: Vec<(Value<'a>, Value<'a>)> = Vec::new();
        let mut found = 0;
        let mut failed = None;
        for (index, member) in members.enumerate() {
            self.budget.spend(2)?;
            self.budget.decode(&range, [&member])?;
            let depth = self.scope.len();
            let key = match &fold.second {
                None => {
                    self.scope.push((&fold.first, member.clone()));
                    Value::Null
                }
                Some(second) => {
                    let (key, value) = if is_map {
                        self.budget.spend(range.effort() / equal::PARTS)?;
                        let value = range.entry(&member).unwrap_or(Value::Null);
                        self.budget.decode(&range, [&value])?;
                        (member.clone(), value)
                    } else {
                        (Value::Int(i64::try_from(index).unwrap_or(i64::MAX)), member.clone())
                    };
                    self.scope.push((&fold.first, key.clone()));
                    self.scope.push((second, value));
                    key
                }
            };
            let kept = match &fold.filter {
                Some(filter) => self.value(filter),
                None => Ok(Value::Bool(true)),
            };
            let body = match kept {
                Ok(Value::Bool(false)) => None,
                Ok(Value::Bool(true)) => Some(self.value(&fold.body)),
                Ok(_) => Some(Err(Failure::no_overload())),
                Err(error) => Some(Err(error)),
            };
            self.scope.truncate(depth);
            let Some(body) = body else { continue };
            if matches!(body, Err(Failure::OverBudget)) {
                return body;
            }
            match (fold.macro_kind, body) {
                (Macro::All, Ok(Value::Bool(false))) => return Ok(Value::Bool(false)),
                (Macro::Exists, Ok(Value::Bool(true))) => return Ok(Value::Bool(true)),
                // A later item may still decide.
                (Macro::All | Macro::Exists, Err(error)) => failed = failed.or(Some(error)),
                (_, Err(error)) => return Err(error),
                (Macro::All | Macro::Exists, Ok(_)) => {}
                (Macro::ExistsOne, Ok(value)) => found += usize::from(matches!(value, Value::Bool(true))),
                (Macro::Filter, Ok(Value::Bool(true))) => out.push(member),
                (Macro::Filter, Ok(_)) => {}
                (Macro::Map, Ok(value)) => out.push(value),
                (Macro::TransformMap, Ok(value)) => entries.push((key, value)),
                (Macro::SortBy, Ok(value)) => entries.push((value, member)),
                (Macro::TransformMapEntry, Ok(value)) => {
                    for key in value.walk().filter(|_| value.is_map()).ok_or_else(Failure::no_overload)? {
                        self.budget.spend(entries.len() + 1)?;
                        if entries.iter().any(|(known, _)| known.is_same(&key)) {
                            let key = calls::shown(&key);
                            return Err(Failure::new(format!("insert failed: key {key} already exists")));
                        }
                        let part = value.entry(&key).unwrap_or(Value::Null);
                        self.budget.decode(&value, [&part])?;
                        entries.push((key, part));
                    }
                }
            }
        }
        match (fold.macro_kind, failed) {
            (Macro::All | Macro::Exists, Some(error)) => Err(error),
            (Macro::All, None) => Ok(Value::Bool(true)),
            (Macro::Exists, None) => Ok(Value::Bool(false)),
            (Macro::ExistsOne, _) => Ok(Value::Bool(found == 1)),
            (Macro::TransformMap | Macro::TransformMapEntry, _) => Ok(Value::Map(entries.into())),
            (Macro::SortBy, _) => {
                let keys = entries.iter().map(|(key, _)| key);
                strings::pay_for_looks(keys.clone(), self.budget)?;
                // Numbers of several types can be compared, but what that gives is no order.
                if !strings::are_ordered(keys) {
                    return Err(Failure::new("list elements must have the same type"));
                }
                self.budget.spend(entries.len())?;
                entries.sort_by(|(a, _), (b, _)| a.compare(b).unwrap_or(std::cmp::Ordering::Equal));
                Ok(Value::list(entries.into_iter().map(|(_, item)| item).collect()))
            }
            _ => Ok(Value::list(out)),
        }
    }
}

fn select<'a>(operand: &Value<'a>, field: &str, test: bool, optional: bool) -> Out<'a> {
    let (value, wrapped) = match operand {
        Value::Optional(None) => return Ok(if test { Value::Bool(false) } else { Value::Optional(None) }),
        Value::Optional(Some(inner)) => (&**inner, true),
        value => (value, optional),
    };
    if value.is_list() {
        return Err(not_an_index(&Value::text(field.to_owned())));
    }
    if test {
        return Ok(Value::Bool(value.is_map() && value.has_field(field)));
    }
    // What has no members at all, such as the old object of a creation, lacks this one too.
    match value.is_map().then(|| value.field(field)).flatten() {
        Some(found) => Ok(if wrapped { Value::some(found) } else { found }),
        None if wrapped => Ok(Value::Optional(None)),
        None => Err(Failure::new(format!("no such key: {field}"))),
    }
}

/// Why a value does not count items of a list.
fn not_an_index(index: &Value<'_>) -> Failure {
    Failure::new(match index {
        Value::Double(_) | Value::Uint(_) => format!("unsupported index value {} in list", calls::shown(index)),
        other => format!("unsupported index type '{}' in list", other.kind()),
    })
}

fn at<'a>(operand: &Value<'a>, index: &Value<'a>, optional: bool) -> Out<'a> {
    let (value, wrapped) = match operand {
        Value::Optional(None) => return Ok(Value::Optional(None)),
        Value::Optional(Some(inner)) => (&**inner, true),
        value => (value, optional),
    };
    let (found, missing) = if value.is_list() {
        let at = match index {
            Value::Int(at) => usize::try_from(*at).ok(),
            Value::Uint(at) if i64::try_from(*at).is_ok() => usize::try_from(*at).ok(),
            Value::Double(at) if at.fract() == 0.0 => (*at >= 0.0).then_some(*at as usize),
            other => return Err(not_an_index(other)),
        };
        (at.and_then(|at| value.item(at)), "index out of bounds")
    } else {
        (value.is_map().then(|| value.entry(index)).flatten(), "no such key")
    };
    match found {
        Some(found) => Ok(if wrapped { Value::some(found) } else { found }),
        // The key, which may be long, is shown to nobody.
        None if wrapped => Ok(Value::Optional(None)),
        None => Err(Failure::new(format!("{missing}: {}", calls::shown(index)))),
    }
}
