//! What an expression may cost at most, told before it is ever evaluated.
//!
//! Follows cel-go's `checker/cost.go` with the prices of `apiserver/pkg/cel/library/cost.go`: every step is priced, loops
//! count for as many items as the schema lets a list have, and what goes through a text pays for its longest. Macros
//! are priced as the loops that cel-go makes of them.

use std::sync::Arc;

use super::ast::{Expr, Fold, Kind, Macro};
use super::check::Types;
use super::types::Type;

/// How large a value may be, and what lies in it.
#[derive(Debug, Clone, Default)]
pub struct Bounds {
    /// Most items, entries or bytes; zero for what has no size.
    pub max: u64,
    pub inner: Inner,
    /// Fewest bytes that it takes as JSON.
    pub smallest: u64,
}

#[derive(Debug, Clone, Default)]
pub enum Inner {
    #[default]
    Nothing,
    /// Fields by the names that expressions use.
    Fields(Vec<(String, Arc<Bounds>)>),
    /// Items of a list.
    Items(Arc<Bounds>),
    /// Values of a map.
    Values(Arc<Bounds>),
}

/// Fewest and most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    pub min: u64,
    pub max: u64,
}

const TRAVERSAL: f64 = 0.1;
const REGEX: f64 = 0.25;
const UNKNOWN: Range = Range { min: 0, max: u64::MAX };
const ONE: Range = Range { min: 1, max: 1 };
/// Bytes of an address.
const ADDRESS: Range = Range { min: 4, max: 16 };

fn fixed(cost: u64) -> Range {
    Range { min: cost, max: cost }
}

impl Range {
    fn add(self, other: Range) -> Range {
        Range { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    fn times(self, other: Range) -> Range {
        Range { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    fn factor(self, factor: f64) -> Range {
        // Beyond what a number holds the conversion stops at the largest.
        let part = |x: u64| if x == u64::MAX { x } else { (x as f64 * factor).ceil() as u64 };
        Range { min: part(self.min), max: part(self.max) }
    }

    fn or(self, other: Range) -> Range {
        Range { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

/// What is known of an expression.
#[derive(Clone)]
struct Known<'a> {
    cost: Range,
    size: Option<Range>,
    /// Where in the schema its value is.
    at: Option<&'a Bounds>,
    /// Size of the members of what the expression makes itself.
    members: Option<Range>,
}

impl<'a> Known<'a> {
    fn costing(cost: Range) -> Self {
        Known { cost, size: None, at: None, members: None }
    }

    fn sized(mut self, size: Option<Range>) -> Self {
        self.size = size;
        self
    }

    fn size(&self) -> Range {
        self.size.unwrap_or(UNKNOWN)
    }

    /// A value at a place of the schema.
    fn placed(cost: Range, at: Option<&'a Bounds>) -> Self {
        Known { cost, size: at.map(|at| Range { min: 0, max: at.max }), at, members: None }
    }

    fn item(&self) -> Option<&'a Bounds> {
        match self.at.map(|at| &at.inner) {
            Some(Inner::Items(inner) | Inner::Values(inner)) => Some(inner),
            _ => None,
        }
    }
}

struct Estimate<'a> {
    types: &'a Types,
    scope: Vec<(&'a str, Known<'a>)>,
}

/// The cost of an expression whose types are known; `variables` says where in the schema each variable is.
pub(super) fn estimate<'a>(expr: &'a Expr, types: &'a Types, variables: &[(&'a str, &'a Bounds)]) -> Range {
    let scope = variables.iter().map(|(name, at)| (*name, Known::placed(ONE, Some(at)))).collect();
    Estimate { types, scope }.of(expr).cost
}

impl<'a> Estimate<'a> {
    fn ty(&self, expr: &Expr) -> &Type {
        self.types.of(expr)
    }

    fn of(&mut self, expr: &'a Expr) -> Known<'a> {
        let mut known = self.raw(expr);
        // What has always the same size needs no schema.
        if known.size.is_none() && is_scalar(self.ty(expr)) {
            known.size = Some(ONE);
        }
        known
    }

    fn raw(&mut self, expr: &'a Expr) -> Known<'a> {
        match &expr.kind {
            Kind::Null | Kind::Bool(_) | Kind::Int(_) | Kind::Uint(_) | Kind::Double(_) => {
                Known::costing(fixed(0)).sized(Some(ONE))
            }
            Kind::Text(text) => Known::costing(fixed(0)).sized(Some(fixed(text.chars().count() as u64))),
            Kind::Bytes(bytes) => Known::costing(fixed(0)).sized(Some(fixed(bytes.len() as u64))),
            Kind::Name(name) => {
                let found = self.scope.iter().rev().find(|(known, _)| known == name);
                // The name of a type has no place in the schema, and is taken for what the whole rule is about.
                let known = found.or(self.scope.first()).map(|(_, known)| known.clone());
                Known { cost: ONE, ..known.unwrap_or_else(|| Known::costing(ONE)) }
            }
            Kind::Select { operand, field, test, optional } => {
                let inner = self.of(operand);
                if *test {
                    return Known::costing(inner.cost).sized(Some(ONE));
                }
                let found = match inner.at.map(|at| &at.inner) {
                    Some(Inner::Fields(fields)) => {
                        fields.iter().find(|(name, _)| name == field).map(|(_, bounds)| &**bounds)
                    }
                    // The entry of a map has its place only when it is asked for by index.
                    _ => None,
                };
                let priced = *optional || matches!(self.ty(operand), Type::Map(..) | Type::Object(_) | Type::Made(_));
                Known::placed(inner.cost.add(fixed(u64::from(priced))), found)
            }
            Kind::Index { operand, index, .. } => {
                let (inner, index) = (self.of(operand), self.of(index));
                let mut known = Known::placed(inner.cost.add(index.cost).add(ONE), inner.item());
                known.size = known.size.or(inner.members);
                known
            }
            Kind::Call { name, target, args } => self.call(name, target.as_deref(), args),
            Kind::List(items) => {
                let (mut cost, mut members) = (fixed(10), None);
                for (item, _) in items {
                    let known = self.of(item);
                    cost = cost.add(known.cost);
                    members = Some(members.map_or(known.size(), |m: Range| m.or(known.size())));
                }
                let size = fixed(items.len() as u64);
                Known { cost, size: Some(size), at: None, members: members.or(Some(fixed(0))) }
            }
            Kind::Map(entries) => {
                let (mut cost, mut members) = (fixed(30), None);
                for (key, value, _) in entries {
                    let (key, value) = (self.of(key), self.of(value));
                    cost = cost.add(key.cost).add(value.cost);
                    members = Some(members.map_or(value.size(), |m: Range| m.or(value.size())));
                }
                Known { cost, size: Some(fixed(entries.len() as u64)), at: None, members }
            }
            Kind::Message { fields, .. } => {
                let cost = fields.iter().fold(fixed(40), |sum, (_, _, value, _)| sum.add(self.of(value).cost));
                Known::costing(cost)
            }
            Kind::And(a, b) | Kind::Or(a, b) => {
                let (a, b) = (self.of(a).cost, self.of(b).cost);
                Known::costing(Range { min: a.min, max: a.add(b).max })
            }
            Kind::Choice(condition, yes, no) => {
                let (condition, yes, no) = (self.of(condition), self.of(yes), self.of(no));
                let cost = condition.cost.add(yes.cost.or(no.cost));
                Known::costing(cost).sized(Some(yes.size().or(no.size())))
            }
            Kind::Fold(fold) => self.fold(fold),
            Kind::OptionalMap { operand, name, body, .. } => {
                let inner = self.of(operand);
                self.scope.push((name, Known { cost: ONE, ..inner.clone() }));
                let body = self.of(body);
                self.scope.pop();
                // `has` of the optional, then its value bound to the name, or none.
                let some = inner.cost.add(fixed(12)).add(body.cost);
                Known::costing(inner.cost.add(ONE).add(some.or(ONE)))
            }
        }
    }

    fn fold(&mut self, fold: &'a Fold) -> Known<'a> {
        let range = self.of(&fold.range);
        let member = Known { size: range.members, ..Known::placed(ONE, range.item()) };
        let member = match range.item() {
            Some(at) => Known::placed(ONE, Some(at)),
            None => member,
        };
        let is_list = matches!(self.ty(&fold.range), Type::List(_));
        // A schema says nothing of how long the keys of a map are, which upstream takes for no length at all.
        let of_schema = matches!(range.at.map(|at| &at.inner), Some(Inner::Values(_)));
        let key = Known::costing(ONE).sized(of_schema.then_some(fixed(0)));
        let length = self.scope.len();
        match &fold.second {
            Some(second) => {
                self.scope.push((&fold.first, key));
                self.scope.push((second, member));
            }
            None if is_list => self.scope.push((&fold.first, member)),
            None => self.scope.push((&fold.first, key)),
        }
        let filter = fold.filter.as_ref().map(|filter| self.of(filter).cost);
        let body = self.of(&fold.body);
        self.scope.truncate(length);
        // With a filter, a step is a choice between what is done and what was there.
        let filtered = |step: Range| filter.map_or(step, |filter| filter.add(step.or(ONE)));
        let (start, test, step, end) = match fold.macro_kind {
            Macro::All => (0, 2, Range { min: 1, max: body.cost.max.saturating_add(1) }, 1),
            Macro::Exists => (0, 3, Range { min: 1, max: body.cost.max.saturating_add(1) }, 1),
            Macro::ExistsOne => (0, 0, body.cost.add(Range { min: 1, max: 2 }), 2),
            Macro::Map => (10, 0, filtered(fixed(12).add(body.cost)), 1),
            // The list is kept aside, its keys are made as by `map`, and then one call sorts it.
            Macro::SortBy => (20, 0, fixed(12).add(body.cost), 4),
            Macro::Filter => (10, 0, body.cost.add(Range { min: 1, max: 13 }), 1),
            Macro::TransformMap | Macro::TransformMapEntry => (30, 0, filtered(fixed(3).add(body.cost)), 1),
        };
        let rounds = range.size();
        let cost = range.cost.add(fixed(start + end)).add(rounds.times(step.add(fixed(test))));
        match fold.macro_kind {
            Macro::All | Macro::Exists | Macro::ExistsOne => Known::costing(cost).sized(Some(ONE)),
            Macro::SortBy => Known {
                cost,
                size: Some(rounds),
                at: None,
                members: range.item().map(|i| Range { min: 0, max: i.max }),
            },
            Macro::Filter => Known {
                cost,
                size: Some(rounds),
                at: None,
                members: range.item().map(|i| Range { min: 0, max: i.max }),
            },
            _ => Known { cost, size: Some(rounds), at: None, members: body.size },
        }
    }

    fn call(&mut self, name: &str, target: Option<&'a Expr>, args: &'a [Expr]) -> Known<'a> {
        let spaced = target.and_then(|target| match &target.kind {
            Kind::Name(space) if self.scope.iter().all(|(known, _)| known != space) => Some(format!("{space}.{name}")),
            _ => None,
        });
        let spaced = spaced.filter(|whole| !super::overloads::of(whole).is_empty());
        let (name, target) = match &spaced {
            Some(whole) => (whole.as_str(), None),
            None => (name, target),
        };
        let of_target = target.map(|target| self.of(target));
        let of_args: Vec<Known<'a>> = args.iter().map(|arg| self.of(arg)).collect();
        if let ("dyn", [arg]) = (name, of_args.as_slice()) {
            return Known { cost: arg.cost.add(ONE), ..arg.clone() };
        }
        let before = of_target.iter().chain(&of_args).fold(fixed(0), |sum, known| sum.add(known.cost));
        let (own, size) = self.price(name, target, of_target.as_ref(), args, &of_args);
        Known::costing(before.add(own)).sized(size)
    }

    /// What a function costs by itself, and how large its result is.
    fn price(
        &self,
        name: &str,
        target: Option<&Expr>,
        of_target: Option<&Known<'a>>,
        args: &[Expr],
        of_args: &[Known<'a>],
    ) -> (Range, Option<Range>) {
        let traversed = |known: &Known<'a>| known.size().factor(TRAVERSAL);
        let is_text = |expr: &Expr| matches!(self.ty(expr), Type::Text | Type::Bytes | Type::Dyn);
        match (name, of_target, of_args) {
            ("check", Some(_), _) => (fixed(350_000), None),
            ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(whole), _) => {
                match target.map(|target| self.ty(target)) {
                    Some(Type::List(item)) => {
                        let sized = matches!(**item, Type::Text | Type::Bytes);
                        let member = whole.item().map_or(UNKNOWN, |item| Range { min: 0, max: item.max });
                        let each = if sized { ONE.add(member.factor(TRAVERSAL)) } else { ONE };
                        (whole.size().times(each), None)
                    }
                    _ => (traversed(whole), None),
                }
            }
            ("url" | "jsonpatch.escapeKey", _, [text]) => (traversed(text), Some(text.size())),
            ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(text), _) => (traversed(text), Some(text.size())),
            ("replace", Some(text), [out, into, ..]) => {
                let (size, out, into) = (text.size(), out.size(), into.size());
                let times = match out.min {
                    0 => size.max.saturating_add(1),
                    _ if into.max <= out.min => 0,
                    least => size.max.div_ceil(least),
                };
                let kept = if out.min == 0 || into.max <= out.min { size.max } else { 0 };
                let largest = times.saturating_mul(into.max).saturating_add(kept);
                (size.factor(2.0 * TRAVERSAL), Some(Range { min: 0, max: largest }))
            }
            ("split", Some(text), _) => {
                let size = text.size();
                let most = match args.get(1).map(|arg| &arg.kind) {
                    Some(Kind::Int(most)) => u64::try_from(*most).unwrap_or(u64::MAX),
                    _ => size.max,
                };
                (size.factor(2.0 * TRAVERSAL), Some(Range { min: 0, max: most }))
            }
            ("join", Some(list), rest) => {
                let count = list.size();
                let member = list.item().map_or(UNKNOWN, |item| Range { min: 0, max: item.max });
                let mut size = count.times(member);
                if let [between] = rest {
                    let gaps = Range { min: count.min.saturating_sub(1), max: count.max.saturating_sub(1) };
                    size = size.add(between.size().times(gaps));
                }
                (size.factor(TRAVERSAL), Some(size))
            }
            ("find" | "findAll", Some(text), [pattern, ..]) => {
                let through = text.size().add(ONE).factor(TRAVERSAL);
                let size = Range { min: 0, max: text.size().max };
                (through.times(pattern.size().factor(REGEX)), Some(size))
            }
            ("matches", Some(text), [pattern]) | ("matches", None, [text, pattern]) => {
                let through = text.size().add(ONE).factor(TRAVERSAL);
                (through.times(pattern.size().factor(REGEX)), None)
            }
            ("contains", Some(text), [part]) => (traversed(text).times(traversed(part)), None),
            ("startsWith" | "endsWith", Some(_), [part]) => (traversed(part), None),
            ("format", Some(text), _) => (traversed(text), None),
            (
                "cidr" | "ip" | "isIP" | "isCIDR" | "quantity" | "isQuantity" | "semver" | "isSemver",
                None,
                [text, ..],
            ) => (traversed(text), None),
            ("ip.isCanonical", _, [text]) => (text.size().factor(2.0 * TRAVERSAL), None),
            ("containsIP" | "containsCIDR", Some(_), [other]) => {
                let mut cost = ADDRESS.add(ADDRESS).factor(TRAVERSAL);
                if name == "containsCIDR" {
                    cost = cost.add(ADDRESS.factor(TRAVERSAL)).add(ONE);
                }
                if args.first().is_some_and(is_text) {
                    cost = cost.add(traversed(other));
                }
                (cost, None)
            }
            ("validate", Some(_), [text]) => (traversed(text).factor(128.0 * REGEX), None),
            ("string" | "strings.quote", None, [text]) if args.first().is_some_and(is_text) => {
                let size = text.size();
                (size.factor(TRAVERSAL), Some(Range { min: size.min / 4, max: size.max }))
            }
            ("bytes", None, [text]) if args.first().is_some_and(|arg| *self.ty(arg) == Type::Text) => {
                let size = text.size();
                (size.factor(TRAVERSAL), Some(Range { min: size.min, max: size.max.saturating_mul(4) }))
            }
            ("@in", None, [_, list]) if !matches!(self.ty(&args[1]), Type::Map(..)) => (list.size(), None),
            ("_+_", None, [a, b]) => {
                let size = a.size().add(b.size());
                match self.ty(&args[0]) {
                    Type::List(_) => (ONE, Some(size)),
                    Type::Text | Type::Bytes | Type::Dyn => (size.factor(TRAVERSAL), Some(size)),
                    _ => (ONE, None),
                }
            }
            ("_==_" | "_!=_", None, [a, b]) => {
                if matches!((self.ty(&args[0]), self.ty(&args[1])), (Type::Opaque(_), Type::Opaque(_))) {
                    return (ONE, None);
                }
                (smaller(a, b).factor(TRAVERSAL), None)
            }
            ("_<_" | "_<=_" | "_>_" | "_>=_", None, [a, b]) if args.iter().any(is_text) => {
                (smaller(a, b).factor(TRAVERSAL), None)
            }
            _ => (ONE, None),
        }
    }
}

fn smaller(a: &Known<'_>, b: &Known<'_>) -> Range {
    let max = a.size().max.min(b.size().max);
    Range { min: u64::from(max > 0), max }
}

fn is_scalar(ty: &Type) -> bool {
    match ty {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
        Type::Optional(inner) => is_scalar(inner),
        _ => false,
    }
}
